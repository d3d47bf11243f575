// The vendor's library as a table of function pointers, filled when the backend is loaded. Nothing is linked: the
// backend builds with the vendor's headers alone, and runs with the library that option `library` names.
#pragma once

#include <eccl.h>
#include <tops_runtime.h>

struct EcclApi {
#define ECCL_FUNCTION(name) decltype(&::name) name = nullptr;
#define ECCL_OPTIONAL_FUNCTION(name) ECCL_FUNCTION(name)
#include "eccl_functions.inc"
};

// The table. Valid after load_eccl().
const EcclApi& eccl();

// Opens the library, once. Throws HVD_E_UNAVAILABLE with the path it tried and the function that is missing.
void load_eccl();

// "libeccl.so 3.1.0", for reports.
const char* eccl_version();

// Throw hvd::Error unless `result` is success; check_eccl with the code that csrc/eccl_errors.inc assigns to it.
// `call`: the call's source text, for the message. `comm`: the communicator to ask for details, or NULL.
void check_eccl(ecclResult_t result, const char* call, ecclComm_t comm = nullptr);
void check_tops(topsError_t result, const char* call);

// A checked call through the table: ECCL(ecclGroupStart()), TOPS(topsSetDevice(0)).
#define ECCL(call) check_eccl(eccl().call, #call)
#define TOPS(call) check_tops(eccl().call, #call)
