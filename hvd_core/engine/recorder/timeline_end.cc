// See timeline_end.h.
#include "engine/recorder/timeline_end.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/base/log.h"
#include "engine/recorder/observer.h"
#include "engine/recorder/timeline_format.h"

namespace hvd::recorder {
namespace {

constexpr std::string_view kHead = "[\n", kTail = "\n]\n";
// Spans that are open at the end began here at the latest, or stay open.
constexpr size_t kTailToRead = 32u << 20;
// A larger file stays as it is: the survivors have other things to do than to read it.
constexpr size_t kLargestFile = 256u << 20;

// A copy of a ring, and its texts by number. Nothing in it is trusted: its process may have written over it.
class RingCopy {
 public:
  RingCopy(const void* memory, uint64_t bytes)
      : memory_(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {
    if (!memory_) throw std::bad_alloc();
    // Read before the copy is made: the texts that it counts are in the copy, also of a ring that is being written.
    const uint32_t whole = static_cast<const RingHeader*>(memory)->texts_used.load(std::memory_order_acquire);
    std::memcpy(memory_.get(), memory, bytes);
    const auto& header = *reinterpret_cast<const RingHeader*>(memory_.get());
    if (header.version != kRingVersion) return;                        // this rank has not come so far
    ring_.emplace(memory_.get(), bytes, Observer::kRecorderCapacity);  // writes the layout anew
    const uint32_t used = std::min(whole, header.texts_bytes);
    const char* at = memory_.get() + header.texts_at;
    for (uint32_t done = 0; done + 6 <= used;) {
      uint32_t id;
      uint16_t length;
      std::memcpy(&id, at + done, 4);
      std::memcpy(&length, at + done + 4, 2);
      if (length > used - done - 6) break;
      texts_[id] = std::string_view(at + done + 6, length);
      done += 6 + uint32_t{length};
    }
  }

  bool valid() const { return ring_.has_value(); }
  const RingHeader& header() { return ring_->header(); }
  std::string_view text(uint32_t id) const {
    const auto it = texts_.find(id);
    return it == texts_.end() ? std::string_view() : it->second;
  }
  template <typename Take>
  void for_each(Take&& take) const {
    const uint64_t end = ring_->next(), most = ring_->capacity();
    Event e;
    for (uint64_t number = end > most ? end - most : 0; number < end; ++number)
      if (ring_->read(number, &e) == EventRing::Read::Taken) take(e);
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  std::optional<EventRing> ring_;
  std::unordered_map<uint32_t, std::string_view> texts_;
};

// The numbers of a ring's texts in `texts`.
class Renumbered {
 public:
  Renumbered(const RingCopy& ring, Texts& texts) : ring_(ring), texts_(texts) {}

  uint32_t operator()(uint32_t id) {
    if (id == 0) return 0;
    const auto [it, is_new] = known_.try_emplace(id, 0);
    if (const std::string_view text = ring_.text(id); is_new && !text.empty()) it->second = texts_.id(text);
    return it->second;
  }
  uint64_t both(uint64_t halves) {
    return (*this)(static_cast<uint32_t>(halves)) | uint64_t{(*this)(static_cast<uint32_t>(halves >> 32))} << 32;
  }
  Event event(Event e) {
    e.name = (*this)(e.name);
    if (e.kind != EventKind::Entry) e.what = (*this)(e.what);
    if (e.kind == EventKind::Members) {
      e.a = both(e.a);
      e.b = both(e.b);
    }
    return e;
  }

 private:
  const RingCopy& ring_;
  Texts& texts_;
  std::unordered_map<uint32_t, uint32_t> known_;
};

// In a line of the file. Within texts quotation marks are behind backslashes, so a key is found only where it is one.
int64_t number_at(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  int64_t n = 0;
  if (at != std::string_view::npos) std::from_chars(line.data() + at + key.size(), line.data() + line.size(), n);
  return n;
}

// The text behind `key`, with its quotation marks.
std::string_view text_at(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = line.substr(at + key.size());
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '\\')
      ++i;
    else if (rest[i] == '"')
      return rest.substr(0, i + 1);
  }
  return {};
}

// The file as its writer has left it.
class Left {
 public:
  explicit Left(std::string_view content) {
    // Cut off in the middle of a write, the file ends with a part of a line.
    body_ = content.ends_with(kTail) ? content.substr(0, content.size() - kTail.size())
                                     : content.substr(0, content.rfind('\n'));
    while (body_.ends_with(',') || body_.ends_with('\n')) body_.remove_suffix(1);
    if (!body_.starts_with(kHead) || body_.find("{\"name\":\"horovod_rank\"") == std::string_view::npos) return;
    const std::string_view head = line_at(body_.find("{\"name\":\"horovod_rank\""));
    pid_ = number_at(head, "\"os_pid\":");
    start_us_ = number_at(head, "\"start_in_clock_of_rank_0_in_micros\":");
    read_names();
    read_spans();
  }

