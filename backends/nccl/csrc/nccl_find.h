// Which NCCL library this process uses.
#pragma once

#include <optional>
#include <string>

struct FoundNccl {
  void* handle;
  std::string path;
};

// In this order: the one that the process has loaded, under any path (PyTorch's); option `library`;
// HOROVOD_NCCL_HOME; the wheels nvidia-nccl-cu12 and -cu13 in the Python environments that this process uses; the one
// that the system's loader finds. Never a second copy beside a loaded one: an option that names another file than that
// is an error.
//
// No value if no library was found; *tried then lists the places. Throws HVD_E_UNAVAILABLE if an option names a library
// that cannot be opened. One thread at a time.
std::optional<FoundNccl> find_nccl(std::string* tried);
