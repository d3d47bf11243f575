// CUDA's driver as a table of functions. Nothing is linked, and no cuda.h is needed: cuda_abi.h. Any thread.
#pragma once

#include <hvd/backend.hpp>
#include <string>

#include "cuda_abi.h"

struct CudaApi {
#define CUDA_FUNCTION(name, symbol, parameters) CUresult(*name) parameters = nullptr;
#define CUDA_OPTIONAL_FUNCTION(name, symbol, parameters) CUDA_FUNCTION(name, symbol, parameters)
#include "cuda_functions.inc"
};

// The table. The first call opens the library, which touches no device. Throws HVD_E_UNAVAILABLE with the library's
// name and the function that is missing.
const CudaApi& cuda();

// Has CUDA initialise itself in this process, once: from then on CUDA_VISIBLE_DEVICES is read and cast in stone. Makes
// no context. False where there is no device; throws HVD_E_UNAVAILABLE where CUDA does not work.
bool init_cuda();
// Whether init_cuda() has succeeded in this process.
bool cuda_is_initialised();

// Throws unless the call succeeded, with the code that cuda_errors.inc gives it and CUDA's own words. `call`: the
// source text of the call, for the message.
void check_cuda(CUresult result, const char* call);

// CUDA(cuMemFree(p)): a call through the table, checked.
#define CUDA(call) check_cuda(cuda().call, #call)
