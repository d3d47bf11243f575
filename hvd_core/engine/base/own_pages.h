// Memory for small blocks that live long, such as those for each name: in pages of its own. In malloc's heap such a
// block would lie between the program's tensors, and keep the memory of the tensors beside it apart after they are
// freed: every new name could cost the size of a tensor.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory_resource>
#include <new>

namespace hvd::base {

// Not thread-safe. Outlives the containers that use it.
class OwnPages {
 public:
  OwnPages() = default;
  OwnPages(const OwnPages&) = delete;
  OwnPages& operator=(const OwnPages&) = delete;

  std::pmr::memory_resource* get() { return &blocks_; }

 private:
  class Mapped final : public std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t) override {
      void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at == MAP_FAILED) throw std::bad_alloc();
      return at;
    }
    void do_deallocate(void* at, size_t bytes, size_t) override { ::munmap(at, bytes); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  };

  Mapped mapped_;
  std::pmr::unsynchronized_pool_resource blocks_{&mapped_};
};

}  // namespace hvd::base
