// See vendor.h.
#include "vendor.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

namespace torch_gcu {
namespace {

std::atomic<const Vendor*> g_table{nullptr};
std::atomic<bool> g_forked{false};
std::atomic<Opener> g_opener{nullptr};

std::string error_of_dl() {
  const char* text = ::dlerror();
  return text ? text : "unknown error";
}

}  // namespace

std::string open_vendor(const std::string& file) {
  static std::mutex once;
  std::lock_guard lock(once);
  if (g_table.load() != nullptr) return "";
  // The same file as the communication backend's is the same instance: streams can be exchanged.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return error_of_dl();
  static Vendor table;
#define TORCH_GCU_RESOLVE(name)                                                 \
  table.name = reinterpret_cast<decltype(table.name)>(::dlsym(library, #name)); \
  if (table.name == nullptr) return file + " has no function " #name;
  TORCH_GCU_VENDOR_FUNCTIONS(TORCH_GCU_RESOLVE)
#undef TORCH_GCU_RESOLVE
  ::pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
  g_table.store(&table);
  return "";
}

bool in_forked_child() noexcept { return g_forked.load(); }

bool vendor_usable() noexcept { return g_table.load() != nullptr && !g_forked.load(); }

void set_opener(Opener opener) noexcept { g_opener.store(opener); }

const Vendor& vendor() {
  const Vendor* table = g_table.load(std::memory_order_acquire);
  if (table == nullptr) {
    if (const Opener open = g_opener.load()) open();
    table = g_table.load(std::memory_order_acquire);
  }
  TORCH_CHECK(table != nullptr,
              "torch.gcu: no device: the vendor's library could not be opened. torch.gcu.why_unavailable() says why");
  TORCH_CHECK(!g_forked.load(std::memory_order_relaxed),
              "torch.gcu: a forked process cannot use the device of its parent. Use the start method 'spawn', or touch "
              "the device after the fork only");
  return *table;
}

void check(topsError_t code, const char* call) {
  if (code == topsSuccess) return;
  TORCH_CHECK(false, "torch.gcu: ", call, " failed: ", vendor().topsGetErrorString(code), " (",
              static_cast<int64_t>(code), ")");
}

}  // namespace torch_gcu
