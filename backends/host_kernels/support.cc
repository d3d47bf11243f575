// Error reports, struct checks and names; see support.h.
#include "support.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace hvd::host_kernels {
namespace {

std::atomic<const hvd_host_api*> g_host{nullptr};

struct DtypeInfo {
  uint32_t size;
  const char* name;
};
constexpr DtypeInfo kDtypes[HVD_DTYPE_COUNT] = {
#define HVD_DTYPE(ID, number, name, bytes, kind, reductions) {bytes, #name},
#include <hvd/types.inc>
};
constexpr const char* kOps[HVD_REDOP_COUNT] = {"sum", "product", "min", "max", "average"};
constexpr const char* kColls[HVD_COLL_COUNT] = {
#define HVD_COLLECTIVE(ID, number, name, what, root) #name,
#include <hvd/types.inc>
};

}  // namespace

const hvd_host_api* host() { return g_host.load(std::memory_order_acquire); }
void set_host(const hvd_host_api* api) { g_host.store(api, std::memory_order_release); }

hvd_rc fail(hvd_error* err, hvd_rc code, int32_t flags, const char* format, ...) {
  if (err == nullptr) return code;
  const size_t room = err->hdr.struct_size;
  if (room < offsetof(hvd_error, text)) return code;
  err->code = code;
  err->flags = flags;
  err->vendor_code = 0;
  const size_t text = std::min(room - offsetof(hvd_error, text), sizeof(err->text));
  va_list list;
  va_start(list, format);
  if (text > 0) std::vsnprintf(err->text, text, format, list);
  va_end(list);
  return code;
}

hvd_rc check_struct(const void* hdr, size_t minimum, size_t known, const char* name, hvd_error* err) {
  if (hdr == nullptr) return fail(err, HVD_E_INVALID, 0, "%s is NULL", name);
  const size_t size = static_cast<const hvd_hdr*>(hdr)->struct_size;
  if (size < minimum) {
    return fail(err, HVD_E_INVALID, 0, "%s says it has %zu bytes; ABI 1.0 needs %zu", name, size, minimum);
  }
  const unsigned char* bytes = static_cast<const unsigned char*>(hdr);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) {
      return fail(err, HVD_E_UNSUPPORTED, 0,
                  "%s has a field set at byte %zu that this backend (ABI %d.%d) does not know; update the backend",
                  name, i, HVD_ABI_MAJOR, HVD_ABI_MINOR);
    }
  }
  return HVD_OK;
}

void fill_struct(void* to, const void* from, size_t size) {
  hvd_hdr* hdr = static_cast<hvd_hdr*>(to);
  const size_t room = std::min<size_t>(hdr->struct_size, size);
  if (room <= sizeof(hvd_hdr)) return;
  std::memcpy(static_cast<char*>(to) + sizeof(hvd_hdr), static_cast<const char*>(from) + sizeof(hvd_hdr),
              room - sizeof(hvd_hdr));
}

uint32_t dtype_size(int32_t dtype) { return dtype >= 0 && dtype < HVD_DTYPE_COUNT ? kDtypes[dtype].size : 0; }
const char* dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < HVD_DTYPE_COUNT ? kDtypes[dtype].name : "an unknown dtype";
}
const char* op_name(int32_t op) { return op >= 0 && op < HVD_REDOP_COUNT ? kOps[op] : "an unknown reduction"; }
const char* coll_name(int32_t coll) {
  return coll >= 0 && coll < HVD_COLL_COUNT ? kColls[coll] : "an unknown collective";
}

}  // namespace hvd::host_kernels
