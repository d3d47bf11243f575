// The vendor's library as a table of function pointers, filled when the backend is loaded. Nothing is linked: this
// builds with the vendor's headers alone, and runs with whichever library option `library` names.
#pragma once

#include <eccl.h>
#include <tops_runtime.h>

// Every function that the backend uses. A library without one of the first list cannot be used.
#define ECCL_FUNCTIONS(F)                                                                                             \
  F(ecclGetVersion)                                                                                                   \
  F(ecclGetLastError) F(ecclGetUniqueId) F(ecclCommInitRank) F(ecclCommDestroy) F(ecclCommAbort)                      \
      F(ecclCommGetAsyncError) F(ecclRedOpCreatePreMulSum) F(ecclRedOpDestroy) F(ecclAllReduce) F(ecclReduce)         \
          F(ecclBroadcast) F(ecclAllGather) F(ecclReduceScatter) F(ecclSend) F(ecclRecv) F(ecclGroupStart)            \
              F(ecclGroupEnd) F(topsGetErrorString) F(topsGetDeviceCount) F(topsSetDevice) F(topsGetDevice)           \
                  F(topsGetDeviceProperties) F(topsDeviceGetPCIBusId) F(topsMemGetInfo) F(topsMalloc) F(topsFree)     \
                      F(topsHostMalloc) F(topsHostFree) F(topsPointerGetAttributes) F(topsMemcpyAsync)                \
                          F(topsStreamCreateWithPriority) F(topsStreamDestroy) F(topsStreamQuery)                     \
                              F(topsStreamWaitEvent) F(topsEventCreateWithFlags) F(topsEventRecord) F(topsEventQuery) \
                                  F(topsEventElapsedTime) F(topsEventDestroy)
// Used where the library has them.
#define ECCL_OPTIONAL_FUNCTIONS(F) F(topsSimSubBuffer)

struct EcclApi {
#define ECCL_FIELD(name) decltype(&::name) name = nullptr;
  ECCL_FUNCTIONS(ECCL_FIELD)
  ECCL_OPTIONAL_FUNCTIONS(ECCL_FIELD)
#undef ECCL_FIELD
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
