// See log.h.
#include "engine/observe/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>

namespace hvd::observe {
namespace {
std::atomic<int32_t> g_threshold{static_cast<int32_t>(Level::Warning)}, g_rank{-1};
std::atomic<bool> g_with_time{true}, g_has_stderr{true};
}  // namespace

void set_log(Level threshold, bool with_time, int32_t rank) {
  g_threshold = static_cast<int32_t>(threshold);
  g_with_time = with_time;
  g_rank = rank;
}

void log_nothing() { g_has_stderr = false; }

bool log_enabled(Level level) {
  return static_cast<int32_t>(level) >= g_threshold.load(std::memory_order_relaxed) && g_has_stderr;
}

void log(Level level, const std::string& text) {
  if (!log_enabled(level)) return;
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

int64_t now_ns() {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace hvd::observe
