// The three binary interfaces that MPI libraries have, and the constants of each: what mpi.h would say, had we one.
//
// One build serves all of them. Handles travel as integers of a pointer's size: in Open MPI they are addresses of
// objects, in the MPI-5 standard ABI small numbers in pointers, in MPICH's ABI (also Intel MPI, MVAPICH) 32-bit
// integers, of which calls read the lower half and which calls write as four bytes.
#pragma once

#include <cstdint>
#include <hvd/backend.hpp>
#include <string>

using Handle = uintptr_t;

enum class Family { kOpenMpi, kMpich, kStandard };

struct MpiConstants {
  Handle comm_world, errors_return, byte;
  Handle types[HVD_DTYPE_COUNT];  // of the same width and kind; the unsigned integer where MPI has no such kind
  Handle sum, prod, min, max, lor, land;
  void *in_place, *status_ignore;
  int thread_single, thread_funneled, thread_serialized, thread_multiple;
  int error_truncate, error_no_mem, last_usage_error;  // classes 1 .. last_usage_error: the caller's mistakes
  bool handles_are_ints;
};

// "Open MPI", "MPICH", "MPI standard ABI".
const char* family_name(Family family);

// The interface of an opened library: by a symbol for Open MPI, else by its file's name, since MPICH 5 has the
// functions of both other ones.
Family family_of(void* library, const std::string& path);

// Throws HVD_E_UNAVAILABLE when the library lacks one of its objects.
MpiConstants constants_of(Family family, void* library);
