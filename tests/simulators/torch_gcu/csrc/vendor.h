// The vendor's runtime as a table of functions, opened once per process, at the first use of a device, from the file
// that Python names. Everything else in this folder calls it through here. Any thread.
#pragma once

#include <tops_runtime.h>

#include <string>

namespace torch_gcu {

// One line per function that is used: what is missing from the library is named in the error.
#define TORCH_GCU_VENDOR_FUNCTIONS(F) \
  F(topsGetDeviceCount)               \
  F(topsGetDevice)                    \
  F(topsSetDevice)                    \
  F(topsDeviceSynchronize)            \
  F(topsGetErrorString)               \
  F(topsMalloc)                       \
  F(topsFree)                         \
  F(topsPointerGetAttributes)         \
  F(topsHostMalloc)                   \
  F(topsHostFree)                     \
  F(topsMemcpyAsync)                  \
  F(topsStreamCreateWithPriority)     \
  F(topsStreamQuery)                  \
  F(topsStreamSynchronize)            \
  F(topsStreamWaitEvent)              \
  F(topsEventCreateWithFlags)         \
  F(topsEventRecord)                  \
  F(topsEventQuery)                   \
  F(topsEventSynchronize)             \
  F(topsEventElapsedTime)             \
  F(topsEventDestroy)

struct Vendor {
#define TORCH_GCU_DECLARE(name) decltype(&::name) name = nullptr;
  TORCH_GCU_VENDOR_FUNCTIONS(TORCH_GCU_DECLARE)
#undef TORCH_GCU_DECLARE
};

// Opens the library; a second call with success behind it does nothing. Returns "" or what went wrong.
std::string open_vendor(const std::string& file);

// The function that finds the file and calls open_vendor(). Called without a lock of this library.
using Opener = void (*)();
void set_opener(Opener opener) noexcept;

// Whether the library is open and this is the process that opened it. Opens nothing.
bool vendor_usable() noexcept;

// True in a forked child of a process that had opened the library: its threads do not exist here.
bool in_forked_child() noexcept;

// The table; opens the library if need be. Throws a c10::Error that says what to do if it is not usable.
const Vendor& vendor();

// Throws a c10::Error with the vendor's text unless `code` is success.
void check(topsError_t code, const char* call);

#define TORCH_GCU_CALL(function, ...) ::torch_gcu::check(::torch_gcu::vendor().function(__VA_ARGS__), #function)

}  // namespace torch_gcu
