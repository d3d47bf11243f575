// Loads a shared object (or calls an entry function) and checks its tables: dlopen, the entry symbol, the handshake.
//
// Any thread. The checks read no further than a table's own size, so short, long and older tables are safe. They cannot
// detect wrong pointers.
#pragma once

#include <string>

#include "engine/plugins/errors.h"
#include "hvd/backend_abi.h"

namespace hvd::plugins {

// Opens `path` with RTLD_NOW | RTLD_LOCAL and never closes it: a vendor's library may have threads and exit handlers.
// Throws LoadError; the message names another ABI major if the library exports its entry symbol.
hvd_backend_entry_fn open_library(const std::string& path, const std::string& name);

// Calls the entry function with a host table for this backend and checks the returned tables. Throws LoadError, or
// BackendError if the backend itself refuses (UNAVAILABLE: its vendor library or device is missing here).
const hvd_backend_api* handshake(hvd_backend_entry_fn entry, const std::string& name, const std::string& origin);

// The checks alone. `origin` names the source of the tables in messages.
void check_tables(const hvd_backend_api* api, const std::string& name, const std::string& origin);

}  // namespace hvd::plugins
