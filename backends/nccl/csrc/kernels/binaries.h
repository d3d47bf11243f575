// The kernels as the driver takes them, in this library's own data. The definitions are written by kernels.cmake.
#pragma once

#include <cstddef>

namespace hvd_kernels {

struct Binary {
  int arch;          // 90 for sm_90
  const void* data;  // a cubin
  size_t bytes;
};

// One per architecture that there was a compiler for; ends with one whose data are NULL.
const Binary* binaries();

// The same as text in an old version of NVIDIA's virtual machine language, for any other device. Ends in a NUL.
const char* ptx();

}  // namespace hvd_kernels
