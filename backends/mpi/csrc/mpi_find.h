// Which MPI library this process uses.
#pragma once

#include <string>

#include "mpi_abi.h"

struct FoundLibrary {
  void* handle;
  std::string path;
  Family family;
};

// In this order: option `library`; the one that the process has loaded (mpi4py's); the launcher's, by the place of its
// executable; the Python environment's; whatever the system's loader finds. Throws HVD_E_UNAVAILABLE: what was looked
// at, and, when the only ones found are not of the launcher's family, what both are. Never opens a library of another
// family than the launcher's: its processes would each be alone.
FoundLibrary find_library();
