// cu* functions for modules, launches, and finding functions by name.
#include <dlfcn.h>
#include <elf.h>

#include <cstring>
#include <memory>
#include <string>

#include "counters.h"
#include "kernels.h"
#include "settings.h"
#include "streams.h"

namespace cusim {

struct Module {
  Context* context;
  std::string names;  // all text in which kernels are named: PTX as it is, a cubin's names of sections
  bool ptx;
};

struct Function {
  Context* context;
  const Kernel* kernel;
};

namespace {

// The newest PTX that a driver of this version understands, times ten.
int newest_ptx(int driver) {
  const int major = driver / 1000, minor = driver % 1000 / 10;
  if (major >= 13) return 90 + minor;
  if (major == 12) return minor <= 5 ? 80 + minor : 79 + minor;  // 12.6 came without a new one
  if (major == 11) return 70 + minor;
  return 65;
}

// The number behind `word`, times ten if it has a point; 0 if there is no number.
int number_after(const std::string& text, const char* word, bool point) {
  const size_t at = text.find(word);
  if (at == std::string::npos) return 0;
  const double number = atof(text.c_str() + at + strlen(word));
  return static_cast<int>(point ? number * 10 + 0.5 : number);
}

CUresult load_ptx(const char* image, Module* module) {
  module->names = image;
  const int version = number_after(module->names, ".version", true);
  const int target = number_after(module->names, ".target sm_", false);
  if (version == 0 || target == 0) return CUDA_ERROR_INVALID_PTX;
  if (version > newest_ptx(settings().driver_version)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  return target > settings().arch ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

CUresult load_cubin(const char* image, Module* module) {
  constexpr int kCudaMachine = 190;
  const auto* elf = reinterpret_cast<const Elf64_Ehdr*>(image);
  if (elf->e_machine != kCudaMachine) return CUDA_ERROR_INVALID_IMAGE;
  // The architecture moved within the flags with the eighth version of the format.
  const int arch = static_cast<int>(elf->e_ident[EI_ABIVERSION] >= 8 ? elf->e_flags >> 8 & 0xff : elf->e_flags & 0xff);
  if (arch / 10 != settings().arch / 10 || arch > settings().arch) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + elf->e_shoff);
  const Elf64_Shdr& names = sections[elf->e_shstrndx];
  module->names.assign(image + names.sh_offset, names.sh_size);
  return CUDA_SUCCESS;
}

bool is_entry(const Module& module, const char* name) {
  if (!module.ptx) return module.names.find(std::string(".text.") + name + '\0') != std::string::npos;
  return module.names.find(std::string(".entry ") + name) != std::string::npos;
}

CUresult load(CUmodule* out, const void* image) {
  Context* context = nullptr;
  CUresult error = enter(&context);
  if (error == CUDA_SUCCESS) error = prohibited();
  if (error != CUDA_SUCCESS) return error;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto module = std::make_unique<Module>(Module{context, {}, memcmp(image, ELFMAG, SELFMAG) != 0});
  const auto* bytes = static_cast<const char*>(image);
  error = module->ptx ? load_ptx(bytes, module.get()) : load_cubin(bytes, module.get());
  if (error == CUDA_SUCCESS) *out = module.release();
  return error;
}

}  // namespace
}  // namespace cusim

using namespace cusim;

SIM_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  SIM_CALLED;
  return load(module, image);
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, const int* options,
                                       void** values) {
  SIM_CALLED;
  const CUresult error = load(module, image);
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;
  char* log = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kErrorLog) log = static_cast<char*>(values[i]);
    if (options[i] == kErrorLogBytes) bytes = reinterpret_cast<uintptr_t>(values[i]);
  }
  if (log != nullptr && bytes > 0) {
    const std::string text = error == CUDA_SUCCESS ? "" : "simulated JIT: error " + std::to_string(error);
    log[text.copy(log, bytes - 1)] = '\0';
  }
  return error;
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module) {
  SIM_CALLED;
  Context* context = nullptr;
  CUresult error = enter(&context);
  if (error == CUDA_SUCCESS) error = prohibited();
  if (error == CUDA_SUCCESS) delete module;
  return error;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (out == nullptr || module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = is_entry(*module, name) ? find_kernel(name) : nullptr;
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = new Function{module->context, kernel};  // lives for ever; there are few
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (value == nullptr || function == nullptr || attribute < 0 || attribute > 9) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;  // threads of a block, registers of a thread
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 2048 / threads;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream handle, void** parameters, void** extra) {
  SIM_CALLED;
  StreamRef stream;
  CUresult error = usable(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  if (function == nullptr || function->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_y != 1 || block_z != 1 || extra != nullptr ||
      parameters == nullptr || grid_x > 0x7fffffff) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (block_x > 1024 || shared_bytes > 48 * 1024) return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = function->kernel;
  const auto* given = static_cast<const char*>(parameters[0]);
  std::vector<char> copy(given, given + kernel->parameter_bytes);
  return give(*stream,
              [kernel, grid_x, block_x, copy = std::move(copy)] { return kernel->run(grid_x, block_x, copy); });
}

// Functions of this very library by the names without versions, as the runtime asks for them.
SIM_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** out, int, uint64_t, int* status) {
  SIM_CALLED;
  static void* const own = [] {
    Dl_info where{};
    dladdr(reinterpret_cast<void*>(&newest_ptx), &where);
    return dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  *out = dlsym(own, (std::string(symbol) + "_v2").c_str());
  if (*out == nullptr) *out = dlsym(own, symbol);
  if (status != nullptr) *status = *out == nullptr ? 1 : 0;
  return *out == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
