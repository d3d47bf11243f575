// A kernel: the attributes of one operation. TensorFlow makes one for each node of a graph, and one for each set of
// attribute values that is used eagerly.
#pragma once

#include <hvd/frontend_abi.h>

#include <atomic>
#include <string>

#include "habit.h"
#include "tf_api.h"

namespace hvd_tf {

struct Operation {
  const char* type;  // TensorFlow's name of the operation
  hvd_fe_op op;
  bool grouped;
};

inline constexpr Operation kOperations[] = {
    {"HorovodAllreduce", HVD_FE_ALLREDUCE, false},
    {"HorovodGroupedAllreduce", HVD_FE_ALLREDUCE, true},
    {"HorovodAllgather", HVD_FE_ALLGATHER, false},
    {"HorovodGroupedAllgather", HVD_FE_ALLGATHER, true},
    {"HorovodBroadcast", HVD_FE_BROADCAST, false},
    {"HorovodGroupedBroadcast", HVD_FE_BROADCAST, true},
    {"HorovodAlltoall", HVD_FE_ALLTOALL, false},
    {"HorovodReducescatter", HVD_FE_REDUCESCATTER, false},
    {"HorovodGroupedReducescatter", HVD_FE_REDUCESCATTER, true},
    {"HorovodJoin", HVD_FE_JOIN, false},
    {"HorovodBarrier", HVD_FE_BARRIER, false},
};
inline constexpr int kOperationCount = sizeof(kOperations) / sizeof(kOperations[0]);

constexpr bool reduces(hvd_fe_op op) { return op == HVD_FE_ALLREDUCE || op == HVD_FE_REDUCESCATTER; }

struct Kernel {
  const Operation* operation = nullptr;
  int slot = 0;  // the slot of the device type, see devices.h
  std::string name;
  // The kernel is in a loop whose rounds may run at the same time, so each round has a name of its own.
  bool by_round = false;
  int process_set = 0;
  int reduce_op = 0;
  int root_rank = 0;
  double prescale = 1, postscale = 1;
  // The caller waits in this thread, so this thread may drive the engine.
  bool blocking = false;
  mutable Habit habit;
};

// Reads the attributes. Reports a failure to TensorFlow, which then destroys the kernel. Never returns null.
Kernel* make_kernel(const Operation& operation, int slot, TF_OpKernelConstruction* construction);

}  // namespace hvd_tf
