// Kernels address device memory, which a processor must not touch: before a launch is executed, each address in its
// parameters becomes that of the bytes themselves, and is checked with its length. An address outside of every
// allocation is an illegal address, as on a device.
#include "kernels.h"

#include <cstring>

#include "addresses.h"
#include "kernel_args.h"
#include "memory.h"
#include "widths.h"

extern "C" bool hvd_kernel_on_host(const char* name, unsigned grid, unsigned block, void** params);

namespace cusim {
namespace {

using hvd_kernels::CopyArgs;
using hvd_kernels::CopyItem;
using hvd_kernels::CopyKind;
using hvd_kernels::ReduceArgs;

// Addresses for as long as a launch is executed.
class Translation {
 public:
  bool replace(uint64_t* address, size_t bytes) {
    if (bytes == 0) return true;
    sim::Span span;
    if (!reachable(reinterpret_cast<void*>(*address), bytes, &span)) return false;
    *address = reinterpret_cast<uint64_t>(span.data);
    kept_.push_back(std::move(span));
    return true;
  }

 private:
  std::vector<sim::Span> kept_;
};

CUresult execute(const char* name, unsigned blocks, unsigned threads, void* args) {
  return hvd_kernel_on_host(name, blocks, threads, &args) ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult copy_scale(unsigned blocks, unsigned threads, std::vector<char> parameters) {
  auto& args = *reinterpret_cast<CopyArgs*>(parameters.data());
  Translation translation;
  std::vector<uint64_t> table;  // 64 bits, for its alignment
  CopyKind* kinds = args.kinds;
  CopyItem* items = args.items;
  if (args.table != 0) {
    const size_t bytes = args.n_kinds * sizeof(CopyKind) + args.n_items * sizeof(CopyItem);
    if (!translation.replace(&args.table, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    table.resize(bytes / sizeof(uint64_t));
    memcpy(table.data(), reinterpret_cast<void*>(args.table), bytes);
    args.table = reinterpret_cast<uint64_t>(table.data());
    kinds = reinterpret_cast<CopyKind*>(table.data());
    items = reinterpret_cast<CopyItem*>(kinds + args.n_kinds);
  }
  uint32_t i = 0;
  for (uint32_t k = 0; k < args.n_kinds; ++k) {
    const bool raw = kinds[k].path == hvd_kernels::kRaw;
    const size_t from = raw ? 1 : width_of_abi(kinds[k].src_dtype), to = raw ? 1 : width_of_abi(kinds[k].dst_dtype);
    for (; i < kinds[k].items_end; ++i) {
      if (!translation.replace(&items[i].src, items[i].count * from)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      if (!translation.replace(&items[i].dst, items[i].count * to)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  }
  return execute("hvd_copy_scale", blocks, threads, &args);
}

CUresult reduce(unsigned blocks, unsigned threads, std::vector<char> parameters) {
  auto& args = *reinterpret_cast<ReduceArgs*>(parameters.data());
  const size_t width = width_of_abi(args.dtype);
  Translation translation;
  if (!translation.replace(&args.inout, args.count * width) || !translation.replace(&args.in, args.count * width)) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return execute("hvd_reduce", blocks, threads, &args);
}

constexpr Kernel kKernels[] = {{"hvd_copy_scale", sizeof(CopyArgs), copy_scale},
                               {"hvd_reduce", sizeof(ReduceArgs), reduce}};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace cusim
