// The reduction kernels compiled for one instruction set (AVX-512); its machine flags stand in CMakeLists.txt.
// Chosen at run time by dispatch.cc; nothing else may call in here.
#define HVD_KERNEL_ISA_NAME "avx512"
#define HVD_KERNEL_TABLE kernels_avx512
#include "kernels_impl.inc"
