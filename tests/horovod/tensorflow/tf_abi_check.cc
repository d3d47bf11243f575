// Compiled, never run: the declarations in tests/simulators/tf_gcu/csrc/tf_abi.h against TensorFlow's own headers.
// Types are not the same, but have to be as long, in the same places, and passed in the same way.
#include <tensorflow/c/experimental/stream_executor/stream_executor.h>
#include <tensorflow/c/kernels.h>
#include <tensorflow/c/tf_datatype.h>
#include <tensorflow/c/tf_status.h>
#include <tensorflow/c/tf_tensor.h>

#include <cstddef>
#include <type_traits>

// A macro there.
static_assert(sizeof(TF_Bool) == 1);
#undef TF_Bool
#include <tf_abi.h>

namespace {

template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
           std::is_floating_point_v<A> == std::is_floating_point_v<B>;
  }
}

// Whether two types are alike; of functions, the result and each argument too.
template <class A, class B>
struct Same : std::bool_constant<alike<A, B>()> {};
template <class R, class... A, class S, class... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) return alike<R, S>() && (alike<A, B>() && ...);
    return false;
  }();
};
static_assert(Same<int (*)(int, void*), unsigned (*)(int, char*)>::value);
static_assert(!Same<int (*)(int, void*), int (*)(void*, int)>::value);
static_assert(!Same<int (*)(int), int (*)(int, int)>::value);

#define MEMBER(type, member)                                                 \
  static_assert(offsetof(::type, member) == offsetof(tf_gcu::type, member)); \
  static_assert(Same<decltype(::type::member), decltype(tf_gcu::type::member)>::value)
#define STRUCT(type, size, last)                         \
  static_assert(sizeof(::type) == sizeof(tf_gcu::type)); \
  static_assert(size == TF_GCU_SIZE(tf_gcu::type, last))

STRUCT(SP_TimerFns, SP_TIMER_FNS_STRUCT_SIZE, nanoseconds);
MEMBER(SP_TimerFns, nanoseconds);

STRUCT(SP_AllocatorStats, SP_ALLOCATORSTATS_STRUCT_SIZE, largest_free_block_bytes);
MEMBER(SP_AllocatorStats, largest_free_block_bytes);

STRUCT(SP_DeviceMemoryBase, SP_DEVICE_MEMORY_BASE_STRUCT_SIZE, payload);
MEMBER(SP_DeviceMemoryBase, opaque);
MEMBER(SP_DeviceMemoryBase, size);
MEMBER(SP_DeviceMemoryBase, payload);

STRUCT(SP_Device, SP_DEVICE_STRUCT_SIZE, pci_bus_id);
MEMBER(SP_Device, ordinal);
MEMBER(SP_Device, device_handle);
MEMBER(SP_Device, hardware_name);
MEMBER(SP_Device, device_vendor);
MEMBER(SP_Device, pci_bus_id);

STRUCT(SE_CreateDeviceParams, SE_CREATE_DEVICE_PARAMS_STRUCT_SIZE, device);
MEMBER(SE_CreateDeviceParams, ordinal);
MEMBER(SE_CreateDeviceParams, device);

STRUCT(SP_DeviceFns, SP_DEVICE_FNS_STRUCT_SIZE, get_gflops);
MEMBER(SP_DeviceFns, get_numa_node);
MEMBER(SP_DeviceFns, get_memory_bandwidth);
MEMBER(SP_DeviceFns, get_gflops);

STRUCT(SE_CreateDeviceFnsParams, SE_CREATE_DEVICE_FNS_PARAMS_STRUCT_SIZE, device_fns);
MEMBER(SE_CreateDeviceFnsParams, device_fns);

