// See nccl_find.h. Called once, when the backend is loaded.
#include "nccl_find.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <hvd/backend.hpp>
#include <hvd/backend_library.hpp>
#include <vector>

namespace {

constexpr const char* kName = "libnccl.so.2";

// By its name, then by the paths of all loaded files: a file that was opened by its path need not answer to the name.
std::optional<FoundNccl> loaded(const std::vector<std::string>& objects) {
  if (void* library = dlopen(kName, RTLD_NOW | RTLD_NOLOAD))
    return FoundNccl{library, hvd::path_of_library(library, kName)};
  for (const std::string& path : objects) {
    if (path.compare(path.rfind('/') + 1, std::strlen("libnccl.so"), "libnccl.so") != 0) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) return FoundNccl{library, path};
  }
  return std::nullopt;
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat one, other;
  return stat(a.c_str(), &one) == 0 && stat(b.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

std::optional<FoundNccl> open(const std::string& name, std::string* tried) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *tried += std::string("; ") + dlerror();
    return std::nullopt;
  }
  return FoundNccl{library, hvd::path_of_library(library, name)};
}

// An option is obeyed, or is an error; it is never ignored.
FoundNccl wished(const std::string& wish, const std::optional<FoundNccl>& already) {
  if (already) {
    void* same = dlopen(wish.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (same == already->handle || same_file(wish, already->path)) return *already;
    throw hvd::Error(HVD_E_UNAVAILABLE, "option library names '" + wish + "', but the process has loaded '" +
                                            already->path +
                                            "' (PyTorch's?), and two copies of NCCL in one process do not get along; "
                                            "leave the option out, or load the other one first");
  }
  std::string tried;
  if (const auto found = open(wish, &tried)) return *found;
  throw hvd::Error(HVD_E_UNAVAILABLE, "option library: " + tried.substr(2));
}

// The folders of Python packages that the process uses: its own first, then those that it has loaded libraries from.
std::vector<std::string> sites(const std::vector<std::string>& objects) {
  std::vector<std::string> paths, found;
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&sites), &here) != 0) paths.push_back(here.dli_fname);
  paths.insert(paths.end(), objects.begin(), objects.end());
  for (const std::string& path : paths) {
    for (const char* name : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = path.rfind(name);
      if (at == std::string::npos) continue;
      const std::string site = path.substr(0, at + std::strlen(name) - 1);
      if (std::find(found.begin(), found.end(), site) == found.end()) found.push_back(site);
    }
  }
  return found;
}

std::string from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

std::optional<FoundNccl> find_nccl(std::string* tried) {
  const std::vector<std::string> all = hvd::loaded_libraries();
  const auto already = loaded(all);
  const std::string wish = hvd::option("library", "");
  if (!wish.empty()) return wished(wish, already);
  if (already) return already;
  std::vector<std::string> folders;
  if (const std::string home = from_environment("HOROVOD_NCCL_HOME"); !home.empty()) {
    folders.push_back(home + "/lib");
    folders.push_back(home + "/lib64");
  }
  if (const std::string lib = from_environment("HOROVOD_NCCL_LIB"); !lib.empty()) folders.push_back(lib);
  for (const std::string& site : sites(all)) folders.push_back(site + "/nvidia/nccl/lib");
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + kName;
    struct stat file;
    if (stat(path.c_str(), &file) != 0) continue;
    if (const auto found = open(path, tried)) return found;
  }
  return open(kName, tried);
}
