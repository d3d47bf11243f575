// See process_watch.h.
#include "engine/observe/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/observe/threads.h"

namespace hvd::observe {

ProcessWatch::ProcessWatch(int pidfd, std::function<void()> ended) : ended_(std::move(ended)) {
  pidfd_ = ::fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  try {
    if (pidfd_ < 0 || stop_fd_ < 0)
      throw std::system_error(errno, std::generic_category(), "watching the launcher's process");
    thread_ = start_thread("hvd-launcher", [this] { watch(); });
  } catch (const std::exception&) {
    if (pidfd_ >= 0) ::close(pidfd_);
    if (stop_fd_ >= 0) ::close(stop_fd_);
    throw;
  }
}

ProcessWatch::~ProcessWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(stop_fd_, &one, sizeof one);
  thread_.join();
  ::close(pidfd_);
  ::close(stop_fd_);
}

void ProcessWatch::watch() noexcept {
  pollfd p[2] = {{stop_fd_, POLLIN, 0}, {pidfd_, POLLIN, 0}};
  while (::poll(p, 2, -1) < 0 && errno == EINTR) {
  }
  if (p[0].revents || !(p[1].revents & POLLIN)) return;
  try {
    ended_();
  } catch (const std::exception&) {  // no memory: this rank goes on, as it would without the watch
  }
}

}  // namespace hvd::observe
