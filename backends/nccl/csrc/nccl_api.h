// NCCL as a table of functions, filled when the backend is loaded. Nothing is linked, and nccl.h is not needed:
// see nccl_abi.h.
#pragma once

#include <hvd/backend.hpp>
#include <string>

#include "nccl_abi.h"

struct NcclApi {
#define NCCL_FUNCTION(name, result, arguments) result(*name) arguments = nullptr;
#define NCCL_OPTIONAL_FUNCTION(name, result, arguments) NCCL_FUNCTION(name, result, arguments)
#include "nccl_functions.inc"

  int version = 0;   // 22703
  std::string path;  // of the file
};

// Finds and opens the library, once; any thread. Does nothing if there is no library, so that the backend's tables can
// be inspected without NCCL; then nccl() throws. Throws HVD_E_UNAVAILABLE for a library that cannot be used.
void load_nccl();

// The table. Throws HVD_E_UNAVAILABLE, with the places that were searched, if no library was found.
const NcclApi& nccl();
// The same, or NULL.
const NcclApi* nccl_if_found();

// "libnccl.so.2 2.27.3", for reports; "" without a library.
const char* nccl_vendor_lib();

// A fact for reports: library, version, version_code; "" for others and without a library.
std::string nccl_fact(const std::string& key);

// Throws unless the call succeeded, with the code that nccl_errors.inc gives it and NCCL's own words. `call`: the
// source text of the call, for the message; `comm`: the communicator that failed, or NULL.
void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm = nullptr);

// NCCL(ncclGroupStart()): a call through the table, checked.
#define NCCL(call) check_nccl(nccl().call, #call)
