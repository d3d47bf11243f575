// Making and mapping a communicator's shared segment; see segment.h.
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <new>

#include "shared.h"

namespace hvd::shm {
namespace {

constexpr uint64_t kMagic = 0x6876645f73686d31;  // "hvd_shm1"
constexpr uint32_t kLayout = 2;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kPrefault = 8 << 20;

uint64_t areas_offset(uint32_t size) { return round_up(sizeof(Header) + sizeof(RankCtl) * uint64_t{size}, kPage); }
uint64_t area_bytes(uint64_t slot_bytes, uint64_t small_bytes) {
  return round_up(2 * small_bytes + kSlots * slot_bytes, kPage);
}

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer follows addresses, so ranks that are threads of one process must see the segment at one address.
struct Mapping {
  void* base;
  int users;
};
std::mutex g_mutex;
std::map<ino_t, Mapping> g_mappings;

void* map_pages(int fd, uint64_t bytes) {
  struct stat st;
  if (fstat(fd, &st) != 0) return MAP_FAILED;
  std::lock_guard<std::mutex> lock(g_mutex);
  Mapping& m = g_mappings[st.st_ino];
  if (m.users == 0) m.base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m.base != MAP_FAILED) ++m.users;
  return m.base;
}

void unmap_pages(void* base, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (auto it = g_mappings.begin(); it != g_mappings.end(); ++it) {
    if (it->second.base != base) continue;
    if (--it->second.users > 0) return;
    g_mappings.erase(it);
    break;
  }
  munmap(base, bytes);
}
#else
void* map_pages(int fd, uint64_t bytes) { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }
void unmap_pages(void* base, uint64_t bytes) { munmap(base, bytes); }
#endif

// Takes the page faults now rather than in the first operations. Where the kernel cannot, they are taken later.
void prefault(char* from, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(from, bytes, MADV_POPULATE_WRITE);
#else
  (void)from, (void)bytes;
#endif
}

}  // namespace

Descriptor make_memory(const char* label, uint64_t bytes) {
  Descriptor made(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made) {
    if (out_of_descriptors(errno)) throw no_descriptor_left();
    throw formatted_error(HVD_E_UNAVAILABLE, 0, "memfd_create failed: %s. The kernel or a seccomp filter forbids it",
                          strerror(errno));
  }
  if (ftruncate(made.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw formatted_error(HVD_E_NOMEM, 0, "%llu bytes of shared memory: %s", (unsigned long long)bytes,
                          strerror(errno));
  }
  return made;
}

bool keeps_size(int fd, uint64_t bytes) {
  struct stat st;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && static_cast<uint64_t>(st.st_size) == bytes;
}

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

Error no_descriptor_left() {
  return Error(HVD_E_UNAVAILABLE, "Too many open files in this process: raise their limit (ulimit -n)");
}

Segment::~Segment() {
  if (base_ != nullptr) unmap_pages(base_, total_);
}

Descriptor Segment::make(uint32_t size, uint64_t slot_bytes, uint64_t small_bytes) {
  const uint64_t total = areas_offset(size) + size * area_bytes(slot_bytes, small_bytes);
  Descriptor made = make_memory("hvd-shm", total);
  void* page = mmap(nullptr, sizeof(Header), PROT_READ | PROT_WRITE, MAP_SHARED, made.get(), 0);
  if (page == MAP_FAILED) {
    throw formatted_error(HVD_E_NOMEM, 0, "mapping the shared segment: %s", strerror(errno));
  }
  Header* header = new (page) Header{};
  header->identity = {kMagic, kLayout, size, slot_bytes, small_bytes, total};
  munmap(page, sizeof(Header));
  return made;
}

void Segment::map(int fd, uint32_t rank, uint32_t size) {
  Identity h;
  const bool readable = pread(fd, &h, sizeof h, 0) == static_cast<ssize_t>(sizeof h);
  if (!readable || h.magic != kMagic || h.layout != kLayout || h.size != size || h.slot_bytes > h.total_bytes ||
      h.small_bytes > h.total_bytes || h.slot_bytes < 256 * uint64_t{size} || h.small_bytes < 256 * uint64_t{size} ||
      !keeps_size(fd, h.total_bytes) ||
      h.total_bytes != areas_offset(size) + size * area_bytes(h.slot_bytes, h.small_bytes)) {
    throw formatted_error(
        HVD_E_REMOTE, 0,
        "rank 0 passed a segment that is not one for %u ranks in layout %u: the ranks run different versions "
        "of this backend",
        size, kLayout);
  }
  void* base = map_pages(fd, h.total_bytes);
  if (base == MAP_FAILED) {
    throw formatted_error(HVD_E_NOMEM, 0, "mapping %llu bytes of shared memory: %s", (unsigned long long)h.total_bytes,
                          strerror(errno));
  }
  base_ = base;
  total_ = h.total_bytes;
  slot_bytes_ = h.slot_bytes;
  small_bytes_ = h.small_bytes;
  area_bytes_ = area_bytes(slot_bytes_, small_bytes_);
  header_ = static_cast<Header*>(base);
  ctl_ = reinterpret_cast<RankCtl*>(static_cast<char*>(base) + sizeof(Header));
  areas_ = static_cast<char*>(base) + areas_offset(size);
  // A forked child (a data loader's worker) has no business here; its copy would also keep the memory alive.
  madvise(base, total_, MADV_DONTFORK);
  if (total_ <= kPrefault) {
    prefault(static_cast<char*>(base), total_);
  } else {
    prefault(area(rank), area_bytes_);
  }
}

}  // namespace hvd::shm
