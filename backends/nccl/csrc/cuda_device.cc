// See cuda_device.h. No method blocks inside CUDA: a method that waits asks again and again until its deadline.
#include "cuda_device.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "cuda_kernels.h"

// --------------------------------------------------------------------------------------------------------- the context

CudaScope::CudaScope(CUcontext context) {
  CUcontext now = nullptr;
  CUDA(cuCtxGetCurrent(&now));
  if (now != context) {
    CUDA(cuCtxPushCurrent(context));
    pushed_ = true;
  }
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (cuda().cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS) mode_before_ = mode;
}

CudaScope::~CudaScope() {
  const CudaApi& api = cuda();
  CUcontext ours;
  api.cuThreadExchangeStreamCaptureMode(&mode_before_);
  if (pushed_) api.cuCtxPopCurrent(&ours);
}

int32_t CudaDevice::count() {
  int n = 0;
  if (init_cuda()) CUDA(cuDeviceGetCount(&n));
  return n;
}

CudaDevice::CudaDevice(const hvd::DeviceInit& init) : Device(init) {
  if (!init_cuda()) throw hvd::Error(HVD_E_UNAVAILABLE, "no CUDA device is visible");
  CUDA(cuDeviceGet(&device_, init.ordinal));
  context_ = static_cast<CUcontext>(init.native_context);
  if (context_ == nullptr) {
    CUDA(cuDevicePrimaryCtxRetain(&context_, device_));
    retained_ = true;
  }
  try {
    const CudaScope current(context_);
    const int arch = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                     attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    kernels_ = std::make_unique<CudaKernels>(arch, attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  } catch (...) {
    if (retained_) cuda().cuDevicePrimaryCtxRelease(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  try {
    const CudaScope current(context_);
    kernels_.reset();
  } catch (const hvd::Error&) {  // the context is destroyed already, with all its objects
    if (kernels_) kernels_->forget();
  }
  if (retained_) cuda().cuDevicePrimaryCtxRelease(device_);
}

int CudaDevice::attribute(int which) const {
  int value = 0;
  CUDA(cuDeviceGetAttribute(&value, which, device_));
  return value;
}

hvd_device_props CudaDevice::props() {
  hvd_device_props props = hvd::no_props();
  size_t free_bytes = 0, total_bytes = 0;
  CUDA(cuMemGetInfo(&free_bytes, &total_bytes));
  props.free_bytes = free_bytes;
  props.total_bytes = total_bytes;
  // A line of the device's cache. Accesses of 16 bytes by a warp fill whole ones then, in the kernels here and in
  // NCCL's.
  props.alignment = 128;
  props.batch_limit = CudaKernels::kMostItems;
  const std::string arch = "sm_" + std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
                           std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  hvd::set_text(props.arch, arch.c_str());

  CUuuid uuid;
  const auto get_uuid = cuda().cuDeviceGetUuid_v2 ? cuda().cuDeviceGetUuid_v2 : cuda().cuDeviceGetUuid;
  check_cuda(get_uuid(&uuid, device_), "cuDeviceGetUuid");
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof(byte), "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                  uuid.bytes[i]);
    text += byte;
  }
  hvd::set_text(props.uuid, text.c_str());

  CUDA(cuDeviceGetPCIBusId(props.pci, sizeof(props.pci), device_));
  for (char& c : props.pci)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));  // as the kernel spells it
  std::ifstream numa("/sys/bus/pci/devices/" + std::string(props.pci) + "/numa_node");
  if (!(numa >> props.numa_node)) props.numa_node = -1;
  return props;
}

// ---------------------------------------------------------------------------------------------- streams and events

// Turns the answer of a query into true (done) or false (not yet).
static bool done(CUresult result, const char* call) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  check_cuda(result, call);
  return true;
}

// Work that is enqueued on a stream under capture goes into a graph instead, and so does an event: the engine's own
// stream would be drawn into the capture, and the collective into a graph that replays without the other ranks.
static void refuse_capture(CUstream stream) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = cuda().cuStreamIsCapturing(stream, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    throw hvd::Error(HVD_E_INVALID,
                     "a collective was called on the default stream while another stream is being captured into a CUDA "
                     "graph, which the default stream would have to wait for. Capture from a stream that was made "
                     "non-blocking, or call the collective before or after the capture.",
                     0, result);
  }
  check_cuda(result, "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
    throw hvd::Error(
        HVD_E_INVALID,
        "a collective was called while its stream is being captured into a CUDA graph. A graph would replay "
        "without asking the other ranks. Call it before or after the capture.");
  }
}

CUstream CudaDevice::stream_create(int32_t priority) {
  int least = 0, greatest = 0;  // the greatest is the smallest number
  CUDA(cuCtxGetStreamPriorityRange(&least, &greatest));
  Stream stream = nullptr;
  CUDA(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, std::clamp<int>(priority, greatest, least)));
  return stream;
}

void CudaDevice::stream_destroy(Stream stream) { CUDA(cuStreamDestroy(stream)); }

bool CudaDevice::stream_query(Stream stream) {
  refuse_capture(stream);  // a query would invalidate the capture
  return done(cuda().cuStreamQuery(stream), "cuStreamQuery");
}

