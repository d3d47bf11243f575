// The table of allocations, behind one mutex: lookups are short, and memory is mapped and unmapped outside of it.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "runtime.h"

namespace sim {
namespace {

constexpr size_t kScrambled = size_t{1} << 20;  // of each new or freed allocation
constexpr unsigned char kRubbish = 0xdd;
// Names of views are this far apart, so that arithmetic on one does not give another.
constexpr size_t kViewSpacing = size_t{1} << 20;
constexpr size_t kViewRegion = size_t{1} << 40;

struct Registry {
  std::mutex mutex;
  std::map<const char*, MemoryRef> by_base;
  std::map<const char*, std::pair<MemoryRef, size_t>> by_view;
  std::vector<const char*> free_views;
  char* view_region = nullptr;
  size_t views_made = 0;
  std::map<int, size_t> used;
};

Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void scramble(Memory& m) { memset(m.alias, kRubbish, std::min(m.bytes, kScrambled)); }

bool map_twice(Memory& m) {
  const int fd = static_cast<int>(memfd_create("eccl_sim device memory", MFD_CLOEXEC));
  if (fd < 0) return false;
  if (ftruncate(fd, static_cast<off_t>(m.mapped)) == 0) {
    void* base = mmap(nullptr, m.mapped, PROT_NONE, MAP_SHARED, fd, 0);
    void* alias = mmap(nullptr, m.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    m.base = base == MAP_FAILED ? nullptr : static_cast<char*>(base);
    m.alias = alias == MAP_FAILED ? nullptr : static_cast<char*>(alias);
  }
  close(fd);
  if (m.base == nullptr || m.alias == nullptr) return false;
  // A forked child has no devices, and must not keep their memory.
  madvise(m.base, m.mapped, MADV_DONTFORK);
  madvise(m.alias, m.mapped, MADV_DONTFORK);
  return true;
}

// With the registry's mutex held.
Found find_locked(Registry& all, const char* p) {
  const auto view = all.by_view.find(p);
  if (view != all.by_view.end()) return {view->second.first, view->second.second, false};
  auto at = all.by_base.upper_bound(p);
  if (at != all.by_base.begin()) {
    --at;
    const MemoryRef& m = at->second;
    const auto offset = static_cast<size_t>(p - m->base);
    // One past the end still belongs to it, as far as bounds are concerned.
    if (offset <= m->bytes && (offset < m->mapped || offset == 0)) {
      return {m, offset, m->type == topsMemoryTypeScatter && offset != 0};
    }
  }
  const bool in_region = all.view_region != nullptr && p >= all.view_region && p < all.view_region + kViewRegion;
  return {nullptr, 0, in_region};
}

}  // namespace

Memory::~Memory() {
  if (base != nullptr) munmap(base, mapped);
  if (alias != nullptr && alias != base) munmap(alias, mapped);
}

MemoryRef allocate_device(int device, size_t bytes) {
  Registry& all = registry();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (bytes > settings().device_bytes - std::min(settings().device_bytes, all.used[device])) return nullptr;
    all.used[device] += bytes;
  }
  auto m = std::make_shared<Memory>();
  m->type = settings().handles ? topsMemoryTypeScatter : topsMemoryTypeDevice;
  m->device = device;
  m->bytes = bytes;
  m->mapped = whole_pages(bytes);
  const bool made = map_twice(*m);
  if (made) scramble(*m);
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!made) {
    all.used[device] -= bytes;
    return nullptr;
  }
  all.by_base[m->base] = m;
  return m;
}

namespace {

MemoryRef allocate_reachable(int device, size_t bytes, topsMemoryType type) {
  auto m = std::make_shared<Memory>();
  m->type = type;
  m->device = device;
  m->bytes = bytes;
  m->mapped = whole_pages(bytes);
  void* base = mmap(nullptr, m->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  m->base = m->alias = static_cast<char*>(base);
  const std::lock_guard<std::mutex> lock(registry().mutex);
  if (m->on_device()) registry().used[device] += bytes;
  registry().by_base[m->base] = m;
  return m;
}

}  // namespace

MemoryRef allocate_pinned(int device, size_t bytes) { return allocate_reachable(device, bytes, topsMemoryTypeHost); }

MemoryRef allocate_managed(int device, size_t bytes) { return allocate_reachable(device, bytes, topsMemoryTypeDevice); }

Found find(const void* p) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return find_locked(registry(), static_cast<const char*>(p));
}

