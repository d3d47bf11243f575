// The Python class StoreServer.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_store_server(pybind11::module_& m);

}  // namespace hvd::bind
