// Layout and rings of the control segment. See segment.h.
#include "engine/agreement/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/agreement/channel.h"

namespace hvd::agreement {
namespace {

constexpr uint64_t kUpBytes = 256u << 10, kDownBytes = 512u << 10, kAbortText = 32u << 10;
constexpr uint64_t kUpAt = 4096, kDownAt = kUpAt + kUpBytes, kRecorderAt = kDownAt + kDownBytes;
static_assert(kRecorderAt < Segment::kSlotBytes);

constexpr int kTextWaitMs = 100;

enum : uint32_t { kNoAbort = 0, kWriting = 1, kRaised = 2 };

// A new memfd is all zeros, which is a valid empty state of all of this.
struct Header {
  alignas(64) BellWord leader_bell;
  alignas(64) std::atomic<uint32_t> abort_state;
  char abort_text[kAbortText];
};
static_assert(sizeof(Header) <= Segment::kHeaderBytes);

struct SlotHeader {
  alignas(64) BellWord bell;
  RingCounters up, down;
};
static_assert(sizeof(SlotHeader) <= kUpAt);

}  // namespace

uint64_t Ring::write(const char* bytes, uint64_t n) {
  uint64_t w = counters->written.load(std::memory_order_relaxed);
  uint64_t room = capacity - (w - counters->read.load(std::memory_order_acquire));
  if (room < n) {
    counters->writer_waits.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    room = capacity - (w - counters->read.load(std::memory_order_acquire));
  }
  if (room > capacity) throw ChannelClosed("control segment: the neighbour's counters are broken");
  n = std::min(n, room);
  uint64_t at = w % capacity, first = std::min(n, capacity - at);
  std::memcpy(data + at, bytes, first);
  std::memcpy(data, bytes + first, n - first);
  counters->written.store(w + n, std::memory_order_release);
  return n;
}

uint64_t Ring::read(char* into, uint64_t room) {
  uint64_t r = counters->read.load(std::memory_order_relaxed);
  uint64_t n = counters->written.load(std::memory_order_acquire) - r;
  if (n > capacity) throw ChannelClosed("control segment: the neighbour's counters are broken");
  n = std::min(n, room);
  if (n == 0) return 0;
  uint64_t at = r % capacity, first = std::min(n, capacity - at);
  std::memcpy(into, data + at, first);
  std::memcpy(into + first, data, n - first);
  counters->read.store(r + n, std::memory_order_release);
  return n;
}

Segment::Segment(int fd, uint64_t bytes) : bytes_(bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping the control segment");
  base_ = static_cast<char*>(p);
  ::madvise(p, bytes, MADV_DONTFORK);
}

Segment::~Segment() { ::munmap(base_, bytes_); }

BellWord* Segment::leader_bell() const { return &reinterpret_cast<Header*>(base_)->leader_bell; }

namespace {
SlotHeader* slot_header(char* base, uint32_t slot) {
  return reinterpret_cast<SlotHeader*>(base + Segment::kHeaderBytes + Segment::kSlotBytes * slot);
}
}  // namespace

BellWord* Segment::bell(uint32_t slot) const { return &slot_header(base_, slot)->bell; }

Ring Segment::up(uint32_t slot) const {
  SlotHeader* h = slot_header(base_, slot);
  return {&h->up, reinterpret_cast<char*>(h) + kUpAt, kUpBytes};
}

Ring Segment::down(uint32_t slot) const {
  SlotHeader* h = slot_header(base_, slot);
  return {&h->down, reinterpret_cast<char*>(h) + kDownAt, kDownBytes};
}

const uint64_t Segment::kRecorderBytes = kSlotBytes - kRecorderAt;

void* Segment::recorder(uint32_t slot) const { return reinterpret_cast<char*>(slot_header(base_, slot)) + kRecorderAt; }

std::string Segment::raise_abort(const std::string& text) const {
  auto* h = reinterpret_cast<Header*>(base_);
  uint32_t none = kNoAbort;
  if (!h->abort_state.compare_exchange_strong(none, kWriting)) {
    for (int i = 0; i < kTextWaitMs && !abort_raised(); ++i) ::usleep(1000);  // another rank may be writing its text
    return abort_raised() ? abort_text() : text;
  }
  size_t n = std::min<size_t>(text.size(), kAbortText - 1);
  std::memcpy(h->abort_text, text.data(), n);
  h->abort_text[n] = 0;
  h->abort_state.store(kRaised);
  return text;
}

bool Segment::abort_raised() const {
  return reinterpret_cast<Header*>(base_)->abort_state.load(std::memory_order_acquire) == kRaised;
}

std::string Segment::abort_text() const {
  const char* text = reinterpret_cast<Header*>(base_)->abort_text;
  return std::string(text, ::strnlen(text, kAbortText));
}

void tell_failed_start(int fd, uint64_t bytes, int32_t rank, const std::string& why) noexcept {
  if (fd < 0) return;
  try {
    Segment(fd, bytes).raise_abort("rank " + std::to_string(rank) + ": " + why);
  } catch (const std::exception&) {  // the others see that this rank has ended
  }
}

}  // namespace hvd::agreement
