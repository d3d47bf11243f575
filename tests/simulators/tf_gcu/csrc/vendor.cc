// See vendor.h.
#include "vendor.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "tensorflow.h"

namespace tf_gcu {
namespace {

std::atomic<const Vendor*> g_table{nullptr};

}  // namespace

std::string open_vendor(const std::string& file) {
  static std::mutex once;
  std::lock_guard lock(once);
  if (g_table.load() != nullptr) return "";
  // The same file as the communication backend's is the same instance: streams can be exchanged.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = ::dlerror();
    return text ? text : "unknown error";
  }
  static Vendor table;
#define TF_GCU_RESOLVE(name)                                                    \
  table.name = reinterpret_cast<decltype(table.name)>(::dlsym(library, #name)); \
  if (table.name == nullptr) return file + " has no function " #name;
  TF_GCU_VENDOR_FUNCTIONS(TF_GCU_RESOLVE)
#undef TF_GCU_RESOLVE
  g_table.store(&table);
  return "";
}

const Vendor* vendor_if_open() noexcept { return g_table.load(std::memory_order_acquire); }

const Vendor& vendor() noexcept { return *vendor_if_open(); }

bool report(topsError_t code, const char* call, TF_Status* status) {
  if (code == topsSuccess) return true;
  const std::string text = std::string("GCU: ") + call + " failed: " + vendor().topsGetErrorString(code) + " (" +
                           std::to_string(static_cast<int>(code)) + ")";
  tensorflow().TF_SetStatus(status, TF_INTERNAL, text.c_str());
  return false;
}

OnDevice::OnDevice(int ordinal) {
  if (vendor().topsGetDevice(&before_) != topsSuccess || before_ == ordinal) return;
  changed_ = vendor().topsSetDevice(ordinal) == topsSuccess;
}

OnDevice::~OnDevice() {
  if (changed_) vendor().topsSetDevice(before_);
}

}  // namespace tf_gcu
