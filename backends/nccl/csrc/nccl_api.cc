// See nccl_api.h. The table is filled under a mutex and never changes again.
#include "nccl_api.h"

#include <atomic>
#include <cstring>
#include <hvd/backend_library.hpp>
#include <mutex>

#include "nccl_find.h"

namespace {

#define NCCL_ERROR(vendor_code, code, flags) {vendor_code, #vendor_code, code, flags},
constexpr hvd::ErrorRow kErrorRows[] = {
#include "nccl_errors.inc"
};
constexpr hvd::ErrorTable kErrors("NCCL", kErrorRows);

constexpr const char* kHow =
    "pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12), or name one: "
    "HOROVOD_BACKEND_NCCL_LIBRARY=/path/libnccl.so.2";

std::atomic<const NcclApi*> g_api{nullptr};
std::string g_vendor_lib, g_why_not;

[[noreturn]] void unavailable(const std::string& text) { throw hvd::Error(HVD_E_UNAVAILABLE, text); }

std::string version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

// The version first: for an old library it is a better reason than the name of a missing function.
NcclApi fill(const FoundNccl& found) {
  NcclApi api;
  api.path = found.path;
  hvd::look_up(found.handle, "ncclGetVersion", api.ncclGetVersion);
  if (api.ncclGetVersion == nullptr || api.ncclGetVersion(&api.version) != ncclSuccess) {
    unavailable("'" + found.path + "' does not tell a version (ncclGetVersion); it is no NCCL library");
  }
  // Before 2.9 a version was written with three digits fewer.
  if (api.version < kNcclLeastVersion) {
    const bool old = api.version < 10000;
    const std::string version = old ? std::to_string(api.version / 1000) + "." +
                                          std::to_string(api.version / 100 % 10) + "." +
                                          std::to_string(api.version % 100)
                                    : version_text(api.version);
    unavailable("'" + found.path + "' is NCCL " + version + ", and 2.19 or newer is needed: " + kHow);
  }
#define NCCL_OPTIONAL_FUNCTION(name, result, arguments) hvd::look_up(found.handle, #name, api.name);
#define NCCL_FUNCTION(name, result, arguments)                                                           \
  hvd::look_up(found.handle, #name, api.name);                                                           \
  if (api.name == nullptr) {                                                                             \
    unavailable("'" + found.path + "' (NCCL " + version_text(api.version) + ") has no function " #name); \
  }
#include "nccl_functions.inc"
  return api;
}

// "libnccl.so.2", also if the file has a longer name.
std::string name_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.rfind("libnccl.so", 0) == 0 ? "libnccl.so.2" : name;
}

}  // namespace

void load_nccl() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (g_api.load() != nullptr) return;
  std::string tried;
  const auto found = find_nccl(&tried);
  if (!found) {
    g_why_not = std::string("no NCCL library was found: ") + kHow + tried;
    return;
  }
  static NcclApi api;
  api = fill(*found);
  g_vendor_lib = name_of(api.path) + " " + version_text(api.version);
  g_api.store(&api);
}

const NcclApi* nccl_if_found() { return g_api.load(std::memory_order_acquire); }

const NcclApi& nccl() {
  const NcclApi* const api = nccl_if_found();
  if (api == nullptr) unavailable(g_why_not);
  return *api;
}

const char* nccl_vendor_lib() { return g_vendor_lib.c_str(); }

std::string nccl_fact(const std::string& key) {
  const NcclApi* const api = nccl_if_found();
  if (api == nullptr) return "";
  if (key == "library") return g_vendor_lib + " (" + api->path + ")";
  if (key == "version") return version_text(api->version);
  if (key == "version_code") return std::to_string(api->version);
  return "";
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const NcclApi& api = nccl();
  const char* const text = api.ncclGetLastError != nullptr ? api.ncclGetLastError(comm) : nullptr;
  const std::string name(call, std::strcspn(call, "("));
  kErrors.check(result, name.c_str(), text != nullptr && *text != '\0' ? text : api.ncclGetErrorString(result));
}
