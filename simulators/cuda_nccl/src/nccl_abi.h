// The part of NCCL's binary interface that is simulated, in words of our own. Results, types and reductions have ECCL's
// numbers, so that the sources of that simulator take them as they are.
#pragma once

#include <eccl.h>

#include "cuda_abi.h"

namespace cusim {
struct Nccl;
}
using ncclComm_t = cusim::Nccl*;
using ncclResult_t = ecclResult_t;
constexpr auto ncclSuccess = ecclSuccess;
constexpr auto ncclUnhandledCudaError = ecclUnhandledTopsError;
constexpr auto ncclSystemError = ecclSystemError;
constexpr auto ncclInternalError = ecclInternalError;
constexpr auto ncclInvalidArgument = ecclInvalidArgument;
constexpr auto ncclInvalidUsage = ecclInvalidUsage;
constexpr auto ncclRemoteError = ecclRemoteError;
constexpr auto ncclInProgress = ecclInProgress;

using ncclUniqueId = ecclUniqueId;
using ncclDataType_t = ecclDataType_t;
using ncclRedOp_t = ecclRedOp_t;
static_assert(sizeof(ncclUniqueId) == 128 && ecclBfloat16 == 9 && ecclAvg == 4, "NCCL's numbers");

// The beginning of the configuration, which is the same in all versions.
struct ncclConfig_t {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int32_t blocking;
};
constexpr uint32_t kConfigMagic = 0xcafebeef;
constexpr int32_t kConfigUnset = INT32_MIN;
