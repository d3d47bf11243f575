// See tensorflow.h.
#include "tensorflow.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <mutex>

namespace tf_gcu {
namespace {

TensorFlow g_table;

// The library that has the C API; its name may end with any number.
int is_framework(dl_phdr_info* info, size_t, void* found) {
  if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, "libtensorflow_framework.so") == nullptr) return 0;
  *static_cast<std::string*>(found) = info->dlpi_name;
  return 1;
}

}  // namespace

std::string find_tensorflow() {
  static std::mutex once;
  static bool filled = false;
  std::lock_guard lock(once);
  if (filled) return "";
  std::string path;
  ::dl_iterate_phdr(&is_framework, &path);
  if (path.empty()) return "TensorFlow is not loaded in this process; import tensorflow first";
  void* library = ::dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) return ::dlerror();
#define TF_GCU_RESOLVE(result, name, arguments)                                     \
  g_table.name = reinterpret_cast<decltype(g_table.name)>(::dlsym(library, #name)); \
  if (g_table.name == nullptr) return path + " has no function " #name;
  TF_GCU_TENSORFLOW_FUNCTIONS(TF_GCU_RESOLVE)
#undef TF_GCU_RESOLVE
  filled = true;
  return "";
}

const TensorFlow& tensorflow() { return g_table; }

}  // namespace tf_gcu
