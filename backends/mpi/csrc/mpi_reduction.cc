// See mpi_reduction.h. Any thread; mpi_op() where MPI may be called.
#include "mpi_reduction.h"

#include <hvd/backend_reduce.hpp>
#include <mutex>

#include "mpi_api.h"

namespace {

bool is_small_integer(int32_t dtype) {
  return dtype == HVD_UINT8 || dtype == HVD_INT8 || dtype == HVD_UINT16 || dtype == HVD_INT16;
}

// Does MPI have the type?
bool has_kind(int32_t dtype) { return !hvd::is_floating(dtype) || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64; }

// An operator of MPI's gets no context, so each pair of a type and a reduction is a function of its own.
template <int32_t dtype, int32_t op>
void combine(void* in, void* inout, int* n, void*) {
  hvd::reduce_elements(dtype, op, inout, in, static_cast<uint64_t>(*n));
}

using Combine = void (*)(void*, void*, int*, void*);

template <int32_t dtype>
Combine combine_for(int32_t op) {
  switch (op) {
    case HVD_PROD:
      return &combine<dtype, HVD_PROD>;
    case HVD_MIN:
      return &combine<dtype, HVD_MIN>;
    case HVD_MAX:
      return &combine<dtype, HVD_MAX>;
    default:
      return &combine<dtype, HVD_SUM>;
  }
}

Combine combine_for(int32_t dtype, int32_t op) {
  switch (dtype) {
    case HVD_FLOAT16:
      return combine_for<HVD_FLOAT16>(op);
    case HVD_BFLOAT16:
      return combine_for<HVD_BFLOAT16>(op);
    case HVD_FLOAT8_E4M3FN:
      return combine_for<HVD_FLOAT8_E4M3FN>(op);
    case HVD_FLOAT8_E5M2:
      return combine_for<HVD_FLOAT8_E5M2>(op);
    case HVD_FLOAT32:
      return combine_for<HVD_FLOAT32>(op);
    case HVD_UINT8:
      return combine_for<HVD_UINT8>(op);
    case HVD_INT8:
      return combine_for<HVD_INT8>(op);
    case HVD_UINT16:
      return combine_for<HVD_UINT16>(op);
    case HVD_INT16:
      return combine_for<HVD_INT16>(op);
    default:
      return combine_for<HVD_FLOAT64>(op);
  }
}

Handle own_op(int32_t dtype, int32_t op) {
  static std::mutex mutex;
  static Handle made[HVD_DTYPE_COUNT][HVD_REDOP_COUNT] = {};
  static bool is_made[HVD_DTYPE_COUNT][HVD_REDOP_COUNT] = {};
  std::lock_guard<std::mutex> lock(mutex);
  if (!is_made[dtype][op]) {
    Handle raw = 0;
    constexpr int kCommutes = 1;
    check_mpi(mpi().Op_create(combine_for(dtype, op), kCommutes, &raw), "Op_create");
    made[dtype][op] = mpi().written(raw);
    is_made[dtype][op] = true;
  }
  return made[dtype][op];
}

}  // namespace

bool mpi_reduces(int32_t dtype, int32_t op) { return op != HVD_AVG || hvd::is_floating(dtype); }

bool mpi_reduces_alone(int32_t dtype, int32_t op) {
  // MPI's MIN and MAX may lose a NaN, depending on the rank that has it.
  if (hvd::is_floating(dtype) && op != HVD_SUM && op != HVD_PROD) return false;
  // Open MPI 5 adds 8 and 16 bits with saturation (its op/avx), where sums wrap.
  if (is_small_integer(dtype)) return false;
  return has_kind(dtype) && op != HVD_AVG;
}

bool mpi_scales(int32_t dtype) { return hvd::is_floating(dtype); }

Handle mpi_op(int32_t dtype, int32_t op) {
  if (op == HVD_AVG) op = HVD_SUM;
  if (!mpi_reduces_alone(dtype, op)) return own_op(dtype, op);
  const MpiApi& m = mpi();
  const bool is_bool = dtype == HVD_BOOL;
  switch (op) {
    case HVD_PROD:
      return is_bool ? m.land : m.prod;
    case HVD_MIN:
      return is_bool ? m.land : m.min;
    case HVD_MAX:
      return is_bool ? m.lor : m.max;
    default:
      return is_bool ? m.lor : m.sum;
  }
}
