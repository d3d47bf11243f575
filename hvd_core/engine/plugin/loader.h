// From a shared object (or an entry function) to checked tables: dlopen, the entry symbol, the handshake.
//
// Any thread. The checks read only what the table's own size admits, so short, long and older tables are safe; a
// table that lies about its pointers is not something a host can survive.
#pragma once

#include <string>

#include "engine/plugin/errors.h"
#include "hvd/backend_abi.h"

namespace hvd::plugin {

// Opens `path` with RTLD_NOW | RTLD_LOCAL and never closes it: a vendor's library may have threads and exit handlers.
// Throws LoadError; a library of another ABI major is recognised by the entry symbols it has.
hvd_backend_entry_fn open_library(const std::string& path, const std::string& name);

// Calls the entry with a host table of the backend's own and checks what comes back. Throws LoadError, or BackendError
// when the backend itself refuses (UNAVAILABLE: its vendor library or device is missing here).
const hvd_backend_api* handshake(hvd_backend_entry_fn entry, const std::string& name, const std::string& origin);

// The checks alone. `origin` says in messages where the tables came from.
void check_tables(const hvd_backend_api* api, const std::string& name, const std::string& origin);

}  // namespace hvd::plugin
