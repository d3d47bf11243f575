// What tests choose by environment variables, beside those of names.cc. Read at the first call.
#pragma once

namespace cusim {

struct Settings {
  int driver_version;  // SIM_CUDA_DRIVER_VERSION, as cuDriverGetVersion gives it: 12080
  int arch;            // SIM_CUDA_ARCH, compute capability times ten: 90
  int nccl_version;    // SIM_NCCL_VERSION, as ncclGetVersion gives it: 22703
  int connect_ms;      // SIM_NCCL_CONNECT_MS: how long what NCCL does in the background takes at least: 3
  bool silent_death;   // SIM_NCCL_SILENT_DEATH=1: a peer's death is not noticed, as within a host without a network
  bool multi_rank;     // NCCL_MULTI_RANK_GPU_ENABLE=1, from 2.30.3 on: ranks may share a device
};

const Settings& settings();

}  // namespace cusim
