// Opening a vendor's library at run time: its functions, its file, and what the process has loaded already.
//
// Header-only, C++17. Any thread. Link with ${CMAKE_DL_LIBS}.
#ifndef HVD_BACKEND_LIBRARY_HPP_
#define HVD_BACKEND_LIBRARY_HPP_

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

#pragma GCC visibility push(hidden)
namespace hvd {

// The function `name` of an opened library; a NULL pointer if it has none.
template <class F>
void look_up(void* library, const char* name, F& slot) {
  slot = reinterpret_cast<F>(dlsym(library, name));
}

// The path of an opened library's file; `asked`, which it was opened by, may be a bare name.
inline std::string path_of_library(void* library, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != nullptr && *map->l_name != '\0') return map->l_name;
  return asked;
}

// The paths of all libraries that the process has loaded.
inline std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != '\0')
          static_cast<std::vector<std::string>*>(out)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_LIBRARY_HPP_
