// See store_service.h.
#include "engine/rendezvous/store_service.h"

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
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/base/log.h"
#include "engine/rendezvous/store_server.h"

namespace hvd::rendezvous {
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

Service::Service(base::Fd listener, std::string secret, int64_t handshake_ns)
    : secret_(std::move(secret)),
      handshake_ns_(handshake_ns),
      encrypts_(wire_security::encryption_wanted()),
      listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!epoll_ || !wake_) lack("epoll_create1 and eventfd for the store");
  for (base::Fd* fd : {&listener_, &wake_}) {
    epoll_event event{EPOLLIN, {.ptr = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd->get(), &event) != 0) lack("epoll_ctl for the store");
  }
  std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
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
    for (auto& c : *list) c->fd.reset();
  for (base::Fd* fd : {&listener_, &wake_, &epoll_}) fd->reset();
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
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

void Service::run() {
  std::array<epoll_event, 64> events;
  while (!stopping_) {
    int timeout;
    {
      std::lock_guard lock(mutex_);
      timeout = wait_ms();
    }
    const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    if (n < 0 && errno != EINTR) {
      // The program has closed descriptors that are not its own; another turn would fail alike, without a pause.
      base::log(base::Level::Error,
                std::string("store: epoll_wait: ") + std::strerror(errno) + "; the job's store has ended");
      return;
    }
    std::lock_guard lock(mutex_);
    for (int i = 0; i < n && !stopping_; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      turn(event.data.ptr, event.events);
    }
    run_timers();
    dropped_.clear();
  }
}

void Service::turn(void* of, uint32_t events) {
  if (of == &listener_)
    accept_one();
  else if (of != &wake_)
    serve(*static_cast<Connection*>(of), events);
}

int Service::wait_ms() const {
  int64_t first = timers_.empty() ? INT64_MAX : timers_.begin()->first;
  if (listen_again_ != 0) first = std::min(first, listen_again_);
  if (first == INT64_MAX) return -1;
  const int64_t left = (first - base::now_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void Service::run_timers() {
  const int64_t now = base::now_ns();
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
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  listen_again_ = until;
}

void Service::watch_listener() {
  epoll_event event{EPOLLIN, {.ptr = &listener_}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0) listen_again_ = 0;
  full_ = false;
}

// A connection has proved the secret, or has gone.
void Service::place_is_free() {
  if (full_) watch_listener();
}

void Service::accept_one() {
  const int64_t now = base::now_ns();
  if (unproven_.size() >= kMostUnproven && now - unproven_.front()->since < kPlaceNs) {
    full_ = true;
    return pause_listener(unproven_.front()->since + kPlaceNs);
  }
  base::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    if (errno == EMFILE && more_descriptors()) return;
    // Without a pause the listener would stay readable, and the thread would spin.
    base::log(base::Level::Warning,
              std::string("store: could not accept a connection: ") + std::strerror(errno) + "; trying again");
    return pause_listener(now + kListenAgainNs);
  }
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (unproven_.size() >= kMostUnproven)
    drop(*unproven_.front(), "too many connections that have not proved the secret");
  Connection& c = *unproven_.emplace_back(std::make_unique<Connection>());
  c.handshake.emplace(encrypts_ && !stays_here(fd.get()));
  c.unsent = c.handshake->challenge();
  c.fd = std::move(fd);
  c.since = now;
  c.place = std::prev(unproven_.end());
  c.events = EPOLLIN;
  epoll_event event{EPOLLIN, {.ptr = &c}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c.fd.get(), &event) != 0) return drop(c, "no memory for it");
  set_timer(c, base::now_ns() + handshake_ns_);
  serve(c, EPOLLOUT);
}

void Service::serve(Connection& c, uint32_t events) {
  if (!c.fd) return;  // dropped earlier in this turn
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
  const ssize_t n = ::recv(c.fd.get(), data, sizeof data, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  c.received.append(data, static_cast<size_t>(n));
  why_ = "more requests sent ahead than the store keeps";
  return c.received.size() <= 2 * kMostRequestBytes;
}

bool Service::prove(Connection& c) {
  char data[Handshake::kAnswerBytes];
  const ssize_t n = ::recv(c.fd.get(), data, c.handshake->missing(), 0);
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
    using enum rendezvous::FrameSeal::Kind;
    c.seals.reset(new rendezvous::Seals{rendezvous::FrameSeal(key, rendezvous::kFromStore, kEncrypted),
                                        rendezvous::FrameSeal(key, rendezvous::kToStore, kEncrypted)});
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
    const ssize_t n = ::send(c.fd.get(), c.unsent.data() + c.sent, c.unsent.size() - c.sent, MSG_NOSIGNAL);
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
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd.get(), &event);
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
  if (!c.fd) return;
  if (c.handshake && base::log_enabled(base::Level::Info))
    base::log(base::Level::Info, std::string("store: refused a connection: ") + why);
  clear_timer(c);
  if (c.waits) stop_waiting(c);
  // A process that is just being started may have a copy of the descriptor, which would keep it in the epoll.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, c.fd.get(), nullptr);
  c.fd.reset();
  if (!c.handshake) --proven_;
  c.received = {};
  c.unsent = {};
  if (c.handshake) place_is_free();
  dropped_.splice(dropped_.end(), c.handshake ? unproven_ : proven_list_, c.place);
  carry_out_will(c);
}

