// Finds the functions of TensorFlow's C API in the process. See tf_api.h.
#include "tf_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <utility>

namespace hvd_tf::tf {

#define X(result, name, arguments) result(*name) arguments = nullptr;
HVD_TF_API(X)
#undef X

namespace {

// A handle of the loaded library whose file name contains `part_of_name` (the version in the name may differ); null if
// no such library is loaded.
void* loaded_library(const char* part_of_name) {
  std::pair<const char*, std::string> search{part_of_name, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<decltype(search)*>(data);
        if (info->dlpi_name == nullptr || strstr(info->dlpi_name, wanted->first) == nullptr) return 0;
        wanted->second = info->dlpi_name;
        return 1;
      },
      &search);
  return search.second.empty() ? nullptr : dlopen(search.second.c_str(), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
}

void* framework() {
  static void* handle = loaded_library("libtensorflow_framework.so");
  return handle;
}

}  // namespace

std::string resolve() {
  if (framework() == nullptr) return "libtensorflow_framework.so (not in this process)";
  std::string missing;
#define X(result, name, arguments)                                               \
  name = reinterpret_cast<result(*) arguments>(dlsym(framework(), "TF_" #name)); \
  if (name == nullptr) missing += std::string(missing.empty() ? "" : ", ") + "TF_" #name;
  HVD_TF_API(X)
#undef X
  return missing;
}

void* symbol(const char* name) { return framework() == nullptr ? nullptr : dlsym(framework(), name); }

void* symbol_of(const char* library, const char* name) {
  void* handle = loaded_library(library);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

}  // namespace hvd_tf::tf