  std::string_view body() const { return body_; }
  int64_t pid() const { return pid_; }
  int64_t start_us() const { return start_us_; }
  int64_t last() const { return last_; }
  bool aborted() const { return aborted_; }
  const TimelineFormat::InFile& tensors() const { return tensors_; }

 private:
  std::string_view line_at(size_t at) const { return body_.substr(at, body_.find('\n', at) - at); }

  void read_names() {
    constexpr std::string_view kKey = "\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":";
    for (size_t at = body_.find(kKey); at != std::string_view::npos; at = body_.find(kKey, at + 1)) {
      const std::string_view line = line_at(at + 1);
      const auto pid = static_cast<uint32_t>(number_at(line, "\"pid\":"));
      if (pid == 0) continue;  // the start of the file
      tensors_.names[std::string(text_at(line, "\"args\":{\"name\":"))].push_back(pid);
      tensors_.last_pid = std::max(tensors_.last_pid, pid);
    }
  }

  void read_spans() {
    size_t at = body_.size() > kTailToRead ? body_.find('\n', body_.size() - kTailToRead) : kHead.size();
    for (size_t end; at < body_.size(); at = end + 1) {
      end = std::min(body_.find('\n', at), body_.size());
      const std::string_view line = body_.substr(at, end - at);
      const size_t phase = line.find("\"ph\":\"");
      if (phase == std::string_view::npos) continue;
      const char kind = line[phase + 6];
      if (kind == 'M') continue;
      aborted_ = aborted_ || line.starts_with("{\"ph\":\"i\",\"name\":\"ABORTED\"");
      const int64_t time = number_at(line, "\"ts\":") + (kind == 'X' ? number_at(line, "\"dur\":") : 0);
      last_ = std::max(last_, time);
      const auto pid = static_cast<uint32_t>(number_at(line, "\"pid\":"));
      if (pid == 0) continue;
      auto& lane = tensors_.lanes[pid];
      lane.last_us = std::max(lane.last_us, time);
      if (kind == 'B') lane.open.emplace_back(text_at(line, "{\"name\":"));
      if (kind == 'E' && !lane.open.empty()) lane.open.pop_back();
    }
  }

  std::string_view body_;
  int64_t pid_ = 0, start_us_ = 0, last_ = 0;
  bool aborted_ = false;
  TimelineFormat::InFile tensors_;
};

// A file that no other rank completes meanwhile. Read and not mapped: a mapping of a file that shrinks, or whose disk
// fails, would end this process.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    struct stat s;
    if (fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd_, &s) != 0 || !S_ISREG(s.st_mode)) return;
    if (static_cast<uint64_t>(s.st_size) > kLargestFile) {
      base::log(base::Level::Warning, "the timeline of a dead rank is too long to be completed: " + path);
      return;
    }
    content_.resize(static_cast<size_t>(s.st_size));
    size_t done = 0;
    while (done < content_.size()) {
      const ssize_t n = ::pread(fd_, content_.data() + done, content_.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    if (done < content_.size()) content_.clear();
  }
  ~LockedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::string_view content() const { return content_; }

  // Replaces what is behind `offset`.
  bool write(const std::string& text, size_t offset) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::pwrite(fd_, text.data() + done, text.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      done += static_cast<size_t>(n);
    }
    return ::ftruncate(fd_, static_cast<off_t>(offset + text.size())) == 0;
  }

