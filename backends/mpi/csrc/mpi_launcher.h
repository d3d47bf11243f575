// The launcher that has started this process, as its environment and its ancestors show.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mpi_abi.h"

struct Launcher {
  std::optional<Family> family;       // absent: not a launcher of MPI's, or one (srun) that starts ranks of any MPI
  std::string evidence;               // "OMPI_COMM_WORLD_SIZE=2 in the environment", for messages
  std::vector<std::string> prefixes;  // installations of launchers: of an ancestor first, then of mpirun on the PATH
};

// Reads the environment and /proc; starts nothing.
Launcher find_launcher();
