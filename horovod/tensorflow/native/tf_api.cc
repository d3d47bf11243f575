// The functions of TensorFlow's C API, found in the process. See tf_api.h.
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

// Whatever version its file name carries: the one that is in the process is the one whose ops these become.
void* opened(const char* part_of_name) {
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
  static void* handle = opened("libtensorflow_framework.so");
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
  void* handle = opened(library);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

}  // namespace hvd_tf::tf
