// Errors and names; see support.h.
#include "support.h"

#include <cstdarg>
#include <cstdio>

namespace hvd::host_kernels {
namespace {

constexpr const char* kOps[HVD_REDOP_COUNT] = {"sum", "product", "min", "max", "average"};
constexpr const char* kColls[HVD_COLL_COUNT] = {
#define HVD_COLLECTIVE(ID, number, name, what, root) #name,
#include <hvd/types.inc>
};

}  // namespace

Error formatted_error(hvd_rc code, int32_t flags, const char* format, ...) {
  char text[sizeof(hvd_error::text)];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return Error(code, text, flags);
}

const char* dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < HVD_DTYPE_COUNT ? kDtypeNames[dtype] : "an unknown dtype";
}
const char* op_name(int32_t op) { return op >= 0 && op < HVD_REDOP_COUNT ? kOps[op] : "an unknown reduction"; }
const char* coll_name(int32_t coll) {
  return coll >= 0 && coll < HVD_COLL_COUNT ? kColls[coll] : "an unknown collective";
}

}  // namespace hvd::host_kernels
