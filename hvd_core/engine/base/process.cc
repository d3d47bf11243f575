// See process.h.
#include "engine/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/base/threads.h"

namespace hvd::base {

namespace {

// The kernel's letter; a blank if it cannot be read.
char letter(int32_t pid) {
  if (pid <= 0) return ' ';
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The state follows the program's name, which may contain anything.
  const size_t at = line.rfind(") ");
  return at == std::string::npos || at + 2 >= line.size() ? ' ' : line[at + 2];
}

}  // namespace

bool is_seen_to_stand(int32_t pid) { return std::string_view("TtDZX").find(letter(pid)) != std::string_view::npos; }

std::string process_state(int32_t pid) {
  switch (letter(pid)) {
    case ' ':
      return "";
    case 'T':
      return "its process is stopped, by SIGSTOP or Ctrl-Z (`kill -CONT " + std::to_string(pid) + "` lets it go on)";
    case 't':
      return "its process is stopped by a debugger";
    case 'D':
      return "its process waits in the kernel for a disk, a file system or a device";
    case 'Z':
    case 'X':
      return "its process has ended";
    default:
      return "its process is not stopped: a thread of it may be inside a call of a backend (its own log names that "
             "call)";
  }
}

ProcessWatch::ProcessWatch(int pidfd, std::function<void()> ended)
    : ended_(std::move(ended)),
      pidfd_(::fcntl(pidfd, F_DUPFD_CLOEXEC, 0)),
      stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!pidfd_ || !stop_fd_) throw std::system_error(errno, std::generic_category(), "watching the launcher's process");
  thread_ = start_thread("hvd-launcher", [this] { watch(); });
}

ProcessWatch::~ProcessWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(stop_fd_.get(), &one, sizeof one);
  thread_.join();
}

void ProcessWatch::watch() noexcept {
  pollfd p[2] = {{stop_fd_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  while (::poll(p, 2, -1) < 0 && errno == EINTR) {
  }
  if (p[0].revents || !(p[1].revents & POLLIN)) return;
  ended_();
}

}  // namespace hvd::base
