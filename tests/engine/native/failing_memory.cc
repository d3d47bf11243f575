// Memory that runs out on demand, for a process that loads this library first (LD_PRELOAD): `operator new` of C++. What
// Python allocates is not concerned, so that a test's own code goes on.
#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> before_it{0}, failing{0}, seen{0};

void* allocate(std::size_t size) {
  if (failing.load(std::memory_order_relaxed) > 0) {
    seen.fetch_add(1);
    if (before_it.fetch_sub(1) <= 0 && failing.fetch_sub(1) > 0) return nullptr;
  }
  return std::malloc(size ? size : 1);
}
}  // namespace

// After `later` more allocations of any thread, the next `count` fail.
extern "C" void memory_runs_out(long later, long count) {
  seen = 0;
  before_it = later;
  failing = count;
}

// Returns how many allocations there have been since memory_runs_out().
extern "C" long memory_is_back() {
  failing = 0;
  return seen;
}

void* operator new(std::size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
