// The part of the CUDA driver's binary interface that is simulated, in words of our own: handles, numbers, and how the
// functions are exported. Signatures stand with the functions.
#pragma once

#include <cstddef>
#include <cstdint>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
// Handles are the addresses of these.
namespace cusim {
struct Context;
struct Stream;
struct Event;
struct Module;
struct Function;
struct Graph;
}  // namespace cusim
using CUcontext = cusim::Context*;
using CUstream = cusim::Stream*;  // 0 and 1: legacy default stream; 2: the calling thread's
using CUevent = cusim::Event*;
using CUmodule = cusim::Module*;
using CUfunction = cusim::Function*;
using CUgraph = cusim::Graph*;
using CUgraphExec = cusim::Graph*;

enum CUstreamCaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CUstreamCaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalidated = 2 };
constexpr unsigned kStreamNonBlocking = 1;
