// See looker.h.
#include "engine/observe/looker.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <string>
#include <utility>

#include "engine/observe/log.h"
#include "engine/observe/stacks.h"
#include "engine/observe/threads.h"

namespace hvd::observe {
namespace {

// A program that runs Python gives its lock up every 5 ms if it is asked, and a hundred threads may ask for it.
constexpr auto kPatience = std::chrono::milliseconds(500);
// How long the end waits for a reader that waits for the lock.
constexpr auto kFarewell = std::chrono::seconds(2);
constexpr auto kBetweenLooks = std::chrono::milliseconds(200);
// How long a report waits for source lines.
constexpr auto kSourcesTime = std::chrono::milliseconds(300);

// The time that the main thread has had a processor, or has waited for one, so far: on a busy machine a thread that
// computes waits most of the time.
int64_t main_thread_ns() {
  std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/schedstat");
  int64_t ran = 0, waited = 0;
  if (file >> ran >> waited) return ran + waited;
  // The clock of another thread: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED.
  timespec ts{};
  const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(::getpid()) << 3) | 6u);
  if (::clock_gettime(clock, &ts) != 0) return 0;
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace

Looker::Looker(std::shared_ptr<const Program> program, std::function<void(Threads)> done)
    : state_(std::make_shared<State>()), done_(std::move(done)) {
  state_->program = std::move(program);
}

Looker::~Looker() {
  std::unique_lock lock(state_->mutex);
  state_->quit = true;
  state_->changed.notify_all();
  const bool reader_ends =
      state_->changed.wait_for(lock, kFarewell, [this] { return !reader_.joinable() || state_->reader_ended; });
  lock.unlock();
  if (answerer_.joinable()) answerer_.join();
  if (!reader_.joinable()) return;
  if (reader_ends)
    reader_.join();
  else
    reader_.detach();
}

void Looker::look(std::vector<Place> wanted) {
  std::lock_guard lock(state_->mutex);
  if (!reader_.joinable()) reader_ = start_thread("hvd-stacks", [state = state_] { read_with_lock(*state); });
  if (!answerer_.joinable()) answerer_ = start_thread("hvd-look", [this] { answer(); });
  if (!wanted.empty()) state_->places = std::move(wanted);
  state_->wanted = true;
  state_->changed.notify_all();
}

void Looker::read_sources(const std::vector<Place*>& places) {
  try {
    sources_.read(places, kSourcesTime);
  } catch (const std::exception&) {  // without a thread or memory: the report lacks the lines
  }
}

void Looker::read_with_lock(State& s) {
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return s.quit || s.reading; });
    if (s.quit) break;
    lock.unlock();
    std::string text;
    try {
      text = s.program->stacks();
    } catch (const std::exception&) {  // no memory: the report lacks the stacks
    }
    lock.lock();
    s.stacks = std::move(text);
    s.reading = false;
    s.changed.notify_all();
  }
  s.reader_ended = true;
  s.changed.notify_all();
}

void Looker::answer() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return s.quit || s.wanted; });
    if (s.quit) return;
    lock.unlock();
    Threads result;
    try {
      result = look_twice();
    } catch (const std::exception& e) {
      result = {};
      result.note = std::string("the stacks cannot be read: ") + e.what();
    }
    lock.lock();
    if (s.quit) return;
    s.wanted = false;
    lock.unlock();
    try {
      done_(std::move(result));
    } catch (const std::exception&) {
      // No memory is left for the answer: the rank that asked goes on without it.
    }
    lock.lock();
  }
}

Looker::Text Looker::read() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.stacks.reset();
  s.reading = true;  // or still: then the reader waits for the lock since an earlier look
  s.changed.notify_all();
  s.changed.wait_for(lock, kPatience, [&] { return s.quit || s.stacks.has_value(); });
  if (s.stacks) return {std::move(*s.stacks), false};
  if (s.quit) return {"", true};
  lock.unlock();
  return {s.program->stacks_without_lock().value_or(""), true};
}

Threads Looker::look_twice() {
  const Text first = read();
  const int64_t busy_from = main_thread_ns(), from = now_ns();
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, kBetweenLooks, [this] { return state_->quit; });
    if (state_->quit) return {};
  }
  const int64_t busy = main_thread_ns() - busy_from, passed = now_ns() - from;
  const Text second = read();
  Threads result;
  const std::vector<Thread> before = parse_stacks(first.stacks, *state_->program);
  result.threads = parse_stacks(second.stacks, *state_->program);
  result.lock_held = second.lock_held;
  result.busy = passed > 0 ? std::clamp(static_cast<double>(busy) / static_cast<double>(passed), 0.0, 1.0) : 0.0;
  if (const Thread* main = result.main(); main && !before.empty() && before[0].is_main) {
    result.moved = main->frames != before[0].frames;
    if (result.moved && before[0].place()) result.before = *before[0].place();
  }
  if (second.stacks.empty())
    result.note = second.lock_held ? "the GIL was not released in time, and the stacks could not be read without it"
                                   : "the interpreter is ending";
  std::vector<Place> wanted;
  {
    const std::lock_guard lock(state_->mutex);
    wanted = std::move(state_->places);
  }
  std::vector<Place*> places;
  for (Thread& t : result.threads)
    if (t.site >= 0) places.push_back(&t.frames[static_cast<size_t>(t.site)]);
  for (Place& p : wanted) places.push_back(&p);
  read_sources(places);
  return result;
}

}  // namespace hvd::observe