bool CudaDevice::stream_sync(Stream stream, int64_t deadline_ns) {
  return hvd::poll_until(deadline_ns, [&] { return stream_query(stream); });
}

void CudaDevice::stream_wait_event(Stream stream, Event event) {
  refuse_capture(stream);
  CUDA(cuStreamWaitEvent(stream, event, 0));
}

CUevent CudaDevice::event_create(int32_t flags) {
  Event event = nullptr;
  CUDA(cuEventCreate(&event, (flags & HVD_EVENT_TIMING) != 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
  return event;
}

void CudaDevice::event_destroy(Event event) { CUDA(cuEventDestroy(event)); }

void CudaDevice::event_record(Event event, Stream stream) {
  refuse_capture(stream);
  CUDA(cuEventRecord(event, stream));
}

bool CudaDevice::event_query(Event event) { return done(cuda().cuEventQuery(event), "cuEventQuery"); }

bool CudaDevice::event_wait(Event event, int64_t deadline_ns) {
  return hvd::poll_until(deadline_ns, [&] { return event_query(event); });
}

int64_t CudaDevice::event_elapsed_ns(Event from, Event to) {
  float milliseconds = 0;
  CUDA(cuEventElapsedTime(&milliseconds, from, to));
  return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

// ----------------------------------------------------------------------------------------------------------- memory

void* CudaDevice::mem_alloc(int32_t kind, uint64_t bytes) {
  CUdeviceptr p = 0;
  void* pinned = nullptr;
  switch (kind) {
    case HVD_MEM_DEVICE:
      CUDA(cuMemAlloc(&p, bytes));
      return reinterpret_cast<void*>(p);
    case HVD_MEM_PINNED:
      CUDA(cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE));
      return pinned;
    case HVD_MEM_MANAGED:
      if (attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0) break;
      CUDA(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
      return reinterpret_cast<void*>(p);
    default:
      break;
  }
  throw hvd::Error(HVD_E_UNSUPPORTED,
                   "memory for this device is of the kinds DEVICE, PINNED and, where it has such, MANAGED; not " +
                       std::to_string(kind));
}

void CudaDevice::mem_free(void* base, int32_t kind) {
  if (kind == HVD_MEM_PINNED) {
    CUDA(cuMemFreeHost(base));
  } else {
    CUDA(cuMemFree(reinterpret_cast<CUdeviceptr>(base)));
  }
}

hvd::MemInfo CudaDevice::mem_query(const void* p) {
  if (!cuda_is_initialised()) return {HVD_MEM_HOST, -1};  // without an initialised driver there is no CUDA memory
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  const CUresult result = cuda().cuPointerGetAttributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(p));
  if (result == CUDA_ERROR_NOT_INITIALIZED) return {HVD_MEM_HOST, -1};
  if (result != CUDA_SUCCESS) throw hvd::Error(HVD_E_UNSUPPORTED, "CUDA cannot tell whose memory this is", 0, result);
  if (managed != 0) return {HVD_MEM_MANAGED, ordinal};
  if (type == CU_MEMORYTYPE_DEVICE) return {HVD_MEM_DEVICE, ordinal};
  return {type == CU_MEMORYTYPE_HOST ? HVD_MEM_PINNED : HVD_MEM_HOST, -1};
}

static CUdeviceptr address(const hvd_buf& buf) { return reinterpret_cast<CUdeviceptr>(buf.base) + buf.offset; }

void CudaDevice::copy(Stream stream, hvd_buf dst, hvd_buf src, uint64_t bytes) {
  refuse_capture(stream);
  CUDA(cuMemcpyAsync(address(dst), address(src), bytes, stream));
}

void CudaDevice::batched_copy_scale(Stream stream, const hvd::CopyItems& items) {
  std::vector<hvd_kernels::Copy> copies;
  copies.reserve(items.size());
  for (uint64_t i = 0; i < items.size(); ++i) {
    const hvd_copy_item item = items[i];
    const auto room = [&](const hvd_buf& buf, int32_t dtype) {
      return dtype >= 0 && dtype < HVD_DTYPE_COUNT && item.count <= buf.bytes / hvd::kDtypeBytes[dtype];
    };
    if (!room(item.src, item.src_dtype) || !room(item.dst, item.dst_dtype)) {
      throw hvd::Error(HVD_E_INVALID, "item " + std::to_string(i) + ": " + std::to_string(item.count) +
                                          " elements of type " + std::to_string(item.src_dtype) + " to type " +
                                          std::to_string(item.dst_dtype) + " do not fit buffers of " +
                                          std::to_string(item.src.bytes) + " and " + std::to_string(item.dst.bytes) +
                                          " bytes");
    }
    if (item.count == 0) continue;
    copies.push_back({address(item.src), address(item.dst), item.count, item.src_dtype, item.dst_dtype, item.scale});
  }
  refuse_capture(stream);
  kernels_->copy_scale(stream, copies);
}

void CudaDevice::reduce_local(Stream stream, hvd_buf inout, hvd_buf in, uint64_t count, int32_t dtype, int32_t op) {
  if (op == HVD_AVG) throw hvd::Error(HVD_E_UNSUPPORTED, "a local reduction has no average: sum, then divide");
  refuse_capture(stream);
  kernels_->reduce(stream, {address(inout), address(in), count, dtype, op});
}
