// The memory of the fake device: each block has two mappings; see fake_device.h.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "hvd/backend.hpp"

namespace {

struct Memory {
  char* host = nullptr;    // the address that the host gets
  char* device = nullptr;  // the address that the device uses
  uint64_t bytes = 0, mapped = 0;
  int32_t kind = 0;
};

// All memory of the device, by the host's address.
class Pool {
 public:
  Memory* add(int32_t kind, uint64_t bytes) {
    auto made = std::make_unique<Memory>();
    made->bytes = bytes;
    made->kind = kind;
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    made->mapped = (bytes + page) / page * page;
    const int fd = memfd_create("fake_sync", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(made->mapped)) != 0) throw std::bad_alloc();
    const int seen = kind == HVD_MEM_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* device = mmap(nullptr, made->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void* host = mmap(nullptr, made->mapped, seen, MAP_SHARED, fd, 0);
    close(fd);
    if (device == MAP_FAILED || host == MAP_FAILED) throw std::bad_alloc();
    made->device = static_cast<char*>(device);
    made->host = static_cast<char*>(host);
    std::lock_guard<std::mutex> lock(mutex_);
    return (all_[made->host] = std::move(made)).get();
  }

  void remove(Memory* gone) {
    std::lock_guard<std::mutex> lock(mutex_);
    munmap(gone->device, gone->mapped);
    munmap(gone->host, gone->mapped);
    all_.erase(gone->host);
  }

  void remove(void* host) {
    Memory* gone;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      gone = all_.at(static_cast<char*>(host)).get();
    }
    remove(gone);
  }

  // The address by which the device reads a buffer; other host memory keeps its address.
  char* find(const hvd_buf& b, uint64_t bytes, int32_t* kind = nullptr) {
    char* at = static_cast<char*>(b.base) + b.offset;
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = all_.upper_bound(at);
    if (it == all_.begin()) return at;
    const Memory& m = *(--it)->second;
    const auto skip = static_cast<uint64_t>(at - m.host);
    if (skip >= m.mapped) return at;
    if (skip + bytes > m.bytes) throw hvd::Error(HVD_E_INVALID, "a buffer reaches beyond the end of its memory");
    if (kind) *kind = m.kind;
    return m.device + skip;
  }

 private:
  std::mutex mutex_;
  std::map<char*, std::unique_ptr<Memory>> all_;
};

Pool& pool() {
  static Pool all;
  return all;
}

}  // namespace
