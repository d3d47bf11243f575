// See stack_sampler.h.
#include "engine/watch/stack_sampler.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"

namespace hvd::watch {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostThreads = 8, kMostFrames = 12;
constexpr size_t kLongestLine = 160;
constexpr int32_t kMostLines = 200'000;
constexpr auto kBetweenSamples = 200ms;
// How long the destructor waits for a thread that waits for the GIL or for a file.
constexpr auto kLastWait = 1s;

std::string source_of(const Place& place) {
  if (place.line <= 0 || place.line > kMostLines) return "";
  std::ifstream file(place.file);
  std::string line;
  for (int32_t i = 0; i < place.line; ++i)
    if (!std::getline(file, line)) return "";
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  line.erase(line.begin(), std::find_if_not(line.begin(), line.end(), is_space));
  line.erase(std::find_if_not(line.rbegin(), line.rend(), is_space).base(), line.end());
  return line.size() <= kLongestLine ? line : line.substr(0, kLongestLine - 3) + "...";
}

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

double busy_share(int64_t busy_ns, int64_t passed_ns) {
  return passed_ns > 0 ? std::clamp(static_cast<double>(busy_ns) / static_cast<double>(passed_ns), 0.0, 1.0) : 0.0;
}

Thread shown_thread(Thread whole, const Program& program) {
  Thread shown{.name = std::move(whole.name), .is_main = whole.is_main};
  for (Place& place : whole.frames) {
    const bool is_own = program.is_own(place.file);
    if (is_own && shown.frames.empty()) {
      shown.in_engine = true;
      continue;
    }
    const bool is_user = !is_own && !program.is_library(place.file);
    place.file = shortened(place.file);
    if (is_user && shown.site >= 0) {
      Place& called = shown.frames[static_cast<size_t>(shown.site)];
      if (called.caller.empty()) called.caller = text_of(place);
    }
    if (shown.frames.size() >= kMostFrames) {
      // The user's innermost frame stays, however deep a library's own frames are.
      if (shown.site >= 0 || !is_user) continue;
      shown.frames.pop_back();
    }
    if (is_user && shown.site < 0) shown.site = static_cast<int32_t>(shown.frames.size());
    shown.frames.push_back(std::move(place));
  }
  return shown;
}

}  // namespace

std::string shortened(const std::string& path) {
  char here[PATH_MAX];
  if (!::getcwd(here, sizeof here)) return path;
  const std::string folder = std::string(here) + "/";
  return folder.size() > 1 && path.starts_with(folder) ? path.substr(folder.size()) : path;
}

std::vector<Thread> shown_threads(std::vector<Thread> all, const Program& program) {
  std::vector<Thread> shown;
  for (Thread& t : all) shown.push_back(shown_thread(std::move(t), program));
  std::erase_if(shown, [](const Thread& t) { return t.frames.empty() && !t.is_main; });
  std::stable_partition(shown.begin(), shown.end(), [](const Thread& t) { return t.is_main; });
  if (shown.size() > kMostThreads) shown.resize(kMostThreads);
  return shown;
}

StackSampler::~StackSampler() {
  if (sample_) wait(kLastWait);
}

void StackSampler::start(const std::vector<Submission>& submissions) {
  if (sample_ && !wait(0ms)) return;
  started_at_ = base::now_ns();
  busy_at_start_ = main_thread_ns();
  std::vector<Place> places;
  for (const Submission& s : submissions) places.push_back(s.place);
  sample_ = std::make_shared<Sample>();
  try {
    base::start_thread("hvd-stacks", [program = program_, sample = sample_, places = std::move(places)]() mutable {
      run(*program, *sample, std::move(places));
    }).detach();
  } catch (const std::system_error& e) {  // a report must not end the job
    const std::lock_guard lock(sample_->mutex);
    sample_->threads = Threads{.note = e.what()};
    sample_->complete = true;
  }
}

bool StackSampler::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(sample_->mutex);
  return sample_->changed.wait_for(lock, patience, [this] { return sample_->complete; });
}

Threads StackSampler::take(std::vector<Submission>& submissions) {
  const std::lock_guard lock(sample_->mutex);
  Threads threads = sample_->threads.value_or(Threads{});
  if (!sample_->threads) {
    threads.gil_held = true;
    threads.busy = busy_share(main_thread_ns() - busy_at_start_, base::now_ns() - started_at_);
    threads.note = "code that keeps the GIL runs: the stacks cannot be read";
  }
  const auto fill_in = [this](Place& place) {
    for (const Place& p : sample_->sources)
      if (p.line == place.line && p.file == place.file) place.source = p.source;
  };
  for (Submission& s : submissions) fill_in(s.place);
  for (Thread& t : threads.threads)
    if (t.site >= 0) fill_in(t.frames[static_cast<size_t>(t.site)]);
  return threads;
}

void StackSampler::run(const Program& program, Sample& sample, std::vector<Place> places) {
  const auto first = program.threads();
  const int64_t busy_from = main_thread_ns(), from = base::now_ns();
  std::this_thread::sleep_for(kBetweenSamples);
  const double busy = busy_share(main_thread_ns() - busy_from, base::now_ns() - from);
  auto second = program.threads();
  Threads found;
  found.busy = busy;
  if (first && second) {
    const auto before = shown_threads(*first, program);
    found.threads = shown_threads(std::move(*second), program);
    if (const Thread* main = found.main(); main && !before.empty() && before[0].is_main) {
      found.moved = main->frames != before[0].frames;
      if (found.moved && before[0].place()) found.before = *before[0].place();
    }
  } else {
    found.note = "the interpreter is ending";
  }
  for (const Thread& t : found.threads)
    if (t.site >= 0) places.push_back(*t.place());
  std::unique_lock lock(sample.mutex);
  sample.threads = std::move(found);
  for (Place& place : places) {
    lock.unlock();
    place.source = source_of(place);
    lock.lock();
    sample.sources.push_back(std::move(place));
  }
  sample.complete = true;
  sample.changed.notify_all();
}

}  // namespace hvd::watch
