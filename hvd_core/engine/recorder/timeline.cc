// See timeline.h.
#include "engine/recorder/timeline.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <system_error>

#include "engine/base/log.h"
#include "engine/base/threads.h"

namespace hvd::recorder {
namespace {

constexpr char kFileTail[] = "\n]\n";
constexpr uint64_t kTailBytes = 3;
constexpr uint64_t kPieceBytes = 32u << 10;  // one write
constexpr auto kWritePause = std::chrono::milliseconds(50), kLongestPause = std::chrono::milliseconds(100);
// A record that a thread has begun to write and does not finish is skipped after so many looks.
constexpr int kLooks = 5;

std::string json_text(const std::string& s) {
  std::string out;
  for (const char c : s)
    if (static_cast<unsigned char>(c) >= 0x20)
      out += (c == '"' || c == '\\') ? std::string{'\\', c} : std::string(1, c);
  return out;
}

// The file that holds the events before those of `path`: "t.json" -> "t.before.json".
std::string before(const std::string& path) {
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) return path + ".before";
  return path.substr(0, dot) + ".before" + path.substr(dot);
}

}  // namespace

Timeline::Timeline(TimelineSettings settings, std::string path, const Observer& observer, int32_t size,
                   const EventRing& ring, uint64_t first, Texts& texts)
    : settings_(std::move(settings)),
      path_(std::move(path)),
      host_(observer.host()),
      rank_(observer.rank()),
      size_(size),
      clock_offset_ns_(observer.settings().clock_offset_ns),
      start_(base::now_ns()),
      ring_(ring),
      at_(first),
      format_(texts, start_, &out_) {
  try {
    open();
    thread_ = base::start_thread("hvd-timeline", [this] { run(); });
  } catch (...) {  // the destructor does not run
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

Timeline::~Timeline() {
  finish(ring_.next());
  await_end();
  if (fd_ >= 0) ::close(fd_);
}

void Timeline::finish(uint64_t end) {
  {
    std::lock_guard lock(mutex_);
    if (!finishing_) end_ = end;
    finishing_ = true;
  }
  changed_.notify_all();
}

void Timeline::await_end() {
  if (thread_.joinable()) thread_.join();
}

void Timeline::wake() {
  {
    std::lock_guard lock(mutex_);
    awake_ = true;
  }
  changed_.notify_all();
}

void Timeline::open() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path_);
  const int64_t epoch_us = (wall_clock_ns() - (base::now_ns() - start_)) / 1000;
  std::string head =
      "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"start_time_since_epoch_in_micros\":";
  head += std::to_string(epoch_us) + "}}";
  head += ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"args\":{\"sort_index\":0}}";
  head += ",\n{\"name\":\"horovod_rank\",\"ph\":\"M\",\"pid\":0,\"args\":{\"rank\":" + std::to_string(rank_) +
          ",\"size\":" + std::to_string(size_) + ",\"host\":\"" + json_text(host_) +
          "\",\"os_pid\":" + std::to_string(::getpid()) +
          ",\"start_in_clock_of_rank_0_in_micros\":" + std::to_string((start_ + clock_offset_ns_) / 1000) + "}}";
  out_.insert(0, head);
  end_of_events_ = 0;
  write();
}

// One system call for the new events and the closing bracket. A process that is killed leaves what it wrote before.
void Timeline::write() {
  if (fd_ < 0) out_.clear();  // the file has ended by an error: later events must not pile up
  if (out_.empty()) return;
  const size_t events = out_.size();
  out_ += kFileTail;
  size_t done = 0;
  while (done < out_.size()) {
    const ssize_t n = ::pwrite(fd_, out_.data() + done, out_.size() - done, static_cast<off_t>(end_of_events_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      give_up(errno);
      break;
    }
    done += static_cast<size_t>(n);
  }
  end_of_events_ += events;
  out_.clear();
}

void Timeline::give_up(int error) {
  base::log(base::Level::Warning,
            "the timeline " + path_ + " ends here: it cannot be written: " + std::strerror(error));
  ::close(std::exchange(fd_, -1));
}

// The file is full: it becomes the file of the events before, and a new one begins.
void Timeline::rotate(int64_t at) {
  format_.end_spans(at, true);
  write();
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  if (::rename(path_.c_str(), before(path_).c_str()) != 0) return give_up(errno);
  try {
    open();
  } catch (const std::system_error& e) {
    base::log(base::Level::Warning, std::string("the timeline cannot go on in a new file: ") + e.what());
    return;
  }
  format_.begin_again(at);
  write();
}

void Timeline::take_events() {
  uint64_t end = ring_.next();
  {
    std::lock_guard lock(mutex_);
    if (finishing_) end = std::min(end, end_);
  }
  int looks = 0;
  while (at_ < end) {
    Event e;
    const auto read = ring_.read(at_, &e);
    if (read == EventRing::Read::NotYet) {
      if (++looks < kLooks) {
        std::this_thread::yield();
        continue;
      }
      if (ring_.next() - at_ < ring_.capacity() / 2) {
        std::lock_guard lock(mutex_);
        if (!finishing_) break;  // the record is complete at the next look
      }
      ++at_;
      looks = 0;
      continue;
    }
    looks = 0;
    if (read == EventRing::Read::Lost) {
      const uint64_t next = ring_.next(), to = std::min(end, next - ring_.capacity() / 2);
      format_.lost(to - at_, base::now_ns());
      at_ = to;
      continue;
    }
    ++at_;
    format_.take(e);
    const uint64_t most = settings_.max_bytes;
    if (out_.size() < (most > 0 ? std::min(kPieceBytes, most / 16) : kPieceBytes)) continue;
    write();
    // Two files; an eighth is left for the ends of spans and the names at the head of the next file.
    if (most > 0 && end_of_events_ > most / 8 * 3) rotate(e.time);
  }
  write();
}

bool Timeline::run_once(std::chrono::milliseconds* pause) {
  const uint64_t before = at_;
  take_events();
  *pause = at_ != before ? kWritePause : std::min(2 * *pause, kLongestPause);
  std::unique_lock lock(mutex_);
  if (finishing_ && at_ >= end_) return false;
  changed_.wait_for(lock, *pause, [this] { return awake_ || finishing_; });
  awake_ = false;
  return true;
}

void Timeline::run() noexcept {
  // The end of a pause must not interrupt a thread that computes. Where that is forbidden it works as well.
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
  try {
    for (std::chrono::milliseconds pause = kWritePause; run_once(&pause);) {
    }
    format_.end_spans(base::now_ns(), false);
    write();
  } catch (const std::exception& e) {  // what is in the file stays, and is whole
    base::log(base::Level::Warning, "the timeline " + path_ + " ends here: " + e.what());
  }
}

}  // namespace hvd::recorder
