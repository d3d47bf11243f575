// See ask_server.h.
#include "engine/observe/ask_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/observe/log.h"
#include "engine/observe/threads.h"

namespace hvd::observe {
namespace {

constexpr size_t kLongestQuestion = 64;
constexpr int kPatienceMs = 2000;  // for a peer that does not read or write

struct Descriptor {
  int fd;
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  int release() { return std::exchange(fd, -1); }
};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

bool ready(int fd, short event, int64_t until) {
  const int64_t left = std::max<int64_t>(0, (until - now_ns()) / 1'000'000);
  pollfd p{fd, event, 0};
  return ::poll(&p, 1, static_cast<int>(left)) == 1;
}

bool may_ask(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

// The first line of the peer, without its end; empty if it does not come in time.
std::string read_question(int fd) {
  const int64_t until = now_ns() + int64_t{kPatienceMs} * 1'000'000;
  std::string text;
  while (text.size() < kLongestQuestion && ready(fd, POLLIN, until)) {
    char part[kLongestQuestion];
    const ssize_t n = ::recv(fd, part, sizeof part, MSG_DONTWAIT);
    if (n <= 0) return {};
    text.append(part, static_cast<size_t>(n));
    if (const size_t end = text.find('\n'); end != std::string::npos) return text.substr(0, end);
  }
  return {};
}

void write_all(int fd, const std::string& text) {
  const int64_t until = now_ns() + int64_t{kPatienceMs} * 1'000'000;
  for (size_t done = 0; done < text.size() && ready(fd, POLLOUT, until);) {
    const ssize_t n = ::send(fd, text.data() + done, text.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) done += static_cast<size_t>(n);
  }
}

}  // namespace

AskServer::AskServer(const std::string& name, Answer answer) : answer_(std::move(answer)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    throw std::system_error(ENAMETOOLONG, std::generic_category(), "the socket of hvd doctor");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (listener.fd < 0 || stop.fd < 0 || ::bind(listener.fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.fd, 64) != 0)
    fail("the socket of hvd doctor");
  listener_ = listener.fd;
  stop_fd_ = stop.fd;
  thread_ = start_thread("hvd-doctor", [this] { serve(); });
  listener.release();
  stop.release();
}

AskServer::~AskServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(stop_fd_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  ::close(listener_.load());
  ::close(stop_fd_);
}

void AskServer::close_in_child() noexcept { ::close(listener_.load()); }

void AskServer::serve() {
  for (;;) {
    pollfd p[2] = {{listener_.load(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (::poll(p, 2, -1) < 0 && errno != EINTR) return;
    if (p[1].revents) return;
    if (!p[0].revents) continue;
    const Descriptor peer(::accept4(listener_.load(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer.fd < 0) {
      // Without a free descriptor the peer stays in the queue, and poll() would return at once for ever.
      if (errno == EMFILE || errno == ENFILE) ::poll(&p[1], 1, 100);
      continue;
    }
    try {
      answer_one(peer.fd);
    } catch (const std::exception& e) {  // mostly for want of memory
      log_if_room(Level::Debug, [&] { return std::string("hvd doctor got no answer: ") + e.what(); });
    }
  }
}

void AskServer::answer_one(int fd) {
  if (!may_ask(fd)) {
    // Once: another user could fill the log.
    return log(std::exchange(refused_, true) ? Level::Debug : Level::Warning, "hvd doctor of another user was refused");
  }
  const std::string question = read_question(fd);
  if (!question.empty()) write_all(fd, answer_(question));
}

}  // namespace hvd::observe
