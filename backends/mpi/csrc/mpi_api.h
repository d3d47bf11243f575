// The MPI library as a table of functions and constants, filled when the backend is loaded. Nothing is linked, and no
// mpi.h is needed: see mpi_abi.h.
#pragma once

#include <string>

#include "mpi_abi.h"

struct MpiApi : MpiConstants {
#define MPI_FUNCTION(name, arguments) int(*name) arguments = nullptr;
#include "mpi_functions.inc"
  // Does the library read device memory? Functions of Open MPI and MPICH; NULL if the library lacks them.
  int (*query_cuda)() = nullptr;
  int (*query_rocm)() = nullptr;
  int (*query_gpu)(int, int*) = nullptr;

  Family family{};
  std::string path, version;  // "Open MPI v5.0.11"

  // A handle as a call wrote it: four bytes in MPICH's ABI.
  Handle written(Handle raw) const { return handles_are_ints ? static_cast<uint32_t>(raw) : raw; }
};

// The table; load_mpi() has filled it.
const MpiApi& mpi();

// Finds and opens the library, once; starts nothing in it. Throws HVD_E_UNAVAILABLE.
void load_mpi();

// "Open MPI v5.0.11, /path/libmpi.so.40", for reports.
const char* mpi_vendor_lib();

// Throws unless a call succeeded: MPI's own text, and the code that its error class has here. `call` is its name.
void check_mpi(int result, const char* call);
