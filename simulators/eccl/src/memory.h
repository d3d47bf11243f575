// Allocations: the memory behind a pointer of the caller, and where its bytes really are.
//
// Device memory is an anonymous file mapped twice. The caller gets the mapping that may not be touched (PROT_NONE); the
// other one is known to the library alone. With handles (TOPS_SIM_MEMORY=handle) only the first byte of the caller's
// mapping, or a view's name, means something. Any thread; an allocation lives as long as a reference to it.
#pragma once

#include <tops_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace sim {

struct Memory {
  topsMemoryType type = topsMemoryTypeHost;
  int device = 0;
  size_t bytes = 0;   // as asked for; the mappings are whole pages
  size_t mapped = 0;  // length of each mapping
  char* base = nullptr;
  char* alias = nullptr;                // where the bytes can be reached; equal to base where the host can reach them
  std::map<size_t, const char*> views;  // of handles: offset -> name

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  bool on_device() const { return type != topsMemoryTypeHost; }
};

using MemoryRef = std::shared_ptr<Memory>;

// Null if the system gives no memory.
MemoryRef allocate_device(int device, size_t bytes);
MemoryRef allocate_pinned(int device, size_t bytes);
// Device memory that the host can reach as well, in runtimes that have such.
MemoryRef allocate_managed(int device, size_t bytes);

// Contiguous memory that queued work will use. `memory` keeps it mapped; null for host memory of the caller's.
struct Span {
  char* data = nullptr;
  MemoryRef memory;
};

struct Found {
  MemoryRef memory;  // null: not memory of this library
  size_t offset = 0;
  bool arithmetic = false;  // a handle to which an offset was added
};

// What `p` points to.
Found find(const void* p);
// `bytes` from device memory `p` of `device`, or why not.
topsError_t device_span(const void* p, size_t bytes, int device, Span* span);
// `bytes` of host memory at `p`, which must not be device memory.
topsError_t host_span(const void* p, size_t bytes, Span* span);
// The name of `base` + `offset` (topsSimSubBuffer).
topsError_t view_of(void* base, size_t offset, size_t bytes, void** view);

// Forgets the allocation that begins at `p`. Its contents are lost at once, so that a later use is noticed.
topsError_t release(void* p, bool on_device);

// While a KernelScope lives on a thread, that thread runs a kernel of `device`: it can get addresses of device memory,
// which stay mapped until the end of the scope.
class KernelScope {
 public:
  explicit KernelScope(int device);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  bool faulted() const { return faulted_; }
  static void* address(const void* p, size_t bytes);  // null outside of a kernel, and where it faults

 private:
  const int device_;
  bool faulted_ = false;
  std::vector<MemoryRef> seen_;
};

// Bytes of device memory in use.
size_t used_on(int device);

}  // namespace sim
