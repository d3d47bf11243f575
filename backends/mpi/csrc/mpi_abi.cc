// See mpi_abi.h. Pure, but for dlsym.
#include "mpi_abi.h"

#include <dlfcn.h>

namespace {

// Symbols whose names differ from ABI to ABI.
struct Handles {
  Handle comm_world, errors_return, byte, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, sum, prod, min, max, lor,
      land;
};

constexpr Handles kMpich{0x44000000, 0x54000001, 0x4c00010d, 0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a,
                         0x4c00013b, 0x4c00023c, 0x4c00043d, 0x4c00083e, 0x4c00040a, 0x4c00080b, 0x58000003,
                         0x58000004, 0x58000002, 0x58000001, 0x58000007, 0x58000005};
constexpr Handles kStandard{0x101, 0x143, 0x247, 0x240, 0x248, 0x250, 0x258, 0x241, 0x249, 0x251,
                            0x259, 0x210, 0x214, 0x21,  0x24,  0x22,  0x23,  0x31,  0x30};

MpiConstants with(const Handles& n) {
  MpiConstants c{};
  c.comm_world = n.comm_world;
  c.errors_return = n.errors_return;
  c.byte = n.byte;
  for (int t : {HVD_UINT8, HVD_BOOL, HVD_FLOAT8_E4M3FN, HVD_FLOAT8_E5M2}) c.types[t] = n.u8;
  for (int t : {HVD_UINT16, HVD_FLOAT16, HVD_BFLOAT16}) c.types[t] = n.u16;
  c.types[HVD_INT8] = n.i8;
  c.types[HVD_INT16] = n.i16;
  c.types[HVD_INT32] = n.i32;
  c.types[HVD_INT64] = n.i64;
  c.types[HVD_UINT32] = n.u32;
  c.types[HVD_UINT64] = n.u64;
  c.types[HVD_FLOAT32] = n.f32;
  c.types[HVD_FLOAT64] = n.f64;
  c.sum = n.sum;
  c.prod = n.prod;
  c.min = n.min;
  c.max = n.max;
  c.lor = n.lor;
  c.land = n.land;
  return c;
}

MpiConstants open_mpi(void* library) {
  const auto object = [library](const char* name) {
    void* p = dlsym(library, name);
    if (p == nullptr) throw hvd::Error(HVD_E_UNAVAILABLE, std::string("the MPI library has no object ") + name);
    return reinterpret_cast<Handle>(p);
  };
  MpiConstants c =
      with({object("ompi_mpi_comm_world"), object("ompi_mpi_errors_return"), object("ompi_mpi_byte"),
            object("ompi_mpi_int8_t"), object("ompi_mpi_int16_t"), object("ompi_mpi_int32_t"),
            object("ompi_mpi_int64_t"), object("ompi_mpi_uint8_t"), object("ompi_mpi_uint16_t"),
            object("ompi_mpi_uint32_t"), object("ompi_mpi_uint64_t"), object("ompi_mpi_float"),
            object("ompi_mpi_double"), object("ompi_mpi_op_sum"), object("ompi_mpi_op_prod"), object("ompi_mpi_op_min"),
            object("ompi_mpi_op_max"), object("ompi_mpi_op_lor"), object("ompi_mpi_op_land")});
  c.in_place = reinterpret_cast<void*>(1);
  c.status_ignore = nullptr;
  c.thread_funneled = 1;
  c.thread_serialized = 2;
  c.thread_multiple = 3;
  c.error_truncate = 15;
  c.error_no_mem = 39;
  c.last_usage_error = 13;
  return c;
}

MpiConstants mpich() {
  MpiConstants c = with(kMpich);
  c.in_place = reinterpret_cast<void*>(-1);
  c.status_ignore = reinterpret_cast<void*>(1);
  c.thread_funneled = 1;
  c.thread_serialized = 2;
  c.thread_multiple = 3;
  c.error_truncate = 14;
  c.error_no_mem = 34;
  c.last_usage_error = 12;
  c.handles_are_ints = true;
  return c;
}

MpiConstants standard() {
  MpiConstants c = with(kStandard);
  c.in_place = reinterpret_cast<void*>(1);
  c.status_ignore = nullptr;
  c.thread_funneled = 1024;
  c.thread_serialized = 2048;
  c.thread_multiple = 4096;
  c.error_truncate = 15;
  c.error_no_mem = 39;
  c.last_usage_error = 13;
  return c;
}

}  // namespace

const char* family_name(Family family) {
  switch (family) {
    case Family::kOpenMpi:
      return "Open MPI";
    case Family::kMpich:
      return "MPICH";
    default:
      return "MPI standard ABI";
  }
}

Family family_of(void* library, const std::string& path) {
  if (dlsym(library, "ompi_mpi_comm_world") != nullptr) return Family::kOpenMpi;
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.rfind("libmpi_abi", 0) == 0 ? Family::kStandard : Family::kMpich;
}

MpiConstants constants_of(Family family, void* library) {
  switch (family) {
    case Family::kOpenMpi:
      return open_mpi(library);
    case Family::kMpich:
      return mpich();
    default:
      return standard();
  }
}
