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
// executable; the Python environment's; the one that the system's loader finds. Throws HVD_E_UNAVAILABLE with the
// places it looked at and, if it only found libraries of another family than the launcher's, with both families. Never
// opens a library of another family than the launcher's: its processes would each be alone.
FoundLibrary find_library();
