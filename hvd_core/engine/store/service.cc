// See service.h.
#include "engine/store/service.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <hvd/encryption.hpp>
#include <system_error>
#include <utility>

#include "engine/observe/log.h"
#include "engine/store/store_server.h"

namespace hvd::store {
namespace {

constexpr int64_t kListenAgainNs = 200'000'000;
// A connection that has not proved the secret keeps its place this long. A thousand ranks of one machine connect at
// once, and each needs a turn on a processor for its proof.
constexpr int64_t kPlaceNs = 1'000'000'000;
// All services of the process, for fork(). Never destroyed: threads may outlive the static objects.
struct Registry {
  std::mutex mutex;
  std::vector<Service*> all;
};
Registry& registry() {
  static auto* const r = new Registry;
  return *r;
}

void close_descriptor(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

// Whether the other end of a connection is on this host's loopback, which no network carries.
bool stays_here(int fd) {
  sockaddr_storage peer = {};
  socklen_t n = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &n) != 0) return true;  // it has ended already
  if (peer.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

// Whether this process may have more descriptors now: a shell gives it 1,024 as a rule, of the many that it may have. A
// job of 600 ranks has more connections.
bool more_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = std::min(limit.rlim_max, 2 * limit.rlim_cur);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

[[noreturn]] void lack(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

Service::Service(int listener, std::string secret, int64_t handshake_ns)
    : secret_(std::move(secret)), handshake_ns_(handshake_ns), encrypts_(encryption_wanted()), listener_(listener) {
  try {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) lack("epoll_create1 for the store");
    wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_ < 0) lack("eventfd for the store");
    for (int* fd : {&listener_, &wake_}) {
      epoll_event event{EPOLLIN, {.ptr = fd}};
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, *fd, &event) != 0) lack("epoll_ctl for the store");
    }
    std::lock_guard lock(registry().mutex);
    registry().all.push_back(this);
  } catch (...) {
    close_all();
    throw;
  }
}

Service::~Service() {
  {
    std::lock_guard lock(registry().mutex);
    std::erase(registry().all, this);
  }
  close_all();
}

void Service::close_all() {
  // A fork between close() and the mark that it is closed would have the child close another file of that number.
  std::lock_guard lock(mutex_);
  close_descriptors();
}

void Service::close_descriptors() {
  for (auto* list : {&unproven_, &proven_list_})
    for (auto& c : *list) close_descriptor(c->fd);
  for (int* fd : {&listener_, &wake_, &epoll_}) close_descriptor(*fd);
}

void Service::before_fork() {
  registry().mutex.lock();
  for (Service* s : registry().all) s->mutex_.lock();
}

void Service::after_fork_in_parent() {
  for (Service* s : registry().all) s->mutex_.unlock();
  registry().mutex.unlock();
}

void Service::after_fork_in_child() {
  // Closing never shuts a connection down, so those of the parent live on.
  for (Service* s : registry().all) {
    s->close_descriptors();
    s->mutex_.unlock();
  }
  registry().all.clear();
  registry().mutex.unlock();
}

void Service::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_, &one, sizeof one);
}

void Service::run() {
  std::array<epoll_event, 64> events;
  while (!stopping_) {
    int timeout;
    {
      std::lock_guard lock(mutex_);
      timeout = wait_ms();
    }
    const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout);
    if (n < 0 && errno != EINTR) {
      // The program has closed descriptors that are not its own; another turn would fail alike, without a pause.
      observe::log(observe::Level::Error,
                   std::string("store: epoll_wait: ") + std::strerror(errno) + "; the job's store has ended");
      return;
    }
    std::lock_guard lock(mutex_);
    for (int i = 0; i < n && !stopping_; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      turn(event.data.ptr, event.events);
    }
    turn(nullptr, 0);
    dropped_.clear();
  }
}

// One event, or the timers where `of` is NULL. Without memory a connection is lost, and not the store.
void Service::turn(void* of, uint32_t events) {
  if (of == &wake_) return;
  try {
    if (of == nullptr)
      run_timers();
    else if (of == &listener_)
      accept_one();
    else
      serve(*static_cast<Connection*>(of), events);
  } catch (const std::exception& e) {
    observe::log(observe::Level::Error, std::string("store: ") + e.what());
    if (of != nullptr && of != &listener_) drop(*static_cast<Connection*>(of), e.what());
  }
}

int Service::wait_ms() const {
  int64_t first = timers_.empty() ? INT64_MAX : timers_.begin()->first;
  if (listen_again_ != 0) first = std::min(first, listen_again_);
  if (first == INT64_MAX) return -1;
  const int64_t left = (first - observe::now_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void Service::run_timers() {
  const int64_t now = observe::now_ns();
  if (listen_again_ != 0 && listen_again_ <= now) watch_listener();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Connection& c = *timers_.begin()->second;
    clear_timer(c);
    if (c.handshake) {
      drop(c, "no proof of the secret in time");
    } else if (c.waits) {
      stop_waiting(c);
      reply(c, kTimeout);
      go_on(c);
    }
  }
}

void Service::pause_listener(int64_t until) {
  epoll_event event{0, {.ptr = &listener_}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event);
  listen_again_ = until;
}

void Service::watch_listener() {
  epoll_event event{EPOLLIN, {.ptr = &listener_}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event) == 0) listen_again_ = 0;
  full_ = false;
}

// A connection has proved the secret, or has gone.
void Service::place_is_free() {
  if (full_) watch_listener();
}

