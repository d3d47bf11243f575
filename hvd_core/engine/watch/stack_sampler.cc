// See stack_sampler.h.
#include "engine/watch/stack_sampler.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"

namespace hvd::watch {
namespace {

constexpr size_t kLongestLine = 160;
constexpr int32_t kMostLines = 200'000;

std::string cut(std::string_view text) {
  return text.size() <= kLongestLine ? std::string(text) : std::string(text.substr(0, kLongestLine - 3)) + "...";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// '  File "NAME", line N in FUNCTION'
bool parse_frame(std::string_view line, Place& place) {
  constexpr std::string_view kHead = "  File \"", kLine = "\", line ", kIn = " in ";
  if (!line.starts_with(kHead)) return false;
  line.remove_prefix(kHead.size());
  const size_t end = line.rfind(kLine);
  if (end == std::string_view::npos) return false;
  place.file = line.substr(0, end);
  line.remove_prefix(end + kLine.size());
  place.line = std::atoi(std::string(line.substr(0, 12)).c_str());
  if (const size_t in = line.find(kIn); in != std::string_view::npos)
    place.function = cut(line.substr(in + kIn.size()));
  return true;
}

// "Thread 0x00007f... [name] (most recent call first):"
bool parse_head(std::string_view line, std::string& id, std::string& name, bool& is_writer) {
  is_writer = line.starts_with("Current thread ");
  if (!is_writer && !line.starts_with("Thread ")) return false;
  line.remove_prefix(line.find("hread ") + 6);
  id = line.substr(0, line.find(' '));
  const size_t open = line.find('['), close = line.rfind(']');
  name = open != std::string_view::npos && close != std::string_view::npos && open < close
             ? cut(line.substr(open + 1, close - open - 1))
             : "";
  return true;
}

}  // namespace

std::string shortened(const std::string& path) {
  char here[PATH_MAX];
  if (!::getcwd(here, sizeof here)) return path;
  const std::string folder = std::string(here) + "/";
  return folder.size() > 1 && path.starts_with(folder) ? path.substr(folder.size()) : path;
}

std::vector<Thread> parse_stacks(std::string_view text, const Program& program, size_t most_threads,
                                 size_t most_frames) {
  std::vector<Thread> threads;
  const std::string main_id = program.main_thread();
  bool keep = false, is_writer = false;
  const auto add_frame = [&](Place place) {
    Thread& t = threads.back();
    const bool user = !program.is_own(place.file) && !program.is_library(place.file);
    if (t.frames.empty() && program.is_own(place.file)) {
      t.in_engine = true;
      return;
    }
    place.file = shortened(place.file);
    if (user && t.site >= 0) {
      Place& called = t.frames[static_cast<size_t>(t.site)];
      if (called.caller.empty()) called.caller = text_of(place);
    }
    if (t.frames.size() >= most_frames) {
      // The user's innermost frame stays, however deep a library's own frames are.
      if (t.site >= 0 || !user) return;
      t.frames.pop_back();
    }
    if (user && t.site < 0) t.site = static_cast<int32_t>(t.frames.size());
    t.frames.push_back(std::move(place));
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    std::string id, name;
    Place place;
    if (parse_head(line, id, name, is_writer)) {
      const bool is_main = id == main_id;
      keep = !is_writer || is_main;
      if (keep) threads.push_back({name, is_main, {}, -1, false});
    } else if (keep && parse_frame(line, place)) {
      add_frame(std::move(place));
    }
  }
  // Threads of the engine and of other extensions have no frame of Python.
  std::erase_if(threads, [](const Thread& t) { return t.frames.empty() && !t.is_main; });
  std::stable_partition(threads.begin(), threads.end(), [](const Thread& t) { return t.is_main; });
  if (threads.size() > most_threads) threads.resize(most_threads);
  return threads;
}

void add_source(Place& place) {
  if (place.line <= 0 || place.line > kMostLines) return;
  std::ifstream file(place.file);
  std::string line;
  for (int32_t i = 0; i < place.line; ++i)
    if (!std::getline(file, line)) return;
  place.source = cut(trimmed(line));
}

namespace {

// How long the end waits for a file that is being read.
constexpr auto kLastWait = std::chrono::milliseconds(200);

}  // namespace

Sources::~Sources() {
  std::unique_lock lock(state_->mutex);
  if (!thread_.joinable()) return;
  state_->quit = true;
  state_->changed.notify_all();
  const bool ends = state_->changed.wait_for(lock, kLastWait, [this] { return state_->ended; });
  lock.unlock();
  if (ends)
    thread_.join();
  else
    thread_.detach();
}

void Sources::read(const std::vector<Place*>& places, std::chrono::milliseconds patience) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.reading || s.wanted) return;
  s.known.clear();
  s.places.clear();
  for (const Place* p : places)
    if (p->known() && p->line > 0) s.places.push_back(*p);
  if (s.places.empty()) return;
  if (!thread_.joinable()) thread_ = base::start_thread("hvd-sources", [state = state_] { serve(*state); });
  s.wanted = true;
  s.changed.notify_all();
  s.changed.wait_for(lock, patience, [&] { return !s.wanted && !s.reading; });
  lock.unlock();
  for (Place* p : places) fill_in(*p);
}

