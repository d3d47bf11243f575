// Settings, the thread's last error, and the fork handlers.
#include "runtime.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "socket.h"

namespace sim {
namespace {

std::atomic<bool> used{false};
std::atomic<bool> forked{false};
thread_local topsError_t last_error = topsSuccess;
thread_local bool stream_thread = false;

long number(const char* name, long fallback, long least) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  return *end == '\0' && value >= least ? value : fallback;
}

// "2,0" gives {2, 0}; a number that the machine lacks ends the list, as real runtimes have it.
std::vector<int> visible(long present) {
  std::vector<int> all;
  for (int i = 0; i < present; ++i) all.push_back(i);
  const char* text = getenv(kNames.visible);
  if (text == nullptr) return all;
  std::vector<int> chosen;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    const long value = strtol(at, &end, 10);
    if (end == at || value < 0 || value >= present) break;
    chosen.push_back(static_cast<int>(value));
    at = *end == ',' ? end + 1 : end;
  }
  return chosen;
}

void child_after_fork() {
  if (!used) return;
  forked = true;
  close_all_sockets();
}

}  // namespace

const Settings& settings() {
  static const Settings* made = [] {
    auto* s = new Settings;
    s->devices = visible(number(kNames.devices, 8, 0));
    s->device_bytes = static_cast<size_t>(number(kNames.device_bytes, 16L << 30, 1));
    const char* memory = getenv(kNames.memory);
    s->handles = memory != nullptr && strcmp(memory, "handle") == 0;
    s->delay = std::chrono::microseconds(number(kNames.delay, 0, 0));
    s->quiet = std::chrono::seconds(number(kNames.timeout, 60, 1));
    return s;
  }();
  return *made;
}

topsError_t enter() {
  if (stream_thread) return topsErrorNotSupported;
  if (used) return forked ? topsErrorNotInitialized : topsSuccess;
  static const bool watching = [] {
    pthread_atfork(lock_sockets, unlock_sockets, [] {
      unlock_sockets();
      child_after_fork();
    });
    return true;
  }();
  used = watching;
  return topsSuccess;
}

bool is_forked_child() { return forked; }

topsError_t report(topsError_t error) {
  if (error != topsSuccess) last_error = error;
  return error;
}

topsError_t take_last_error() {
  const topsError_t error = last_error;
  last_error = topsSuccess;
  return error;
}

bool& on_stream_thread() { return stream_thread; }

}  // namespace sim
