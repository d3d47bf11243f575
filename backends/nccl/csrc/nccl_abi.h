// The types of NCCL's binary interface since 2.19, in declarations of this backend: nccl.h would need a CUDA toolkit.
// RCCL's are the same. Streams are CUDA's handles, carried as void*.
#pragma once

#include <cstddef>
#include <cstdint>

// Numbers are written as code (major * 10000 + minor * 100 + patch) wherever NCCL writes versions.
inline constexpr int kNcclLeastVersion = 21900;
inline constexpr int kNcclFloat8Version = 22400;

typedef struct ncclComm* ncclComm_t;
struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t : int32_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8  // since 2.32
};

// Operators that a communicator creates have numbers from 5 on.
enum ncclRedOp_t : int32_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclMaxRedOp = 0x7fffffff
};

enum ncclDataType_t : int32_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,  // since 2.24
  ncclFloat8e5m2 = 11
};

enum ncclScalarResidence_t : int32_t { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

// The configuration of 2.19. Later libraries read `size` bytes, and treat fields that are newer than `version` as
// unset. The last field is padding in 2.19, and a field that has to be unset in later versions.
inline constexpr int32_t kNcclUnset = INT32_MIN;
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  uint32_t magic = 0xcafebeef;
  uint32_t version = kNcclLeastVersion;
  int32_t blocking = kNcclUnset;
  int32_t cga_cluster_size = kNcclUnset;
  int32_t min_ctas = kNcclUnset;
  int32_t max_ctas = kNcclUnset;
  const char* net_name = nullptr;
  int32_t split_share = kNcclUnset;
  int32_t padding = kNcclUnset;
};
static_assert(sizeof(ncclConfig_t) == 48 && sizeof(ncclUniqueId) == 128);
