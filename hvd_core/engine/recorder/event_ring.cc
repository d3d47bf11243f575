// See event_ring.h.
#include "engine/recorder/event_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvd::recorder {
namespace {

constexpr char kMagic[] = "hvdring1";
constexpr size_t kLongestText = 400;
constexpr uint32_t kKeptForLast = 6 + kLongestText;

void copy_text(char* to, size_t room, const std::string& from) {
  const size_t n = std::min(room - 1, from.size());
  std::memcpy(to, from.data(), n);
  to[n] = 0;
}

// Makes a folder that only this user can read. Returns the reason if the path is no folder of this user's.
std::string own_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return path + ": " + std::strerror(errno);
  struct stat s;
  if (::lstat(path.c_str(), &s) != 0) return path + ": " + std::strerror(errno);
  if (!S_ISDIR(s.st_mode)) return path + " is not a folder";
  if (s.st_uid != ::geteuid()) return path + " belongs to another user";
  return "";
}

}  // namespace

EventRing::EventRing(void* memory, uint64_t bytes, uint32_t capacity)
    : header_(static_cast<RingHeader*>(memory)),
      counts_(reinterpret_cast<RingCounts*>(header_ + 1)),
      mask_(capacity - 1) {
  const uint64_t records_at = bytes - uint64_t{capacity} * sizeof(Record);
  header_->version = kRingVersion;
  header_->header_bytes = sizeof(RingHeader);
  header_->record_bytes = sizeof(Record);
  header_->capacity = capacity;
  header_->texts_at = sizeof(RingHeader) + sizeof(RingCounts);
  header_->texts_bytes = static_cast<uint32_t>(records_at - header_->texts_at);
  header_->records_at = static_cast<uint32_t>(records_at);
  texts_ = static_cast<char*>(memory) + header_->texts_at;
  records_ = reinterpret_cast<Record*>(static_cast<char*>(memory) + records_at);
}

void EventRing::claim(int32_t rank, int32_t size, const std::string& host, const std::string& job) {
  header_->pid = static_cast<uint32_t>(::getpid());
  header_->rank = rank;
  header_->size = size;
  copy_text(header_->host, sizeof header_->host, host);
  copy_text(header_->job, sizeof header_->job, job);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, kMagic, sizeof header_->magic);
}

bool EventRing::add_text(uint32_t id, std::string_view text, bool last) {
  text = text.substr(0, kLongestText);
  const uint32_t used = header_->texts_used.load(std::memory_order_relaxed);
  const uint32_t need = static_cast<uint32_t>(6 + text.size());
  if (used + need + (last ? 0 : kKeptForLast) > header_->texts_bytes) return false;
  char* at = texts_ + used;
  const auto length = static_cast<uint16_t>(text.size());
  std::memcpy(at, &id, 4);
  std::memcpy(at + 4, &length, 2);
  std::memcpy(at + 6, text.data(), text.size());
  header_->texts_used.store(used + need, std::memory_order_release);
  return true;
}

EventRing::Read EventRing::read(uint64_t number, Event* e) const {
  const Record& r = records_[number & mask_];
  const auto expected = static_cast<uint32_t>(number + 1);
  if (number + capacity() <= next()) return Read::Lost;
  if (r.stamp.load(std::memory_order_acquire) != expected) return Read::NotYet;
  const uint32_t head = r.head.load(std::memory_order_relaxed);
  e->kind = static_cast<EventKind>(head & 0xff);
  e->detail = static_cast<uint8_t>(head >> 8 & 0xff);
  e->set = static_cast<uint16_t>(head >> 16);
  e->time = r.time.load(std::memory_order_relaxed);
  e->name = r.name.load(std::memory_order_relaxed);
  e->what = r.what.load(std::memory_order_relaxed);
  e->a = r.a.load(std::memory_order_relaxed);
  e->b = r.b.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  return r.stamp.load(std::memory_order_relaxed) == expected ? Read::Taken : Read::Lost;
}

namespace {

// A new file of this rank in the folder, or -1 with the reason.
int new_file(const std::string& folder, int32_t rank, std::string* path, std::string* why) {
  if (folder.empty()) {
    *why = "there is no folder for it";
    return -1;
  }
  // The parent may be shared, as /tmp is, or missing. The folder itself is this user's.
  if (const size_t slash = folder.rfind('/'); slash != std::string::npos && slash > 0)
    if (const std::string parent = folder.substr(0, slash); ::access(parent.c_str(), F_OK) != 0) {
      *why = own_folder(parent);
      if (!why->empty()) return -1;
    }
  *why = own_folder(folder);
  if (!why->empty()) return -1;
  *path = folder + "/rank-" + std::to_string(rank) + ".flight";
  const int fd = ::open(path->c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) *why = *path + ": " + std::strerror(errno);
  return fd;
}

}  // namespace

std::string save_ring(const void* memory, uint64_t bytes, const std::string& folder, int32_t rank, std::string* why) {
  std::string path;
  const int fd = new_file(folder, rank, &path, why);
  if (fd < 0) return "";
  const char* at = static_cast<const char*>(memory);
  uint64_t left = bytes;
  while (left > 0) {
    const ssize_t n = ::write(fd, at, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += n;
    left -= static_cast<uint64_t>(n);
  }
  if (left > 0) *why = path + ": " + std::strerror(errno);
  ::close(fd);
  if (left == 0) return path;
  ::unlink(path.c_str());
  return "";
}

MappedMemory map_ring(const std::string& folder, int32_t rank, uint64_t bytes) {
  std::string path, why;
  int fd = new_file(folder, rank, &path, &why);
  // Without blocks of its own, a write to the memory would end the process where the disk is full.
  if (fd >= 0 && ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) != 0) {
    ::unlink(path.c_str());
    ::close(std::exchange(fd, -1));
  }
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (fd < 0)
    path.clear();
  else
    ::close(fd);
  if (at == MAP_FAILED) {
    if (!path.empty()) ::unlink(path.c_str());
    return {};
  }
  ::madvise(at, bytes, MADV_DONTFORK);
  return {at, bytes, std::move(path)};
}

void remove_ring(const std::string& path) {
  ::unlink(path.c_str());
  ::rmdir(path.substr(0, path.rfind('/')).c_str());  // by the last rank that has a file there
}

MappedMemory::~MappedMemory() {
  if (at_) ::munmap(at_, bytes_);
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  return *this;
}

}  // namespace hvd::recorder
