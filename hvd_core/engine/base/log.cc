// See log.h.
#include "engine/base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>

#include "engine/base/text.h"

namespace hvd::base {
namespace {
std::atomic<int32_t> g_threshold{static_cast<int32_t>(Level::Warning)}, g_rank{-1};
std::atomic<bool> g_with_time{true}, g_has_stderr{true}, g_keeps{false};

// Never destroyed: threads of backends may log while the process ends.
struct Kept {
  static constexpr size_t kMost = 4096;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<LogLine> lines;
};
std::atomic<Kept*>& kept_now() {
  static std::atomic<Kept*> all{new Kept};
  return all;
}
Kept& kept() { return *kept_now(); }

bool keep(Level level, const std::string& text) {
  if (!g_keeps || level == Level::Fatal) return false;
  const std::unique_lock lock(kept().mutex, std::try_to_lock);
  if (!lock || !g_keeps || kept().lines.size() >= Kept::kMost) return false;
  kept().lines.push_back({level, text});
  kept().changed.notify_one();
  return true;
}
}  // namespace

void set_log(Level threshold, bool with_time, int32_t rank) {
  g_threshold = static_cast<int32_t>(threshold);
  g_with_time = with_time;
  g_rank = rank;
}

void log_nothing() { g_has_stderr = false; }

bool log_enabled(Level level) {
  return static_cast<int32_t>(level) >= g_threshold.load(std::memory_order_relaxed) && (g_has_stderr || g_keeps);
}

void keep_lines(bool on) {
  const std::lock_guard lock(kept().mutex);
  g_keeps = on;
  kept().changed.notify_all();
}

void keep_lines_no_more() {
  g_keeps = false;
  kept_now() = new Kept;  // the parent's may be locked for good, and its lines are the parent's
}

std::optional<LogLine> take_line() {
  std::unique_lock lock(kept().mutex);
  kept().changed.wait(lock, [] { return !kept().lines.empty() || !g_keeps; });
  if (kept().lines.empty()) return std::nullopt;
  LogLine line = std::move(kept().lines.front());
  kept().lines.pop_front();
  return line;
}

void log(Level level, const std::string& raw) {
  if (!log_enabled(level)) return;
  const std::string text = printable(raw);
  if (keep(level, text) || !g_has_stderr) return;
  constexpr std::array names{"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"};
  std::string line;
  if (g_with_time) {
    timespec ts;
    ::clock_gettime(CLOCK_REALTIME, &ts);
    tm parts;
    ::localtime_r(&ts.tv_sec, &parts);
    char stamp[64];
    size_t n = std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &parts);
    std::snprintf(stamp + n, sizeof stamp - n, ".%06ld", ts.tv_nsec / 1000);
    line += std::string("[") + stamp + "] ";
  }
  if (int32_t rank = g_rank; rank >= 0) line += "[" + std::to_string(rank) + "] ";
  line += std::string("horovod ") + names[static_cast<size_t>(level)] + ": " + text + "\n";
  // One write, so that lines of several threads and processes do not mix.
  [[maybe_unused]] auto n = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace hvd::base
