// See cuda_api.h.
#include "cuda_api.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace {

#define CUDA_ERROR_ROW(number, name, code, flags) {number, #name, code, flags},
constexpr hvd::ErrorRow kErrorRows[] = {
#include "cuda_errors.inc"
};
#undef CUDA_ERROR_ROW
constexpr hvd::ErrorTable kErrors("CUDA", kErrorRows);

[[noreturn]] void unavailable(const std::string& text) { throw hvd::Error(HVD_E_UNAVAILABLE, text); }

CudaApi load() {
  const std::string option = hvd::option("cuda_library", "");
  const std::string path = option.empty() ? "libcuda.so.1" : option;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    unavailable(std::string("CUDA's driver cannot be opened: ") + dlerror() +
                (option.empty() ? "; it comes with NVIDIA's driver (option cuda_library names another file)"
                                : "; option cuda_library names it"));
  }
  CudaApi api;
#define CUDA_OPTIONAL_FUNCTION(name, symbol, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #symbol));
#define CUDA_FUNCTION(name, symbol, parameters)                                                             \
  CUDA_OPTIONAL_FUNCTION(name, symbol, parameters)                                                          \
  if (api.name == nullptr) {                                                                                \
    unavailable("'" + path +                                                                                \
                "' has no function " #symbol "; a driver for CUDA 11.0 or later is needed (450 or later)"); \
  }
#include "cuda_functions.inc"
  if (api.cuDeviceGetUuid == nullptr && api.cuDeviceGetUuid_v2 == nullptr)
    unavailable("'" + path + "' has no function cuDeviceGetUuid; a driver for CUDA 11.0 or later is needed");
  return api;
}

std::atomic<bool> g_initialised{false};

}  // namespace

const CudaApi& cuda() {
  static const CudaApi api = load();  // tried again the next time if this throws
  return api;
}

bool init_cuda() {
  if (g_initialised.load()) return true;
  const CUresult result = cuda().cuInit(0);
  if (result == CUDA_ERROR_NO_DEVICE) return false;
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    if (cuda().cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "an unknown error";
    throw hvd::Error(HVD_E_UNAVAILABLE,
                     "CUDA does not work here: cuInit: " + std::string(text) + " (" + std::to_string(result) + ")", 0,
                     result);
  }
  g_initialised.store(true);
  return true;
}

bool cuda_is_initialised() { return g_initialised.load(); }

void check_cuda(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const std::string function(call, std::strcspn(call, "("));
  const char* text = nullptr;
  if (cuda().cuGetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  kErrors.check(result, function.c_str(), text);
}
