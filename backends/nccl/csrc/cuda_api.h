// CUDA's driver as a table of functions. Nothing is linked, and cuda.h is not needed: see cuda_abi.h. Any thread.
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

// Initialises CUDA in this process, once: CUDA reads CUDA_VISIBLE_DEVICES then, and later changes have no effect. Makes
// no context. False if there is no device; throws HVD_E_UNAVAILABLE if CUDA does not work.
bool init_cuda();
// Has init_cuda() succeeded in this process?
bool cuda_is_initialised();

// Throws unless the call succeeded, with the code that cuda_errors.inc gives it and CUDA's own words. `call`: the
// source text of the call, for the message.
void check_cuda(CUresult result, const char* call);

// CUDA(cuMemFree(p)): a call through the table, checked.
#define CUDA(call) check_cuda(cuda().call, #call)