topsError_t device_span(const void* p, size_t bytes, int device, Span* span) {
  Found found = find(p);
  if (found.arithmetic || found.memory == nullptr || !found.memory->on_device()) return topsErrorInvalidDevicePointer;
  if (found.memory->device != device) return topsErrorInvalidValue;
  if (bytes > found.memory->bytes - found.offset) return topsErrorInvalidValue;
  span->data = found.memory->alias + found.offset;
  span->memory = std::move(found.memory);
  return topsSuccess;
}

topsError_t host_span(const void* p, size_t bytes, Span* span) {
  Found found = find(p);
  span->data = static_cast<char*>(const_cast<void*>(p));
  if (found.arithmetic) return topsErrorInvalidDevicePointer;
  if (found.memory == nullptr) return p == nullptr ? topsErrorInvalidValue : topsSuccess;
  if (found.memory->on_device()) return topsErrorInvalidMemcpyDirection;
  if (bytes > found.memory->bytes - found.offset) return topsErrorInvalidValue;
  span->memory = std::move(found.memory);
  return topsSuccess;
}

topsError_t view_of(void* base, size_t offset, size_t bytes, void** view) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Found found = find_locked(all, static_cast<const char*>(base));
  if (found.arithmetic || found.memory == nullptr || !found.memory->on_device()) return topsErrorInvalidDevicePointer;
  const size_t room = found.memory->bytes - found.offset;
  if (offset > room || bytes > room - offset) return topsErrorInvalidValue;
  const size_t from_start = found.offset + offset;
  Memory& m = *found.memory;
  if (m.type != topsMemoryTypeScatter || from_start == 0) {
    *view = m.base + from_start;
    return topsSuccess;
  }
  const char*& name = m.views[from_start];
  if (name == nullptr) {
    if (all.view_region == nullptr) {
      void* region = mmap(nullptr, kViewRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (region == MAP_FAILED) return topsErrorOutOfMemory;
      all.view_region = static_cast<char*>(region);
    }
    if (!all.free_views.empty()) {
      name = all.free_views.back();
      all.free_views.pop_back();
    } else {
      if ((all.views_made + 1) * kViewSpacing > kViewRegion) return topsErrorOutOfMemory;
      name = all.view_region + all.views_made++ * kViewSpacing;
    }
    all.by_view[name] = {found.memory, from_start};
  }
  *view = const_cast<char*>(name);
  return topsSuccess;
}

topsError_t release(void* p, bool on_device) {
  Registry& all = registry();
  MemoryRef m;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto at = all.by_base.find(static_cast<char*>(p));
    if (at == all.by_base.end() || at->second->on_device() != on_device) {
      return on_device ? topsErrorInvalidDevicePointer : topsErrorInvalidValue;
    }
    m = at->second;
    all.by_base.erase(at);
    for (const auto& [offset, name] : m->views) {
      all.by_view.erase(name);
      all.free_views.push_back(name);
    }
    if (on_device) all.used[m->device] -= m->bytes;
  }
  scramble(*m);
  return topsSuccess;
}

namespace {
thread_local KernelScope* running_kernel = nullptr;
}

KernelScope::KernelScope(int device) : device_(device) { running_kernel = this; }

KernelScope::~KernelScope() { running_kernel = nullptr; }

void* KernelScope::address(const void* p, size_t bytes) {
  KernelScope* kernel = running_kernel;
  if (kernel == nullptr) return nullptr;
  Span span;
  if (device_span(p, bytes, kernel->device_, &span) != topsSuccess) {
    kernel->faulted_ = true;
    return nullptr;
  }
  kernel->seen_.push_back(std::move(span.memory));
  return span.data;
}

size_t used_on(int device) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().used[device];
}

}  // namespace sim
