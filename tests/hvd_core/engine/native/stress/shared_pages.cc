// For ThreadSanitizer only: every rank of the process gets the same addresses for the same shared file.
//
// The sanitizer follows addresses. Ranks that are threads of one process each map the control segment; with a mapping
// of their own it would see neither their accesses as one memory nor what orders them. This stands in for mmap and
// munmap in the whole process, for shared mappings of files; everything else goes through, from the first moment on:
// the sanitizer itself calls these before it is up, which is why this file is compiled without it.

#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <mutex>

extern "C" {
void* __interceptor_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __interceptor_munmap(void* address, size_t bytes);
}

namespace {

constexpr size_t kPlaces = 64;

struct Place {
  std::atomic<void*> base{nullptr};
  dev_t device = 0;
  ino_t file = 0;
  size_t bytes = 0;
  int users = 0;
};

std::mutex g_mutex;  // guards g_places; never held in calls of the sanitizer itself
Place g_places[kPlaces];

void* shared(size_t bytes, int protection, int flags, int fd, const struct stat& file) {
  std::lock_guard lock(g_mutex);
  Place* free = nullptr;
  for (Place& p : g_places) {
    if (p.users == 0)
      free = &p;
    else if (p.device == file.st_dev && p.file == file.st_ino && p.bytes == bytes)
      return ++p.users, p.base.load();
  }
  void* base = __interceptor_mmap(nullptr, bytes, protection, flags, fd, 0);
  if (base == MAP_FAILED || free == nullptr) return base;
  free->device = file.st_dev;
  free->file = file.st_ino;
  free->bytes = bytes;
  free->users = 1;
  free->base = base;
  return base;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* mmap(void* address, size_t bytes, int protection, int flags,
                                                             int fd, off_t offset) {
  struct stat file;
  if (fd < 0 || (flags & MAP_SHARED) == 0 || address != nullptr || offset != 0 || ::fstat(fd, &file) != 0)
    return __interceptor_mmap(address, bytes, protection, flags, fd, offset);
  return shared(bytes, protection, flags, fd, file);
}

extern "C" __attribute__((visibility("default"))) int munmap(void* address, size_t bytes) {
  for (Place& p : g_places) {
    if (p.base != address) continue;
    std::lock_guard lock(g_mutex);
    if (p.base != address) break;
    if (--p.users > 0) return 0;
    p.base = nullptr;
    break;
  }
  return __interceptor_munmap(address, bytes);
}
