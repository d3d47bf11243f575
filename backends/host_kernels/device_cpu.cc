// The host device "cpu": ordinary memory, and streams and events that are trivially up to date, because every call has
// done its work when it returns. Any thread.
#include "device_cpu.h"

#include <sys/sysinfo.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "convert.h"
#include "kernels.h"
#include "support.h"

namespace hvd::host_kernels {
namespace {

constexpr uint32_t kAlignment = 64;

struct Stream {
  void* native;
};
struct Event {
  int64_t recorded_ns;  // 0: never
};

// Allocates nothing, as it also reports that memory has run out, and an exception must not leave a slot of the table.
__attribute__((format(printf, 3, 4))) hvd_rc report(hvd_error* err, hvd_rc code, const char* format, ...) {
  char text[sizeof(hvd_error::text)];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return fail(err, code, text);
}

Stream* stream_of(hvd_stream s) { return reinterpret_cast<Stream*>(s); }
Event* event_of(hvd_event e) { return reinterpret_cast<Event*>(e); }
char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }

// Device handles must not be NULL; there is one device, and it has no state.
char g_device;

hvd_rc count(int32_t* n, hvd_error*) {
  *n = 1;
  return HVD_OK;
}

hvd_rc open(int32_t ordinal, void*, hvd_device* out, hvd_error* err) {
  if (ordinal != 0) return report(err, HVD_E_INVALID, "there is one cpu device, number 0; asked for %d", ordinal);
  *out = reinterpret_cast<hvd_device>(&g_device);
  return HVD_OK;
}

hvd_rc close(hvd_device, hvd_error*) { return HVD_OK; }

hvd_rc props(hvd_device, hvd_device_props* out, hvd_error* err) {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return report(err, HVD_E_DEVICE, "sysinfo failed");
  hvd_device_props mine = {};
  mine.free_bytes = static_cast<uint64_t>(info.freeram) * info.mem_unit;
  mine.total_bytes = static_cast<uint64_t>(info.totalram) * info.mem_unit;
  mine.numa_node = -1;
  mine.alignment = kAlignment;
  mine.batch_limit = UINT32_MAX;
  std::strncpy(mine.arch, kernels().isa, sizeof mine.arch - 1);
  give(out, mine);
  return HVD_OK;
}

hvd_rc stream_wrap(hvd_device, void* native, hvd_stream* out, hvd_error* err) {
  Stream* s = new (std::nothrow) Stream{native};
  if (s == nullptr) return report(err, HVD_E_NOMEM, "out of memory");
  *out = reinterpret_cast<hvd_stream>(s);
  return HVD_OK;
}

hvd_rc stream_create(hvd_device device, int32_t, hvd_stream* out, hvd_error* err) {
  return stream_wrap(device, nullptr, out, err);
}

void* stream_native(hvd_stream s) { return stream_of(s)->native; }
hvd_rc stream_wait_event(hvd_stream, hvd_event, hvd_error*) { return HVD_OK; }
hvd_rc stream_query(hvd_stream, hvd_error*) { return HVD_OK; }
hvd_rc stream_sync(hvd_stream, int64_t, hvd_error*) { return HVD_OK; }

hvd_rc stream_destroy(hvd_stream s, hvd_error*) {
  delete stream_of(s);
  return HVD_OK;
}

hvd_rc event_create(hvd_device, int32_t, hvd_event* out, hvd_error* err) {
  Event* e = new (std::nothrow) Event{0};
  if (e == nullptr) return report(err, HVD_E_NOMEM, "out of memory");
  *out = reinterpret_cast<hvd_event>(e);
  return HVD_OK;
}

hvd_rc event_record(hvd_event e, hvd_stream, hvd_error*) {
  event_of(e)->recorded_ns = now_ns();
  return HVD_OK;
}

hvd_rc event_query(hvd_event, hvd_error*) { return HVD_OK; }
hvd_rc event_wait(hvd_event, int64_t, hvd_error*) { return HVD_OK; }

hvd_rc event_elapsed_ns(hvd_event a, hvd_event b, int64_t* ns, hvd_error* err) {
  const int64_t from = event_of(a)->recorded_ns, to = event_of(b)->recorded_ns;
  if (from == 0 || to == 0) return report(err, HVD_E_INVALID, "both events must have been recorded");
  *ns = to - from;
  return HVD_OK;
}

hvd_rc event_destroy(hvd_event e, hvd_error*) {
  delete event_of(e);
  return HVD_OK;
}

hvd_rc mem_alloc(hvd_device, int32_t kind, uint64_t bytes, hvd_mem* mem, hvd_buf* buf, hvd_error* err) {
  if (kind != HVD_MEM_HOST && kind != HVD_MEM_DEVICE) {
    return report(err, HVD_E_UNSUPPORTED, "the cpu device has memory of the kinds DEVICE and HOST only, not %d", kind);
  }
  const uint64_t room = bytes > UINT64_MAX - kAlignment ? 0 : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* p = room == 0 && bytes != 0 ? nullptr : std::aligned_alloc(kAlignment, room == 0 ? kAlignment : room);
  if (p == nullptr) return report(err, HVD_E_NOMEM, "no %llu bytes of memory", (unsigned long long)bytes);
  *mem = reinterpret_cast<hvd_mem>(p);
  *buf = {p, 0, bytes};
  return HVD_OK;
}

hvd_rc mem_free(hvd_mem mem, hvd_error*) {
  std::free(mem);
  return HVD_OK;
}

hvd_rc mem_query(const void*, int32_t*, int32_t*, hvd_error* err) {
  return report(err, HVD_E_UNSUPPORTED, "the cpu device cannot tell whose memory an address is");
}

hvd_rc copy(hvd_stream, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error* err) {
  if (bytes > dst.bytes || bytes > src.bytes) {
    return report(err, HVD_E_INVALID, "copy of %llu bytes from a buffer of %llu to one of %llu",
                  (unsigned long long)bytes, (unsigned long long)src.bytes, (unsigned long long)dst.bytes);
  }
  if (bytes > 0) std::memmove(address(dst), address(src), bytes);
  return HVD_OK;
}

hvd_rc copy_item(uint64_t i, const hvd_copy_item& item, hvd_error* err) {
  const uint64_t in = dtype_size(item.src_dtype), out = dtype_size(item.dst_dtype);
  if (in == 0 || out == 0 || item.src.bytes / (in ? in : 1) < item.count ||
      item.dst.bytes / (out ? out : 1) < item.count) {
    return report(err, HVD_E_INVALID, "item %llu: %llu elements of %s to %s do not fit buffers of %llu and %llu bytes",
                  (unsigned long long)i, (unsigned long long)item.count, dtype_name(item.src_dtype),
                  dtype_name(item.dst_dtype), (unsigned long long)item.src.bytes, (unsigned long long)item.dst.bytes);
  }
  if (item.count == 0) return HVD_OK;
  if (convert(address(item.dst), item.dst_dtype, address(item.src), item.src_dtype, item.count, item.scale)) {
    return HVD_OK;
  }
  return report(err, HVD_E_UNSUPPORTED, "item %llu: the cpu device does not convert or scale %s to %s",
                (unsigned long long)i, dtype_name(item.src_dtype), dtype_name(item.dst_dtype));
}

hvd_rc batched_copy_scale(hvd_stream, const hvd_copy_item* items, uint64_t n, hvd_error* err) {
  return guarded(err, [&]() -> hvd_rc {
    const CopyItems list(items, n);
    for (uint64_t i = 0; i < n; ++i) {
      if (const hvd_rc rc = copy_item(i, list[i], err); rc != HVD_OK) return rc;
    }
    return HVD_OK;
  });
}

hvd_rc reduce_local(hvd_stream, hvd_buf inout, hvd_buf in, uint64_t n, int32_t dtype, int32_t op, hvd_error* err) {
  const uint64_t size = dtype_size(dtype);
  if (size == 0 || op < 0 || op >= HVD_AVG) {
    return report(err, HVD_E_INVALID, "a local reduction of %s by %s does not exist", dtype_name(dtype), op_name(op));
  }
  const ReduceFn reduce = kernels().reduce[dtype][op];
  if (reduce == nullptr) return report(err, HVD_E_UNSUPPORTED, "the cpu device does not reduce %s", dtype_name(dtype));
  if (inout.bytes / size < n || in.bytes / size < n) {
    return report(err, HVD_E_INVALID, "%llu elements of %s do not fit buffers of %llu and %llu bytes",
                  (unsigned long long)n, dtype_name(dtype), (unsigned long long)inout.bytes,
                  (unsigned long long)in.bytes);
  }
  if (n == 0) return HVD_OK;
  const void* sources[2] = {address(inout), address(in)};
  reduce(address(inout), sources, 2, n, Scale{});
  return HVD_OK;
}

const hvd_device_api kTable = {
    .hdr = {sizeof(hvd_device_api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
    .device_type = "cpu",
    .count = count,
    .open = open,
    .close = close,
    .props = props,
    .stream_create = stream_create,
    .stream_wrap = stream_wrap,
    .stream_native = stream_native,
    .stream_wait_event = stream_wait_event,
    .stream_query = stream_query,
    .stream_sync = stream_sync,
    .stream_destroy = stream_destroy,
    .event_create = event_create,
    .event_record = event_record,
    .event_query = event_query,
    .event_wait = event_wait,
    .event_elapsed_ns = event_elapsed_ns,
    .event_destroy = event_destroy,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_query = mem_query,
    .copy = copy,
    .batched_copy_scale = batched_copy_scale,
    .reduce_local = reduce_local,
};

}  // namespace

const hvd_device_api* CpuDevice::table() { return &kTable; }

}  // namespace hvd::host_kernels
