// hvd/backend_reduce.hpp behind C functions; test_abi_reduce.py calls them through ctypes.
#include <hvd/backend_reduce.hpp>
extern "C" __attribute__((visibility("default"))) int32_t combine(int32_t dtype, int32_t op, void* out, const void* a,
                                                                  const void* b, uint64_t n) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::combine_elements(dtype, op, out, a, b, n);
    return HVD_OK;
  });
}
extern "C" __attribute__((visibility("default"))) int32_t reduce(int32_t dtype, int32_t op, void* inout, const void* in,
                                                                 uint64_t n) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::reduce_elements(dtype, op, inout, in, n);
    return HVD_OK;
  });
}
extern "C" __attribute__((visibility("default"))) int32_t scale(int32_t dtype, void* data, uint64_t n, double factor) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::scale_elements(dtype, data, n, factor);
    return HVD_OK;
  });
}
extern "C" __attribute__((visibility("default"))) int32_t divide(int32_t dtype, void* data, uint64_t n,
                                                                 uint32_t divisor) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::divide_elements(dtype, data, n, divisor);
    return HVD_OK;
  });
}
