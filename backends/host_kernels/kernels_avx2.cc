// The reduction kernels compiled for one instruction set (AVX2); its machine flags stand in CMakeLists.txt.
// Chosen at run time by dispatch.cc; nothing else may call in here.
#define HVD_KERNEL_ISA_NAME "avx2"
#define HVD_KERNEL_TABLE kernels_avx2
#include "kernels_impl.inc"
