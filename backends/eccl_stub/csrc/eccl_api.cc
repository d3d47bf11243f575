// See eccl_api.h. One thread at a time until load_eccl() has returned, then any thread.
#include "eccl_api.h"

#include <dlfcn.h>

#include <cstring>
#include <hvd/backend.hpp>
#include <mutex>
#include <string>

namespace {

#define ECCL_ERROR(vendor_code, code, flags) {vendor_code, #vendor_code, code, flags},
constexpr hvd::ErrorRow kErrorRows[] = {
#include "eccl_errors.inc"
};
#undef ECCL_ERROR
constexpr hvd::ErrorTable kErrors("ECCL", kErrorRows);

EcclApi g_api;
std::string g_version;

// The simulator in this backend's wheel, beside the backend itself. A vendor's own backend names its library here
// ("libeccl.so") and leaves the search to the loader.
std::string default_library() {
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&default_library), &here) == 0) return "libeccl_sim.so";
  const std::string path = here.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "libeccl_sim.so";
}

// The function's name: "f" of "f(a, b)".
std::string function_of(const char* call) { return std::string(call, std::strcspn(call, "(")); }

[[noreturn]] void unavailable(const std::string& text) { throw hvd::Error(HVD_E_UNAVAILABLE, text); }

void fill(void* library, const std::string& path) {
#define ECCL_OPTIONAL_FUNCTION(name) g_api.name = reinterpret_cast<decltype(g_api.name)>(dlsym(library, #name));
#define ECCL_FUNCTION(name)    \
  ECCL_OPTIONAL_FUNCTION(name) \
  if (g_api.name == nullptr) unavailable("'" + path + "' has no function " #name "; is it ECCL (option library)?");
#include "eccl_functions.inc"
}

}  // namespace

const EcclApi& eccl() { return g_api; }
const char* eccl_version() { return g_version.c_str(); }

void load_eccl() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!g_version.empty()) return;
  const std::string path = hvd::option("library", default_library());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) unavailable(std::string(dlerror()) + " (option library = '" + path + "')");
  fill(library, path);
  int version = 0;
  ECCL(ecclGetVersion(&version));
  g_version = path.substr(path.rfind('/') + 1) + " " + std::to_string(version / 10000) + "." +
              std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

void check_eccl(ecclResult_t result, const char* call, ecclComm_t comm) {
  if (result != ecclSuccess) kErrors.check(result, function_of(call).c_str(), g_api.ecclGetLastError(comm));
}

// The device runtime has many codes. The engine distinguishes two kinds: out of memory, and any other failure.
void check_tops(topsError_t result, const char* call) {
  if (result == topsSuccess) return;
  const std::string text = function_of(call) + ": " + g_api.topsGetErrorString(result);
  throw hvd::Error(result == topsErrorOutOfMemory ? HVD_E_NOMEM : HVD_E_DEVICE, text, 0, result);
}
