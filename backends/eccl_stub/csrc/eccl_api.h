// The vendor's library as a table of function pointers, filled when the backend is loaded. Nothing is linked: this
// builds with the vendor's headers alone, and runs with whichever library option `library` names.
#pragma once

#include <eccl.h>
#include <tops_runtime.h>

struct EcclApi {
#define ECCL_FUNCTION(name) decltype(&::name) name = nullptr;
#define ECCL_OPTIONAL_FUNCTION(name) ECCL_FUNCTION(name)
#include "eccl_functions.inc"
};

// The table; load_eccl() has filled it.
const EcclApi& eccl();

// Opens the library, once. Throws HVD_E_UNAVAILABLE: what was looked for, and what is missing.
void load_eccl();

// "libeccl.so 3.1.0", for reports.
const char* eccl_version();

// Throw unless the call succeeded, with the code that csrc/eccl_errors.inc gives it. `call` is what was called, up to
// the arguments; comm: whose error it is, or NULL.
void check_eccl(ecclResult_t result, const char* call, ecclComm_t comm = nullptr);
void check_tops(topsError_t result, const char* call);

// ECCL(ecclGroupStart()) and TOPS(topsSetDevice(0)): a call through the table, checked.
#define ECCL(call) check_eccl(eccl().call, #call)
#define TOPS(call) check_tops(eccl().call, #call)
