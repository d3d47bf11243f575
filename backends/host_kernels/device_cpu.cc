// See device_cpu.h.
#include "device_cpu.h"

#include <sys/sysinfo.h>

#include <cstdlib>
#include <cstring>

#include "convert.h"
#include "kernels.h"
#include "support.h"

namespace hvd::host_kernels {
namespace {

constexpr uint32_t kAlignment = 64;

char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }

void check_room(uint64_t i, const hvd_copy_item& item) {
  const uint64_t in = dtype_size(item.src_dtype), out = dtype_size(item.dst_dtype);
  if (in != 0 && out != 0 && item.src.bytes / in >= item.count && item.dst.bytes / out >= item.count) return;
  throw formatted_error(
      HVD_E_INVALID, 0, "item %llu: %llu elements of %s to %s do not fit buffers of %llu and %llu bytes",
      (unsigned long long)i, (unsigned long long)item.count, dtype_name(item.src_dtype), dtype_name(item.dst_dtype),
      (unsigned long long)item.src.bytes, (unsigned long long)item.dst.bytes);
}

}  // namespace

hvd_device_props CpuDevice::props() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) throw Error(HVD_E_DEVICE, "sysinfo failed");
  hvd_device_props props = no_props();
  props.free_bytes = static_cast<uint64_t>(info.freeram) * info.mem_unit;
  props.total_bytes = static_cast<uint64_t>(info.totalram) * info.mem_unit;
  props.alignment = kAlignment;
  set_text(props.arch, kernels().isa);
  return props;
}

void* CpuDevice::mem_alloc(int32_t kind, uint64_t bytes) {
  if (kind != HVD_MEM_HOST && kind != HVD_MEM_DEVICE) {
    throw formatted_error(HVD_E_UNSUPPORTED, 0, "the cpu device has memory of the kinds DEVICE and HOST only, not %d",
                          kind);
  }
  void* const p = bytes > UINT64_MAX - kAlignment
                      ? nullptr
                      : std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (p == nullptr) throw formatted_error(HVD_E_NOMEM, 0, "no %llu bytes of memory", (unsigned long long)bytes);
  return p;
}

void CpuDevice::mem_free(void* base, int32_t) { std::free(base); }

MemInfo CpuDevice::mem_query(const void*) {
  throw Error(HVD_E_UNSUPPORTED, "the cpu device cannot tell whose memory an address is");
}

void CpuDevice::copy(Stream, hvd_buf dst, hvd_buf src, uint64_t bytes) {
  std::memmove(address(dst), address(src), bytes);
}

void CpuDevice::batched_copy_scale(Stream, const CopyItems& items) {
  for (uint64_t i = 0; i < items.size(); ++i) {
    const hvd_copy_item item = items[i];
    check_room(i, item);
    if (item.count == 0) continue;
    if (convert(address(item.dst), item.dst_dtype, address(item.src), item.src_dtype, item.count, item.scale)) continue;
    throw formatted_error(HVD_E_UNSUPPORTED, 0, "item %llu: the cpu device does not convert or scale %s to %s",
                          (unsigned long long)i, dtype_name(item.src_dtype), dtype_name(item.dst_dtype));
  }
}

void CpuDevice::reduce_local(Stream, hvd_buf inout, hvd_buf in, uint64_t n, int32_t dtype, int32_t op) {
  if (op == HVD_AVG) throw Error(HVD_E_INVALID, "a local reduction by average does not exist");
  const ReduceFn reduce = kernels().reduce[dtype][op];
  if (reduce == nullptr) {
    throw formatted_error(HVD_E_UNSUPPORTED, 0, "the cpu device does not reduce %s", dtype_name(dtype));
  }
  const void* sources[2] = {address(inout), address(in)};
  reduce(address(inout), sources, 2, n, Scale{});
}

}  // namespace hvd::host_kernels
