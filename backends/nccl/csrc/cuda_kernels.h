// The kernels of one device: their machine code, loaded by the driver, and their launches. Called with the
// device's context current; any thread.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_api.h"
#include "kernels/copy_launch.h"

class CudaKernels {
 public:
  static constexpr uint32_t kMostItems = 1u << 16;  // of one batch: a table of 1.5 MiB

  // arch: 90 for sm_90. If the code cannot be loaded there is only a warning; see copy_scale().
  CudaKernels(int arch, int processors);
  // The context must be current, and no launch in flight.
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;

  // Enqueues all copies as one launch; none overlaps another. Without code, copies that change no bits go one by
  // one, and all others fail with HVD_E_UNSUPPORTED.
  void copy_scale(CUstream stream, const std::vector<hvd_kernels::Copy>& copies);
  // Fails with HVD_E_UNSUPPORTED without code.
  void reduce(CUstream stream, const hvd_kernels::ReduceArgs& args);

  // The context was destroyed, and with it all objects that the destructor would free.
  void forget();

 private:
  // Memory for a table that is too long for the arguments, on host and device. Used again when `done` is reached.
  struct Slot {
    void* host = nullptr;
    CUdeviceptr device = 0;
    size_t bytes = 0;
    CUevent done = nullptr;
  };

  void load(int arch);
  void start(CUfunction function, CUstream stream, uint32_t blocks, void* args);
  void copy_one_by_one(CUstream stream, const std::vector<hvd_kernels::Copy>& copies);
  Slot& free_slot(size_t bytes);
  void give_back(Slot& slot);

  const uint32_t processors_;
  CUmodule module_ = nullptr;
  CUfunction copy_scale_ = nullptr, reduce_ = nullptr;
  std::string why_not_;

  std::mutex mutex_;  // around the slots and the launches that use them
  std::deque<Slot> slots_;
};
