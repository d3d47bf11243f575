// The reduction kernels compiled for one instruction set (baseline); its machine flags stand in CMakeLists.txt.
// Chosen at run time by dispatch.cc; nothing else may call in here.
#define HVD_KERNEL_ISA_NAME "base"
#define HVD_KERNEL_TABLE kernels_base
#include "kernels_impl.inc"