// The requests of the store's clients: they are read from a connection's buffer, carried out on the table of values,
// and answered into the connection's other buffer. See service.h.
namespace {

enum Op : uint8_t { kSet = 1, kGet = 2, kAdd = 3, kDel = 4, kWill = 5, kAny = 6, kGather = 7, kAbsent = 8, kClear = 9 };

constexpr size_t kMostAwaited = 8;  // keys of one ANY
constexpr int64_t kForEverMs = int64_t{1} << 40;

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

template <class T>
std::string_view bytes_of(const T& v) {
  return {reinterpret_cast<const char*>(&v), sizeof v};
}

// Appends the keys of an ANY after its first: u16 length | bytes, each.
bool more_keys(std::string_view payload, std::vector<std::string>* keys) {
  while (!payload.empty()) {
    if (payload.size() < 2 || keys->size() == kMostAwaited) return false;
    const size_t bytes = number_at<uint16_t>(payload, 0);
    if (bytes > kMostKeyBytes || bytes > payload.size() - 2) return false;
    const std::string_view key = payload.substr(2, bytes);
    if (std::find(keys->begin(), keys->end(), key) != keys->end()) return false;  // a client asks once for a key
    keys->emplace_back(key);
    payload.remove_prefix(2 + bytes);
  }
  return true;
}

}  // namespace

bool Service::answer_all(Connection& c) {
  size_t at = 0;
  bool fine = true;
  while (fine && !c.handshake && (!c.waits || c.waits_for_any) && c.unsent.size() - c.sent < kMostUnsent &&
         c.received.size() - at >= 4) {
    const size_t size = number_at<uint32_t>(c.received, at);
    why_ = "a request of a wrong size";
    fine = size >= 3 && size <= kMostRequestBytes;
    const size_t tag = c.seals ? rendezvous::FrameSeal::kTagBytes : 0;
    if (!fine || c.received.size() - at < 4 + size + tag) break;
    char* const start = c.received.data() + at + 4;
    why_ = "a request that was changed on the way";
    fine = !c.seals || c.seals->in.open(static_cast<uint32_t>(size), start, size, start + size);
    if (!fine) {
      // The client learns no more than the end of its connection, which has other causes too.
      base::log(base::Level::Error, std::string("store: the connection of a rank is closed: ") + why_);
      break;
    }
    if (c.waits) {  // the client's next request ends an ANY
      stop_waiting(c);
      reply(c, kTimeout);
    }
    const std::string request(start, size);
    at += 4 + size + tag;
    fine = answer(c, request);
  }
  c.received.erase(0, at);
  if (c.received.empty()) c.received.shrink_to_fit();
  return fine;
}

bool Service::answer(Connection& c, std::string_view request) {
  const uint8_t op = static_cast<uint8_t>(request[0]);
  const size_t key_bytes = number_at<uint16_t>(request, 1);
  why_ = "a key or a payload of a wrong size";
  if (key_bytes > kMostKeyBytes || 3 + key_bytes > request.size()) return false;
  std::string key(request.substr(3, key_bytes));
  const std::string_view payload = request.substr(3 + key_bytes);
  if ((op == kGet || op == kAdd) && payload.size() != sizeof(int64_t)) return false;
  if (op == kAbsent && payload.size() != sizeof(uint32_t)) return false;
  switch (op) {
    case kSet:
      reply(c, kOk);
      set(key, std::string(payload));
      break;
    case kGet:
      get(c, std::move(key), number_at<int64_t>(payload, 0));
      break;
    case kAdd:
      add(c, key, number_at<int64_t>(payload, 0));
      break;
    case kDel:
      values_.erase(key);
      reply(c, kOk);
      break;
    case kWill:
      c.will_key = std::move(key);
      c.will = payload;
      reply(c, kOk);
      break;
    case kAny: {
      std::vector<std::string> keys{std::move(key)};
      if (!more_keys(payload, &keys)) return false;
      any(c, std::move(keys));
      break;
    }
    case kGather:
      return gather(c, key, payload);
    case kAbsent:
      absent(c, key, number_at<uint32_t>(payload, 0));
      break;
    case kClear:
      clear(key);
      reply(c, kOk);
      break;
    default:
      reply(c, kError, "unknown operation " + std::to_string(op));
  }
  return true;
}