void Service::accept_one() {
  const int64_t now = observe::now_ns();
  if (unproven_.size() >= kMostUnproven && now - unproven_.front()->since < kPlaceNs) {
    full_ = true;
    return pause_listener(unproven_.front()->since + kPlaceNs);
  }
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    if (errno == EMFILE && more_descriptors()) return;
    // Without a pause the listener would stay readable, and the thread would spin.
    observe::log(observe::Level::Warning,
                 std::string("store: could not accept a connection: ") + std::strerror(errno) + "; trying again");
    return pause_listener(now + kListenAgainNs);
  }
  std::unique_ptr<Connection> made;
  try {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (unproven_.size() >= kMostUnproven)
      drop(*unproven_.front(), "too many connections that have not proved the secret");
    made = std::make_unique<Connection>();
    made->handshake.emplace(encrypts_ && !stays_here(fd));
    made->unsent = made->handshake->challenge();
    unproven_.push_back(std::move(made));
  } catch (...) {
    ::close(fd);
    throw;
  }
  Connection& c = *unproven_.back();
  c.fd = fd;
  c.since = now;
  c.place = std::prev(unproven_.end());
  c.events = EPOLLIN;
  epoll_event event{EPOLLIN, {.ptr = &c}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return drop(c, "no memory for it");
  set_timer(c, observe::now_ns() + handshake_ns_);
  serve(c, EPOLLOUT);
}

void Service::serve(Connection& c, uint32_t events) {
  if (c.fd < 0) return;  // dropped earlier in this turn
  why_ = "closed by the peer";
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && !read(c)) return drop(c, why_);
  go_on(c);
}

// Answers what is there, and sends. A client may have sent further requests behind one that waited.
void Service::go_on(Connection& c) {
  if (!answer_all(c) || !flush(c)) drop(c, why_);
}

bool Service::read(Connection& c) {
  if (c.handshake) return prove(c);
  char data[1 << 16];
  const ssize_t n = ::recv(c.fd, data, sizeof data, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  c.received.append(data, static_cast<size_t>(n));
  why_ = "more requests sent ahead than the store keeps";
  return c.received.size() <= 2 * kMostRequestBytes;
}

bool Service::prove(Connection& c) {
  char data[Handshake::kAnswerBytes];
  const ssize_t n = ::recv(c.fd, data, c.handshake->missing(), 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  std::string confirmation;
  why_ = "the peer does not know this job's secret, or does not speak this protocol";
  if (!c.handshake->feed({data, static_cast<size_t>(n)}, secret_, &confirmation)) return false;
  if (c.handshake->missing() > 0) return true;
  if (c.handshake->refused()) {
    why_ = "it and this process do not agree about encryption, or this host has no libcrypto";
    c.unsent += confirmation;
    (void)flush(c);
    return false;
  }
  clear_timer(c);
  if (const std::string& key = c.handshake->encryption_key(); !key.empty()) {
    using enum sealing::FrameSeal::Kind;
    c.seals.reset(new sealing::Seals{sealing::FrameSeal(key, sealing::kFromStore, kEncrypted),
                                     sealing::FrameSeal(key, sealing::kToStore, kEncrypted)});
  }
  c.handshake.reset();
  c.unsent += confirmation;
  proven_list_.splice(proven_list_.end(), unproven_, c.place);
  ++proven_;
  place_is_free();
  return true;
}

bool Service::flush(Connection& c) {
  while (c.sent < c.unsent.size()) {
    const ssize_t n = ::send(c.fd, c.unsent.data() + c.sent, c.unsent.size() - c.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) {
      why_ = "closed by the peer";
      return false;
    }
    if (n < 0) break;
    c.sent += static_cast<size_t>(n);
  }
  if (c.sent == c.unsent.size()) {
    const bool was_full = c.sent >= kMostUnsent;
    c.unsent.clear();
    c.unsent.shrink_to_fit();
    c.sent = 0;
    // Requests that were left because of the answers' size.
    watch(c, EPOLLIN | (was_full && !c.received.empty() && !c.waits ? EPOLLOUT : 0u));
  } else {
    if (c.sent >= kMostUnsent) {
      c.unsent.erase(0, c.sent);
      c.sent = 0;
    }
    watch(c, EPOLLIN | EPOLLOUT);
  }
  return true;
}

void Service::watch(Connection& c, uint32_t events) {
  if (c.events == events) return;
  c.events = events;
  epoll_event event{events, {.ptr = &c}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event);
}

void Service::set_timer(Connection& c, int64_t when) {
  clear_timer(c);
  c.timer = timers_.emplace(when, &c);
}

void Service::clear_timer(Connection& c) {
  if (c.timer) timers_.erase(*c.timer);
  c.timer.reset();
}

void Service::drop(Connection& c, const char* why) {
  if (c.fd < 0) return;
  if (c.handshake && observe::log_enabled(observe::Level::Info))
    observe::log(observe::Level::Info, std::string("store: refused a connection: ") + why);
  clear_timer(c);
  if (c.waits) stop_waiting(c);
  // A process that is just being started may have a copy of the descriptor, which would keep it in the epoll.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, c.fd, nullptr);
  close_descriptor(c.fd);
  if (!c.handshake) --proven_;
  c.received = {};
  c.unsent = {};
  if (c.handshake) place_is_free();
  dropped_.splice(dropped_.end(), c.handshake ? unproven_ : proven_list_, c.place);
  try {
    carry_out_will(c);
  } catch (const std::bad_alloc&) {
    // The ranks that wait for its key then wait for their own deadlines; the store serves the others.
  }
}

}  // namespace hvd::store