 private:
  int fd_;
  std::string content_;
};

// The events of the dead rank, with those of the others that say when a rank was ready.
std::vector<Event> events_of(RingCopy& dead, const std::vector<const void*>& rings, uint64_t bytes, Texts& texts) {
  std::vector<Event> own, ready, all;
  Renumbered renumbered(dead, texts);
  dead.for_each([&](const Event& e) { own.push_back(renumbered.event(e)); });
  for (const void* memory : rings) {
    RingCopy ring(memory, bytes);
    if (!ring.valid()) continue;
    Renumbered of_ring(ring, texts);
    ring.for_each([&](const Event& e) {
      if (e.kind != EventKind::Submitted || e.set != 0) return;  // in other sets ranks have other numbers
      ready.push_back({.time = e.time,
                       .kind = EventKind::Ready,
                       .detail = e.detail,
                       .name = of_ring(e.name),
                       .a = static_cast<uint64_t>(ring.header().rank),
                       .b = e.b});
    });
  }
  const auto earlier = [](const Event& a, const Event& b) { return a.time < b.time; };
  std::stable_sort(ready.begin(), ready.end(), earlier);
  std::merge(own.begin(), own.end(), ready.begin(), ready.end(), std::back_inserter(all), earlier);
  return all;
}

void complete(const void* memory, const std::vector<const void*>& rings, uint64_t bytes, int64_t clock_offset_ns,
              const std::string& cause) {
  RingCopy dead(memory, bytes);
  if (!dead.valid() || dead.text(kTimelinePath).empty()) return;
  LockedFile file{std::string(dead.text(kTimelinePath))};
  const Left left(file.content());
  if (left.aborted() || left.pid() == 0 || left.pid() != static_cast<int64_t>(dead.header().pid)) return;
  // The start of a file is a whole number of microseconds in the clock of its host.
  const int64_t start = (left.start_us() * 1000 - clock_offset_ns + 999) / 1000 * 1000;
  const int64_t end_of_file = start + left.last() * 1000;
  Texts texts([](uint32_t, std::string_view) {});
  std::string out;
  TimelineFormat format(texts, start, &out);
  format.continue_file(left.tensors());
  // The events that are in the file only show which spans are open at its end.
  bool in_file = true;
  for (const Event& e : events_of(dead, rings, bytes, texts)) {
    if (in_file && e.time >= end_of_file + 1000) {
      out.clear();
      format.reopen(left.tensors(), end_of_file);
      in_file = false;
    }
    format.take(e);
  }
  if (in_file) {
    out.clear();
    format.reopen(left.tensors(), end_of_file);
  }
  format.take({.time = base::now_ns(), .kind = EventKind::Aborted, .name = texts.id(cause)});
  out += kTail;
  if (!file.write(out, left.body().size()))
    base::log(base::Level::Warning, "the timeline of a dead rank could not be completed");
}

}  // namespace

void complete_timeline(const void* dead, const std::vector<const void*>& rings, uint64_t bytes, int64_t clock_offset_ns,
                       const std::string& cause) noexcept {
  try {
    complete(dead, rings, bytes, clock_offset_ns, cause);
  } catch (const std::exception& e) {
    base::log(base::Level::Warning, std::string("the timeline of a dead rank could not be completed: ") + e.what());
  }
}

}  // namespace hvd::recorder