void Sources::fill_in(Place& place) const {
  const std::lock_guard lock(state_->mutex);
  for (const Place& p : state_->known)
    if (p.line == place.line && p.file == place.file) {
      place.source = p.source;
      return;
    }
}

void Sources::serve(State& s) noexcept {
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return s.quit || s.wanted; });
    if (s.quit) break;
    s.wanted = false;
    s.reading = true;
    try {
      for (std::vector<Place> places = std::exchange(s.places, {}); !places.empty() && !s.quit; places.pop_back()) {
        lock.unlock();
        try {
          add_source(places.back());
        } catch (const std::exception&) {  // no memory: the report lacks the line
        }
        lock.lock();
        s.known.push_back(std::move(places.back()));
      }
    } catch (const std::exception&) {  // likewise
      if (!lock.owns_lock()) lock.lock();
    }
    s.reading = false;
    s.changed.notify_all();
  }
  s.ended = true;
  s.changed.notify_all();
}

namespace {

constexpr auto kPause = std::chrono::milliseconds(1);
// A fork copies the page tables, for which all threads of the process wait: about 10 ms for each GiB.
constexpr uint64_t kMostAnonymousKib = uint64_t{16} << 20;

// Not with pinned memory either, which a device may be writing to: a fork copies it, or on older kernels detaches the
// process from the device's pages. VmPin counts what RDMA and io_uring pin. A device's driver may pin
// memory without adding to it.
bool can_be_copied() {
  std::ifstream status("/proc/self/status");
  uint64_t anonymous = 0, pinned = 0;
  for (std::string name; status >> name; status.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (name == "RssAnon:") status >> anonymous;
    if (name == "VmPin:") status >> pinned;
  }
  return pinned == 0 && anonymous <= kMostAnonymousKib;
}

// A file in memory: a pipe could fill up and block.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("hvd-written", MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  std::string text() const {
    std::string text;
    char buffer[8192];
    ::lseek(fd_, 0, SEEK_SET);
    for (ssize_t n; (n = ::read(fd_, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
    return text;
  }

 private:
  const int fd_;
};

// fork() would run the fork handlers of libraries, and the end of its child would be a SIGCHLD for the program. Without
// an exit signal, only a wait with __WCLONE sees the child.
pid_t make_copy() {
  sigset_t all, before;
  ::sigfillset(&all);
  // A handler must not run in the copy. A blocked signal of a crash ends the process.
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const long pid = ::syscall(SYS_clone, 0L, nullptr, nullptr, nullptr, nullptr);
  if (pid != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return static_cast<pid_t>(pid);
}

// Whether the copy ended by itself.
bool ends_within(pid_t pid, std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, __WCLONE | WNOHANG);
    if (ended == pid) return WIFEXITED(status);
    if (ended < 0 && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() >= until) break;
    ::usleep(std::chrono::microseconds(kPause).count());
  }
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR) {
  }
  return false;
}

}  // namespace

std::optional<std::string> written_by_copy(const std::function<void(int fd)>& write,
                                           std::chrono::milliseconds patience) {
  const MemoryFile file;
  if (file.fd() < 0 || !can_be_copied()) return {};
  const pid_t self = ::getpid();
  // Ends a copy that runs on while this process is stopped.
  const auto most_seconds = static_cast<rlim_t>(std::chrono::ceil<std::chrono::seconds>(patience).count()) + 1;
  const pid_t pid = make_copy();
  if (pid == 0) {
    ::prctl(PR_SET_DUMPABLE, 0);  // no core file
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != self) ::_exit(1);  // which ended before that took effect
    const rlimit processor{most_seconds, most_seconds};
    ::setrlimit(RLIMIT_CPU, &processor);
    write(file.fd());
    ::_exit(0);
  }
  if (pid < 0 || !ends_within(pid, patience)) return {};
  return file.text();
}

std::string written(const std::function<void(int fd)>& write) {
  const MemoryFile file;
  if (file.fd() < 0) return {};
  write(file.fd());
  return file.text();
}

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
  if (!reader_.joinable()) reader_ = base::start_thread("hvd-stacks", [state = state_] { read_with_lock(*state); });
  if (!answerer_.joinable()) answerer_ = base::start_thread("hvd-look", [this] { answer(); });
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
  const int64_t busy_from = main_thread_ns(), from = base::now_ns();
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, kBetweenLooks, [this] { return state_->quit; });
    if (state_->quit) return {};
  }
  const int64_t busy = main_thread_ns() - busy_from, passed = base::now_ns() - from;
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

}  // namespace hvd::watch
