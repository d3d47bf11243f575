// See process_copy.h.
#include "engine/observe/process_copy.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <new>

namespace hvd::observe {
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
    try {
      for (ssize_t n; (n = ::read(fd_, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
    } catch (const std::bad_alloc&) {  // the text lacks the rest
    }
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

}  // namespace hvd::observe
