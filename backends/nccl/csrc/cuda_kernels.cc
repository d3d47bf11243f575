// See cuda_kernels.h.
#include "cuda_kernels.h"

#include <algorithm>
#include <cstring>

#include "kernels/binaries.h"

using hvd_kernels::Copy;

CudaKernels::CudaKernels(int arch, int processors) : processors_(static_cast<uint32_t>(std::max(processors, 1))) {
  try {
    load(arch);
  } catch (const hvd::Error& e) {
    if (e.flags & HVD_EF_DEVICE_DEAD) throw;
    why_not_ = e.text;
    hvd::log(
        HVD_LOG_WARN, __FILE__, __LINE__,
        "the kernels cannot be loaded; tensors are copied one by one, and factors left to the engine: " + why_not_);
  }
}

CudaKernels::~CudaKernels() {
  for (Slot& slot : slots_) give_back(slot);
  if (module_ != nullptr) cuda().cuModuleUnload(module_);
}

void CudaKernels::forget() {
  slots_.clear();
  module_ = nullptr;
}

// ------------------------------------------------------------------------------------------------------ machine code

namespace {

// The newest code for the device's generation that is not newer than the device; NULL if no code fits.
const hvd_kernels::Binary* binary_for(int arch) {
  const hvd_kernels::Binary* best = nullptr;
  for (const auto* b = hvd_kernels::binaries(); b->data != nullptr; ++b) {
    if (b->arch / 10 == arch / 10 && b->arch <= arch && (best == nullptr || b->arch > best->arch)) best = b;
  }
  return best;
}

std::string error_text(CUresult result) {
  const char* text = nullptr;
  if (cuda().cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown";
  return std::string(text) + " (" + std::to_string(result) + ")";
}

}  // namespace

void CudaKernels::load(int arch) {
  // An old driver may refuse code of a newer compiler. Then, as for devices newer than all code, the driver compiles
  // the text.
  const hvd_kernels::Binary* binary = binary_for(arch);
  std::string said = "there is no machine code for sm_" + std::to_string(arch);
  if (binary != nullptr) {
    const CUresult result = cuda().cuModuleLoadDataEx(&module_, binary->data, 0, nullptr, nullptr);
    if (result != CUDA_SUCCESS) {
      module_ = nullptr;
      said = "the machine code for sm_" + std::to_string(binary->arch) + " is refused: " + error_text(result);
    }
  }
  if (module_ == nullptr) {
    char log[2048] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof(log) - 1)};
    const CUresult result = cuda().cuModuleLoadDataEx(&module_, hvd_kernels::ptx(), 2, options, values);
    if (result != CUDA_SUCCESS) {
      module_ = nullptr;
      throw hvd::Error(HVD_E_UNSUPPORTED,
                       said + "; the driver does not compile the kernels' PTX: " + error_text(result) +
                           (log[0] ? std::string(": ") + log : ""),
                       0, result);
    }
  }
  CUDA(cuModuleGetFunction(&copy_scale_, module_, "hvd_copy_scale"));
  CUDA(cuModuleGetFunction(&reduce_, module_, "hvd_reduce"));
  // Lazy loading would load each at its first launch, for which the device may have to come to rest; asked about, they
  // are loaded now.
  int registers = 0;
  for (CUfunction function : {copy_scale_, reduce_}) {
    CUDA(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  }
}

void CudaKernels::start(CUfunction function, CUstream stream, uint32_t blocks, void* args) {
  void* parameters[] = {args};
  CUDA(cuLaunchKernel(function, blocks, 1, 1, hvd_kernels::kThreads, 1, 1, 0, stream, parameters, nullptr));
}

// ------------------------------------------------------------------------------------------------------------ batches

void CudaKernels::copy_scale(CUstream stream, const std::vector<Copy>& copies) {
  if (copy_scale_ == nullptr) return copy_one_by_one(stream, copies);
  hvd_kernels::CopyLaunch launch;
  prepare_copies(copies, processors_, launch);
  if (launch.blocks == 0) return;
  if (launch.table.empty()) return start(copy_scale_, stream, launch.blocks, &launch.args);

  const std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = free_slot(launch.table.size());
  std::memcpy(slot.host, launch.table.data(), launch.table.size());
  CUDA(cuMemcpyAsync(slot.device, reinterpret_cast<CUdeviceptr>(slot.host), launch.table.size(), stream));
  launch.args.table = slot.device;
  try {
    start(copy_scale_, stream, launch.blocks, &launch.args);
  } catch (const hvd::Error&) {
    cuda().cuEventRecord(slot.done, stream);  // the copy of the table is still in the stream
    throw;
  }
  CUDA(cuEventRecord(slot.done, stream));
}

void CudaKernels::copy_one_by_one(CUstream stream, const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    if (c.src_dtype == c.dst_dtype && c.scale == 1) continue;
    throw hvd::Error(HVD_E_UNSUPPORTED, "there are no kernels for this device: " + why_not_);
  }
  for (const Copy& c : copies) {
    CUDA(cuMemcpyAsync(c.dst, c.src, c.count * hvd::kDtypeBytes[c.src_dtype], stream));
  }
}

void CudaKernels::reduce(CUstream stream, const hvd_kernels::ReduceArgs& args) {
  if (reduce_ == nullptr) throw hvd::Error(HVD_E_UNSUPPORTED, "there are no kernels for this device: " + why_not_);
  hvd_kernels::ReduceArgs mine = args;
  start(reduce_, stream, hvd_kernels::reduce_blocks(args.count, processors_), &mine);
}

// An event that was never recorded counts as reached.
CudaKernels::Slot& CudaKernels::free_slot(size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.bytes >= bytes && cuda().cuEventQuery(slot.done) == CUDA_SUCCESS) return slot;
  }
  size_t room = size_t{1} << 16;
  while (room < bytes) room *= 2;
  Slot slot;
  try {
    CUDA(cuMemHostAlloc(&slot.host, room, CU_MEMHOSTALLOC_PORTABLE));
    CUDA(cuMemAlloc(&slot.device, room));
    CUDA(cuEventCreate(&slot.done, CU_EVENT_DISABLE_TIMING));
  } catch (const hvd::Error&) {
    give_back(slot);
    throw;
  }
  slot.bytes = room;
  slots_.push_back(slot);
  return slots_.back();
}

void CudaKernels::give_back(Slot& slot) {
  const CudaApi& api = cuda();
  if (slot.done != nullptr) api.cuEventDestroy(slot.done);
  if (slot.device != 0) api.cuMemFree(slot.device);
  if (slot.host != nullptr) api.cuMemFreeHost(slot.host);
}
