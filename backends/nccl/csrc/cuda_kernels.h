// The kernels of one device: their machine code, loaded by the driver, and the launches of them. Called with the
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

  // arch: 90 for sm_90. Code that cannot be loaded is no error yet: a warning now, and see copy_scale().
  CudaKernels(int arch, int processors);
  // The context is current, and nothing here is in use any more.
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;

  // Enqueues all copies as one launch; none overlaps another. Without code copies that change nothing go one by one,
  // and anything else is HVD_E_UNSUPPORTED.
  void copy_scale(CUstream stream, const std::vector<hvd_kernels::Copy>& copies);
  // HVD_E_UNSUPPORTED without code.
  void reduce(CUstream stream, const hvd_kernels::ReduceArgs& args);

  // The context has died, and with it all that would have to be given back.
  void forget();

 private:
  // Room for a table that is too long for the arguments, on both sides. Used again when `done` has been reached.
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
