// The part of TensorFlow's C API that a device and its kernels need, in declarations of our own: the library builds
// without TensorFlow, and one build serves all versions. Functions are looked up in the process (tensorflow.h).
//
// tests/horovod/tensorflow/tf_abi_check.cc compares the structures with TensorFlow's headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tf_gcu {

using TF_Bool = unsigned char;

struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

enum TF_Code { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_FAILED_PRECONDITION = 9, TF_INTERNAL = 13 };
enum TF_DataType { TF_FLOAT = 1, TF_DOUBLE = 2 };

// ------------------------------------------------------------------------ tensorflow/c/experimental/stream_executor

using SP_Stream = struct SP_Stream_st*;
using SP_Event = struct SP_Event_st*;
using SP_Timer = struct SP_Timer_st*;
using SE_StatusCallbackFn = void (*)(void*, TF_Status*);

enum SE_EventStatus { SE_EVENT_UNKNOWN, SE_EVENT_ERROR, SE_EVENT_PENDING, SE_EVENT_COMPLETE };

struct SP_TimerFns {
  size_t struct_size;
  void* ext;
  uint64_t (*nanoseconds)(SP_Timer timer);
};

struct SP_AllocatorStats {
  size_t struct_size;
  int64_t num_allocs, bytes_in_use, peak_bytes_in_use, largest_alloc_size;
  int8_t has_bytes_limit;
  int64_t bytes_limit, bytes_reserved, peak_bytes_reserved;
  int8_t has_bytes_reservable_limit;
  int64_t bytes_reservable_limit, largest_free_block_bytes;
};

struct SP_DeviceMemoryBase {
  size_t struct_size;
  void* ext;
  void* opaque;
  uint64_t size;
  uint64_t payload;
};

struct SP_Device {
  size_t struct_size;
  void* ext;
  int32_t ordinal;
  void* device_handle;
  const char* hardware_name;
  const char* device_vendor;
  const char* pci_bus_id;
};

struct SE_CreateDeviceParams {
  size_t struct_size;
  void* ext;
  int32_t ordinal;
  SP_Device* device;
};

struct SP_DeviceFns {
  size_t struct_size;
  void* ext;
  int32_t (*get_numa_node)(const SP_Device* device);
  int64_t (*get_memory_bandwidth)(const SP_Device* device);
  double (*get_gflops)(const SP_Device* device);
};

struct SE_CreateDeviceFnsParams {
  size_t struct_size;
  void* ext;
  SP_DeviceFns* device_fns;
};

struct SP_StreamExecutor {
  size_t struct_size;
  void* ext;
  void (*allocate)(const SP_Device*, uint64_t size, int64_t memory_space, SP_DeviceMemoryBase* mem);
  void (*deallocate)(const SP_Device*, SP_DeviceMemoryBase* memory);
  void* (*host_memory_allocate)(const SP_Device*, uint64_t size);
  void (*host_memory_deallocate)(const SP_Device*, void* mem);
  void* (*unified_memory_allocate)(const SP_Device*, uint64_t bytes);
  void (*unified_memory_deallocate)(const SP_Device*, void* location);
  TF_Bool (*get_allocator_stats)(const SP_Device*, SP_AllocatorStats* stats);
  TF_Bool (*device_memory_usage)(const SP_Device*, int64_t* free, int64_t* total);
  void (*create_stream)(const SP_Device*, SP_Stream* stream, TF_Status*);
  void (*destroy_stream)(const SP_Device*, SP_Stream stream);
  void (*create_stream_dependency)(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status*);
  void (*get_stream_status)(const SP_Device*, SP_Stream stream, TF_Status*);
  void (*create_event)(const SP_Device*, SP_Event* event, TF_Status*);
  void (*destroy_event)(const SP_Device*, SP_Event event);
  SE_EventStatus (*get_event_status)(const SP_Device*, SP_Event event);
  void (*record_event)(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*);
  void (*wait_for_event)(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*);
  void (*create_timer)(const SP_Device*, SP_Timer* timer, TF_Status*);
  void (*destroy_timer)(const SP_Device*, SP_Timer timer);
  void (*start_timer)(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status*);
  void (*stop_timer)(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status*);
  void (*memcpy_dtoh)(const SP_Device*, SP_Stream stream, void* host_dst, const SP_DeviceMemoryBase* device_src,
                      uint64_t size, TF_Status*);
  void (*memcpy_htod)(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device_dst, const void* host_src,
                      uint64_t size, TF_Status*);
  void (*memcpy_dtod)(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device_dst,
                      const SP_DeviceMemoryBase* device_src, uint64_t size, TF_Status*);
  void (*sync_memcpy_dtoh)(const SP_Device*, void* host_dst, const SP_DeviceMemoryBase* device_src, uint64_t size,
                           TF_Status*);
  void (*sync_memcpy_htod)(const SP_Device*, SP_DeviceMemoryBase* device_dst, const void* host_src, uint64_t size,
                           TF_Status*);
  void (*sync_memcpy_dtod)(const SP_Device*, SP_DeviceMemoryBase* device_dst, const SP_DeviceMemoryBase* device_src,
                           uint64_t size, TF_Status*);
  void (*block_host_for_event)(const SP_Device*, SP_Event event, TF_Status*);
  void (*block_host_until_done)(const SP_Device*, SP_Stream stream, TF_Status*);
  void (*synchronize_all_activity)(const SP_Device*, TF_Status*);
  void (*mem_zero)(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint64_t size, TF_Status*);
  void (*memset)(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint8_t pattern, uint64_t size,
                 TF_Status*);
  void (*memset32)(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint32_t pattern, uint64_t size,
                   TF_Status*);
  TF_Bool (*host_callback)(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback_fn, void* callback_arg);
};