STRUCT(SP_StreamExecutor, SP_STREAMEXECUTOR_STRUCT_SIZE, host_callback);
MEMBER(SP_StreamExecutor, allocate);
MEMBER(SP_StreamExecutor, deallocate);
MEMBER(SP_StreamExecutor, host_memory_allocate);
MEMBER(SP_StreamExecutor, host_memory_deallocate);
MEMBER(SP_StreamExecutor, unified_memory_allocate);
MEMBER(SP_StreamExecutor, unified_memory_deallocate);
MEMBER(SP_StreamExecutor, get_allocator_stats);
MEMBER(SP_StreamExecutor, device_memory_usage);
MEMBER(SP_StreamExecutor, create_stream);
MEMBER(SP_StreamExecutor, destroy_stream);
MEMBER(SP_StreamExecutor, create_stream_dependency);
MEMBER(SP_StreamExecutor, get_stream_status);
MEMBER(SP_StreamExecutor, create_event);
MEMBER(SP_StreamExecutor, destroy_event);
MEMBER(SP_StreamExecutor, get_event_status);
MEMBER(SP_StreamExecutor, record_event);
MEMBER(SP_StreamExecutor, wait_for_event);
MEMBER(SP_StreamExecutor, create_timer);
MEMBER(SP_StreamExecutor, destroy_timer);
MEMBER(SP_StreamExecutor, start_timer);
MEMBER(SP_StreamExecutor, stop_timer);
MEMBER(SP_StreamExecutor, memcpy_dtoh);
MEMBER(SP_StreamExecutor, memcpy_htod);
MEMBER(SP_StreamExecutor, memcpy_dtod);
MEMBER(SP_StreamExecutor, sync_memcpy_dtoh);
MEMBER(SP_StreamExecutor, sync_memcpy_htod);
MEMBER(SP_StreamExecutor, sync_memcpy_dtod);
MEMBER(SP_StreamExecutor, block_host_for_event);
MEMBER(SP_StreamExecutor, block_host_until_done);
MEMBER(SP_StreamExecutor, synchronize_all_activity);
MEMBER(SP_StreamExecutor, mem_zero);
MEMBER(SP_StreamExecutor, memset);
MEMBER(SP_StreamExecutor, memset32);
MEMBER(SP_StreamExecutor, host_callback);

STRUCT(SE_CreateStreamExecutorParams, SE_CREATE_STREAM_EXECUTOR_PARAMS_STRUCT_SIZE, stream_executor);
MEMBER(SE_CreateStreamExecutorParams, stream_executor);

STRUCT(SP_Platform, SP_PLATFORM_STRUCT_SIZE, force_memory_growth);
MEMBER(SP_Platform, name);
MEMBER(SP_Platform, type);
MEMBER(SP_Platform, supports_unified_memory);
MEMBER(SP_Platform, use_bfc_allocator);
MEMBER(SP_Platform, force_memory_growth);

STRUCT(SP_PlatformFns, SP_PLATFORM_FNS_STRUCT_SIZE, destroy_timer_fns);
MEMBER(SP_PlatformFns, get_device_count);
MEMBER(SP_PlatformFns, create_device);
MEMBER(SP_PlatformFns, destroy_device);
MEMBER(SP_PlatformFns, create_device_fns);
MEMBER(SP_PlatformFns, destroy_device_fns);
MEMBER(SP_PlatformFns, create_stream_executor);
MEMBER(SP_PlatformFns, destroy_stream_executor);
MEMBER(SP_PlatformFns, create_timer_fns);
MEMBER(SP_PlatformFns, destroy_timer_fns);

STRUCT(SE_PlatformRegistrationParams, SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE, destroy_platform_fns);
MEMBER(SE_PlatformRegistrationParams, major_version);
MEMBER(SE_PlatformRegistrationParams, minor_version);
MEMBER(SE_PlatformRegistrationParams, patch_version);
MEMBER(SE_PlatformRegistrationParams, platform);
MEMBER(SE_PlatformRegistrationParams, platform_fns);
MEMBER(SE_PlatformRegistrationParams, destroy_platform);
MEMBER(SE_PlatformRegistrationParams, destroy_platform_fns);

// What a plugin says it was written for; TensorFlow refuses another major number.
static_assert(SE_MAJOR == tf_gcu::kVersion[0] && SE_MINOR >= tf_gcu::kVersion[1]);

static_assert(int{SE_EVENT_PENDING} == int{tf_gcu::SE_EVENT_PENDING});
static_assert(int{SE_EVENT_COMPLETE} == int{tf_gcu::SE_EVENT_COMPLETE});
static_assert(int{SE_EVENT_ERROR} == int{tf_gcu::SE_EVENT_ERROR});
static_assert(Same<SE_StatusCallbackFn, tf_gcu::SE_StatusCallbackFn>::value);
static_assert(int{TF_OK} == int{tf_gcu::TF_OK} && int{TF_INTERNAL} == int{tf_gcu::TF_INTERNAL});
static_assert(int{TF_INVALID_ARGUMENT} == int{tf_gcu::TF_INVALID_ARGUMENT});
static_assert(int{TF_FAILED_PRECONDITION} == int{tf_gcu::TF_FAILED_PRECONDITION});
static_assert(int{TF_FLOAT} == int{tf_gcu::TF_FLOAT} && int{TF_DOUBLE} == int{tf_gcu::TF_DOUBLE});

}  // namespace

// The functions. Declared as pointers in a namespace, where the names of types mean ours.
namespace tf_gcu {
#define FUNCTION(result, name, arguments)     \
  using Pointer_##name = result(*) arguments; \
  static_assert(Same<decltype(&::name), Pointer_##name>::value, #name);
TF_GCU_TENSORFLOW_FUNCTIONS(FUNCTION)
}  // namespace tf_gcu
