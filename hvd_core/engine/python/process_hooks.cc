// See process_hooks.h.
//
// The timeout does not need the interpreter: a plugin may hang with the GIL.
#include "engine/python/process_hooks.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/segment.h"
#include "engine/base/log.h"
#include "engine/core/engine.h"
#include "engine/frontend/frontend.h"
#include "engine/plugins/backend_call.h"
#include "engine/python/bindings.h"
#include "engine/watch/watch_thread.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// Between two checks. Time beyond twice this does not count: the process was stopped, or its host was.
constexpr int64_t kLongestPauseNs = 250'000'000;

// The phase that runs, of the thread that starts the job or that has the first tensor of a device type.
struct Phase {
  std::string text;  // "the phase load of backend 'x'"
  double seconds = 0;
  int64_t deadline_ns = 0, last_check_ns = 0;
  int segment_fd = -1;
  uint64_t segment_bytes = 0;
  int32_t rank = 0;
  pid_t process = 0;
};

// Part of the binding, not of the engine, because the system's hooks have no argument for a context. Never destroyed:
// threads and exit handlers of libraries come later than destructors.
struct State {
  std::atomic<pid_t> process{0};  // that this belongs to: in a forked child the mutex may stay locked
  std::mutex mutex;
  std::optional<Phase> phase;
  std::unique_ptr<watch::WatchThread> watch;                              // while there is a phase
  std::optional<decltype(plugins::FloatingPoint::get())> floating_point;  // of the thread, before the first phase
  std::mutex engines_mutex;  // held during a fork, so that the child finds the list whole
  std::vector<Engine*> engines;
};
State& state() {
  static auto* const s = new State;
  return *s;
}

[[noreturn]] void end_process(const Phase& phase, const std::string& why, int code) {
  base::log(base::Level::Fatal, "rank " + std::to_string(phase.rank) + ": " + why +
                                    "; this process ends with exit code " + std::to_string(code));
  agreement::tell_failed_start(phase.segment_fd, phase.segment_bytes, phase.rank, why);
  ::_exit(code);
}

int64_t check_phase(int64_t now) {
  std::unique_lock lock(state().mutex);
  if (!state().phase) return watch::WatchThread::kNever;
  Phase& phase = *state().phase;
  phase.deadline_ns += std::max<int64_t>(0, now - phase.last_check_ns - 2 * kLongestPauseNs);
  phase.last_check_ns = now;
  if (now < phase.deadline_ns) return std::min(phase.deadline_ns, now + kLongestPauseNs);
  const auto seconds = std::to_string(phase.seconds);
  end_process(phase,
              phase.text + " has not come back within " + seconds.substr(0, seconds.find('.') + 2) +
                  " s (HOROVOD_START_TIMEOUT)",
              1);
}

void limit_phase(std::string text, double seconds, int segment_fd, uint64_t segment_bytes, int32_t rank) {
  std::unique_ptr<watch::WatchThread> ended;  // joins its thread, which takes the lock
  std::lock_guard lock(state().mutex);
  auto& before = state().floating_point;
  if (text.empty()) {
    state().phase.reset();
    ended = std::move(state().watch);
    if (before) plugins::FloatingPoint::set(*before);
    before.reset();
    return;
  }
  if (!before) before = plugins::FloatingPoint::get();
  const int64_t now = base::now_ns(), deadline = now + static_cast<int64_t>(seconds * 1e9);
  state().phase = Phase{std::move(text), seconds, deadline, now, segment_fd, segment_bytes, rank, ::getpid()};
  if (!state().watch) state().watch = std::make_unique<watch::WatchThread>(check_phase);
  state().watch->wake();
}

// As exit() would do later, where end_process() keeps it from that.
void flush_standard_streams() {
  for (std::FILE* stream : {stdout, stderr}) {
    if (::ftrylockfile(stream) != 0) continue;
    std::fflush(stream);
    ::funlockfile(stream);
  }
}

// exit() was called. At the end of a program Python shuts the engines down before that.
void at_exit(int code, void*) {
  if (state().process != ::getpid()) return;
  flush_standard_streams();
  {
    std::lock_guard lock(state().mutex);
    const auto& phase = state().phase;
    if (phase && phase->process == ::getpid())
      end_process(*phase, "the process has called exit(" + std::to_string(code) + ") in " + phase->text,
                  code ? code : 1);
  }
  std::lock_guard lock(state().engines_mutex);
  for (Engine* engine : state().engines) engine->process_exits(code);
  // In a call of an engine that is not in the list yet: its threads start before that.
  if (!plugins::CallScope::here()) return;
  const plugins::CallSlot& slot = plugins::CallScope::slot();
  base::log(base::Level::Fatal, "the process has called exit(" + std::to_string(code) + ")" +
                                    slot.where(slot.call.load()) + "; this process ends with exit code " +
                                    std::to_string(code ? code : 1));
  ::_exit(code ? code : 1);
}

void before_fork() {
  state().engines_mutex.lock();
  for (Engine* engine : state().engines) engine->before_fork();
}

void in_parent() {
  for (Engine* engine : state().engines) engine->after_fork();
  state().engines_mutex.unlock();
}

void in_child() {
  plugins::CallMemory::in_forked_child();
  frontend::in_forked_child();
  for (Engine* engine : state().engines) engine->in_forked_child();
  state().engines_mutex.unlock();
}

}  // namespace

void EngineHooks::install() {
  state().process = ::getpid();
  static const int installed = ::on_exit(at_exit, nullptr) | ::pthread_atfork(before_fork, in_parent, in_child);
  (void)installed;
}

EngineHooks::EngineHooks(Engine& engine) : engine_(engine) {
  std::lock_guard lock(state().engines_mutex);
  state().engines.push_back(&engine_);
}

EngineHooks::~EngineHooks() {
  std::lock_guard lock(state().engines_mutex);
  std::erase(state().engines, &engine_);
}

void bind_plugin_phases(py::module_& m) {
  m.def(
      "limit_phase",
      [](std::string text, double seconds, int segment_fd, uint64_t segment_bytes, int32_t rank) {
        EngineHooks::install();
        limit_phase(std::move(text), seconds, segment_fd, segment_bytes, rank);
      },
      py::arg("text"), py::arg("seconds") = 0.0, py::arg("segment_fd") = -1, py::arg("segment_bytes") = 0,
      py::arg("rank") = 0,
      "This thread runs code of a plugin from now on: `text` says which. If the next call does not come within "
      "`seconds`, the process ends with a message; so it does if that code calls exit(). An empty text: no such code "
      "runs any more.");
}

}  // namespace hvd::python