void Service::get(Connection& c, std::string key, int64_t timeout_ms) {
  if (const auto found = values_.find(key); found != values_.end()) return reply(c, kOk, found->second);
  if (timeout_ms == 0) return reply(c, kTimeout);
  waiting_[key].push_back(&c);
  c.awaited = {std::move(key)};
  c.waits = true;
  if (timeout_ms > 0 && timeout_ms < kForEverMs) set_timer(c, base::now_ns() + timeout_ms * 1'000'000);
}

void Service::any(Connection& c, std::vector<std::string> keys) {
  for (size_t i = 0; i < keys.size(); ++i)
    if (const auto found = values_.find(keys[i]); found != values_.end())
      return reply(c, kOk, std::string(1, static_cast<char>(i)) + found->second);
  for (const std::string& key : keys) waiting_[key].push_back(&c);
  c.awaited = std::move(keys);
  c.waits = c.waits_for_any = true;
}

void Service::add(Connection& c, const std::string& key, int64_t delta) {
  int64_t total = 0;
  bool fine = true;
  if (const auto found = values_.find(key); found != values_.end()) {
    const char *const first = found->second.data(), *const last = first + found->second.size();
    const auto [end, error] = std::from_chars(first, last, total);
    fine = error == std::errc{} && end == last;
  }
  if (!fine || __builtin_add_overflow(total, delta, &total))
    return reply(c, kError, "the value is not a number of 64 bits");
  reply(c, kOk, bytes_of(total));
  set(key, std::to_string(total));
}

bool Service::gather(Connection& c, const std::string& key, std::string_view payload) {
  std::optional<Gather::Part> part = Gather::parse(payload);
  why_ = "a part of a gathered value of a wrong form";
  if (!part) return false;
  Gather& to = gathers_[key];
  const bool is_new = to.add(*part);
  if (is_new && !part->own.empty()) set(key + '/' + std::to_string(part->members.front()), part->own);
  reply(c, kOk, std::string(1, is_new ? 1 : 0));
  if (!is_new) return true;
  to.keep(std::move(*part));
  if (to.is_complete())
    for (auto& [label, value] : to.take()) set(label.empty() ? key : key + ':' + label, std::move(value));
  return true;
}

void Service::absent(Connection& c, const std::string& key, uint32_t members) {
  const auto found = gathers_.find(key);
  std::string text;
  for (uint32_t i = 0; i < std::min(members, kMostMembers); ++i)
    if (found == gathers_.end() || !found->second.has(i)) text += bytes_of(i);
  reply(c, kOk, text);
}

void Service::clear(const std::string& prefix) {
  const auto begins = [&prefix](const auto& item) { return item.first.starts_with(prefix); };
  std::erase_if(values_, begins);
  std::erase_if(gathers_, begins);
}

void Service::set(const std::string& key, std::string value) {
  std::string& kept = values_[key];
  kept = std::move(value);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  const std::vector<Connection*> those = std::move(found->second);
  waiting_.erase(found);
  for (Connection* c : those) {
    clear_timer(*c);
    std::string answer;
    if (c->waits_for_any) answer.push_back(static_cast<char>(std::ranges::find(c->awaited, key) - c->awaited.begin()));
    stop_waiting(*c);
    reply(*c, kOk, answer + kept);
  }
  // Their next requests may change the store again, so they come after all answers, on the turn of their descriptors.
  for (Connection* c : those) watch(*c, EPOLLIN | EPOLLOUT);
}

void Service::reply(Connection& c, uint8_t status, std::string_view payload) {
  const auto size = static_cast<uint32_t>(1 + payload.size());
  c.unsent += bytes_of(size);
  if (c.seals) {
    std::string body(1, static_cast<char>(status));
    body += payload;
    c.seals->out.seal(size, body, &c.unsent);
  } else {
    c.unsent.push_back(static_cast<char>(status));
    c.unsent += payload;
  }
}

void Service::stop_waiting(Connection& c) {
  c.waits = c.waits_for_any = false;
  for (const std::string& key : c.awaited) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) continue;
    std::erase(found->second, &c);
    if (found->second.empty()) waiting_.erase(found);
  }
  c.awaited.clear();
}

// A value that is there stays: the first failure is the one that counts.
void Service::carry_out_will(Connection& c) {
  const std::string key = std::exchange(c.will_key, {}), value = std::exchange(c.will, {});
  if (!key.empty() && !values_.contains(key)) set(key, value);
}

}  // namespace hvd::rendezvous
