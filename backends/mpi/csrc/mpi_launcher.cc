// See mpi_launcher.h. Called once, when the backend is loaded.
#include "mpi_launcher.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace {

constexpr const char* kCommands[] = {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun",
                                     "orted",  "prterun", "prte",          "prted",           "mpirun.real"};

std::string file_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool is_launcher(const std::string& path) {
  const std::string file = file_of(path);
  return std::any_of(std::begin(kCommands), std::end(kCommands), [&](const char* c) { return file == c; });
}

std::string executable_of(int pid) {
  char path[PATH_MAX];
  const ssize_t n = readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

// 0 if it is unknown.
int parent_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("PPid:", 0) == 0) return std::atoi(line.c_str() + 5);
  }
  return 0;
}

void add(std::vector<std::string>& prefixes, const std::string& executable) {
  const std::string prefix = folder_of(folder_of(executable));
  if (!prefix.empty() && std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end()) {
    prefixes.push_back(prefix);
  }
}

void add_ancestors(std::vector<std::string>& prefixes) {
  int pid = getppid();
  for (int up = 0; pid > 1 && up < 64; ++up, pid = parent_of(pid)) {
    const std::string executable = executable_of(pid);
    if (is_launcher(executable)) add(prefixes, executable);
  }
}

void add_from_path(std::vector<std::string>& prefixes) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* command : {"mpirun", "mpiexec"}) {
      const std::string candidate = folder + "/" + command;
      if (folder.empty() || access(candidate.c_str(), X_OK) != 0) continue;
      // As it is named, and where its links lead: either may have the library beside it.
      add(prefixes, candidate);
      char real[PATH_MAX];
      if (realpath(candidate.c_str(), real) != nullptr) add(prefixes, real);
      return;
    }
  }
}

}  // namespace

Launcher find_launcher() {
  Launcher found;
  const auto say = [&](Family family, const char* variable) {
    found.family = family;
    found.evidence = std::string(variable) + "=" + std::getenv(variable) + " in the environment";
  };
  // srun sets PMI_RANK for either family, but not the variables of Hydra's own.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    say(Family::kOpenMpi, "OMPI_COMM_WORLD_SIZE");
  } else if (std::getenv("PMI_RANK") != nullptr && std::getenv("MPI_LOCALNRANKS") != nullptr) {
    say(Family::kMpich, "MPI_LOCALNRANKS");
  }
  add_ancestors(found.prefixes);
  add_from_path(found.prefixes);
  return found;
}