struct SE_CreateStreamExecutorParams {
  size_t struct_size;
  void* ext;
  SP_StreamExecutor* stream_executor;
};

struct SP_Platform {
  size_t struct_size;
  void* ext;
  const char* name;
  const char* type;
  TF_Bool supports_unified_memory;
  TF_Bool use_bfc_allocator;
  TF_Bool force_memory_growth;
};

struct SP_PlatformFns {
  size_t struct_size;
  void* ext;
  void (*get_device_count)(const SP_Platform*, int* device_count, TF_Status*);
  void (*create_device)(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*);
  void (*destroy_device)(const SP_Platform*, SP_Device* device);
  void (*create_device_fns)(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*);
  void (*destroy_device_fns)(const SP_Platform*, SP_DeviceFns* device_fns);
  void (*create_stream_executor)(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*);
  void (*destroy_stream_executor)(const SP_Platform*, SP_StreamExecutor* stream_executor);
  void (*create_timer_fns)(const SP_Platform*, SP_TimerFns* timer, TF_Status*);
  void (*destroy_timer_fns)(const SP_Platform*, SP_TimerFns* timer_fns);
};

struct SE_PlatformRegistrationParams {
  size_t struct_size;
  void* ext;
  int32_t major_version, minor_version, patch_version;
  SP_Platform* platform;
  SP_PlatformFns* platform_fns;
  void (*destroy_platform)(SP_Platform* platform);
  void (*destroy_platform_fns)(SP_PlatformFns* platform_fns);
};

// Up to and with the last member, without the padding behind it: what `struct_size` is.
#define TF_GCU_SIZE(type, last) (offsetof(type, last) + sizeof(type::last))

constexpr int32_t kVersion[] = {0, 0, 1};  // SE_MAJOR, SE_MINOR, SE_PATCH

// ------------------------------------------------------------------------------------------- tensorflow/c, functions

#define TF_GCU_TENSORFLOW_FUNCTIONS(F)                                                                          \
  F(TF_Status*, TF_NewStatus, ())                                                                               \
  F(void, TF_DeleteStatus, (TF_Status*))                                                                        \
  F(void, TF_SetStatus, (TF_Status*, TF_Code, const char* text))                                                \
  F(TF_Code, TF_GetCode, (const TF_Status*))                                                                    \
  F(TF_KernelBuilder*, TF_NewKernelBuilder,                                                                     \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                             \
     void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))                                      \
  F(void, TF_KernelBuilder_TypeConstraint, (TF_KernelBuilder*, const char* attribute, TF_DataType, TF_Status*)) \
  F(void, TF_RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))                          \
  F(void, TF_OpKernelConstruction_GetAttrBool,                                                                  \
    (TF_OpKernelConstruction*, const char* attribute, TF_Bool*, TF_Status*))                                    \
  F(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                              \
  F(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                        \
  F(void, TF_GetInput, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                               \
  F(TF_Tensor*, TF_AllocateOutput,                                                                              \
    (TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims, int ndims, size_t bytes, TF_Status*))    \
  F(SP_Stream, TF_GetStream, (TF_OpKernelContext*, TF_Status*))                                                 \
  F(void, TF_DeleteTensor, (TF_Tensor*))                                                                        \
  F(TF_DataType, TF_TensorType, (const TF_Tensor*))                                                             \
  F(int, TF_NumDims, (const TF_Tensor*))                                                                        \
  F(int64_t, TF_Dim, (const TF_Tensor*, int index))                                                             \
  F(void*, TF_TensorData, (const TF_Tensor*))

}  // namespace tf_gcu
