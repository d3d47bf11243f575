# The device's part of libhvd_backend_nccl.so: csrc/cuda_*.cc and the compiled kernels. Included by ../../CMakeLists.txt,
# which has made the target hvd_backend_nccl and knows HVD_INCLUDE_DIR.
#
# Where nvcc is found it compiles the kernels to machine code for each architecture below that it knows; devices of other
# architectures, and builds without nvcc, have generated/kernels.ptx, which the driver compiles when the device is opened. No CUDA
# library and no CUDA header is needed either way.
set(architectures 75 80 86 89 90 100 120)
if(SKBUILD_STATE STREQUAL "editable" OR HVD_IN_PLACE)
  set(architectures 80 90)  # a developer's build is to be quick
endif()
set(HVD_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Machine code for these (sm_XX), where nvcc is found")
find_program(HVD_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin
             DOC "NVIDIA's compiler; without it the kernels are compiled by the driver")

set(kernels "${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels")
set(made "${CMAKE_CURRENT_BINARY_DIR}/kernels")
file(MAKE_DIRECTORY "${made}")
set(nvcc_command "${HVD_NVCC}" -std=c++17 -O3 -fmad=false "-I${HVD_INCLUDE_DIR}")
file(GLOB kernel_headers CONFIGURE_DEPENDS "${kernels}/*.h")

set(architectures "")
if(HVD_NVCC)
  # nvcc may be too old for the kernels (before 11.7), or its host compiler too new for it or missing: then nvcc is not
  # used.
  file(WRITE "${made}/probe.cu" "#include <cstring>\n__global__ void nothing(const __grid_constant__ int) {}\n")
  execute_process(COMMAND ${nvcc_command} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  execute_process(COMMAND ${nvcc_command} -arch=compute_75 -ptx "${made}/probe.cu" -o "${made}/probe.ptx"
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(WARNING "${HVD_NVCC} does not work, so the kernels are left to the driver:\n${said}")
  else()
    foreach(arch IN LISTS HVD_CUDA_ARCHITECTURES)
      if(known MATCHES "sm_${arch}[^0-9]")
        list(APPEND architectures ${arch})
      endif()
    endforeach()
  endif()
endif()
message(STATUS "CUDA kernels: PTX; machine code for: ${architectures}")

# Data in the library: symbols around the contents of files, and the table that binaries.h speaks of.
string(CONCAT code "// Written by kernels.cmake.\n#include \"binaries.h\"\n\n"
       "#define HVD_BINARY(NAME, FILE)                                                              \\\n"
       "  __asm__(\".section .rodata\\n.balign 64\\n\" #NAME \":\\n.incbin \\\"\" FILE \"\\\"\\n\"  \\\n"
       "          #NAME \"_end:\\n.quad 0\\n.previous\\n\");                                        \\\n"
       "  extern \"C\" __attribute__((visibility(\"hidden\"))) const char NAME[], NAME##_end[];\n\n"
       "HVD_BINARY(hvd_kernels_ptx, \"${kernels}/generated/kernels.ptx\")\n")
set(table "")
set(binaries "")
foreach(arch IN LISTS architectures)
  set(cubin "${made}/kernels_sm_${arch}.cubin")
  add_custom_command(OUTPUT "${cubin}"
    COMMAND ${nvcc_command} -cubin -arch=sm_${arch} "${kernels}/kernels.cu" -o "${cubin}"
    DEPENDS "${kernels}/kernels.cu" ${kernel_headers} VERBATIM)
  list(APPEND binaries "${cubin}")
  string(APPEND code "HVD_BINARY(hvd_kernels_sm_${arch}, \"${cubin}\")\n")
  string(APPEND table "      {${arch}, hvd_kernels_sm_${arch}, size_t(hvd_kernels_sm_${arch}_end - hvd_kernels_sm_${arch})},\n")
endforeach()
string(APPEND code "\nnamespace hvd_kernels {\n\nconst Binary* binaries() {\n  static const Binary all[] = {\n${table}"
       "      {0, nullptr, 0}};\n  return all;\n}\n\nconst char* ptx() { return hvd_kernels_ptx; }\n\n}  // namespace hvd_kernels\n")
file(CONFIGURE OUTPUT "${made}/binaries.cc" CONTENT "${code}" @ONLY)
set_source_files_properties("${made}/binaries.cc" PROPERTIES OBJECT_DEPENDS "${binaries};${kernels}/generated/kernels.ptx")

target_sources(hvd_backend_nccl PRIVATE
  csrc/cuda_api.cc
  csrc/cuda_device.cc
  csrc/cuda_kernels.cc
  csrc/kernels/copy_launch.cc
  "${made}/binaries.cc")
target_include_directories(hvd_backend_nccl PRIVATE "${kernels}")
