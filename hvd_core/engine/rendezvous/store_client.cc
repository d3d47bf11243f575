// See store_client.h.
#include "engine/rendezvous/store_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "engine/base/log.h"
#include "engine/plugins/errors.h"

namespace hvd::rendezvous {
namespace {

constexpr int64_t kSliceNs = 500'000'000;  // a waiting get() checks this often whether it was cancelled
constexpr int kAnswerTimeoutMs = 30'000;   // if an answer does not come in this time, the store is gone
constexpr uint32_t kMaxAnswer = 64u << 20;

[[noreturn]] void cancelled() { throw plugins::BackendError(HVD_E_ABORTED, 0, 0, "the engine is stopping"); }

[[noreturn]] void lost(const std::string& why) {
  throw plugins::BackendError(HVD_E_REMOTE, 0, 0, "the job's store is gone: " + why);
}

template <typename T>
void put(std::string& out, T v) {
  char raw[sizeof v];
  std::memcpy(raw, &v, sizeof v);
  out.append(raw, sizeof raw);
}

}  // namespace

StoreClient::StoreClient(int fd, const std::string& key)
    : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), cancel_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_ || !cancel_fd_)
    throw std::system_error(errno, std::generic_category(), "descriptors for the store's client");
  using enum rendezvous::FrameSeal::Kind;
  if (!key.empty())
    seals_.reset(new rendezvous::Seals{rendezvous::FrameSeal(key, rendezvous::kToStore, kEncrypted),
                                       rendezvous::FrameSeal(key, rendezvous::kFromStore, kEncrypted)});
}

void StoreClient::cancel() {
  cancelled_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(cancel_fd_.get(), &one, sizeof one);
}

void StoreClient::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd p{fd_.get(), POLLOUT, 0};
      if (::poll(&p, 1, kAnswerTimeoutMs) == 0) lost("it does not take a request");
      continue;
    }
    if (n < 0) lost(std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void StoreClient::recv_all(char* into, size_t n) {
  while (n > 0) {
    pollfd p[] = {{fd_.get(), POLLIN, 0}, {cancel_fd_.get(), POLLIN, 0}};
    int ready = ::poll(p, 2, kAnswerTimeoutMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) lost("no answer within 30 s");
    if (p[1].revents) cancelled();  // the answer stays unread: no call follows
    ssize_t got = ::recv(fd_.get(), into, n, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (got < 0) lost(std::strerror(errno));
    if (got == 0) lost("it closed the connection");
    into += got;
    n -= static_cast<size_t>(got);
  }
}

std::string StoreClient::read_answer() {
  uint32_t n;
  recv_all(reinterpret_cast<char*>(&n), sizeof n);
  if (n == 0 || n > kMaxAnswer) lost("an answer of absurd size");
  std::string body(n + (seals_ ? rendezvous::FrameSeal::kTagBytes : 0), '\0');
  recv_all(body.data(), body.size());
  if (seals_ && !seals_->in.open(n, body.data(), n, body.data() + n)) lost("an answer was changed on the way");
  body.resize(n);
  return body;
}

std::string StoreClient::request_text(Op op, const std::string& key, std::string_view payload) {
  std::string request, body;
  body.push_back(static_cast<char>(op));
  put(body, static_cast<uint16_t>(key.size()));
  body += key;
  body += payload;
  const auto size = static_cast<uint32_t>(body.size());
  put(request, size);
  if (seals_)
    seals_->out.seal(size, body, &request);
  else
    request += body;
  return request;
}

bool StoreClient::call(Op op, const std::string& key, std::string_view payload, std::string* answer) {
  if (cancelled_) cancelled();
  std::lock_guard lock(mutex_);
  send_all(request_text(op, key, payload));
  for (; unread_ > 0; --unread_) read_answer();
  const std::string body = read_answer();
  answer->assign(body, 1);
  if (body[0] == 1) return false;
  if (body[0] != 0) throw plugins::BackendError(HVD_E_INTERNAL, 0, 0, "the job's store: " + *answer);
  return true;
}

void StoreClient::set(const std::string& key, std::string_view value) {
  std::string answer;
  call(kSet, key, value, &answer);
}

std::string StoreClient::get(const std::string& key, int64_t deadline_ns) {
  for (;;) {
    int64_t left = deadline_ns - base::now_ns();
    int64_t slice_ms = std::clamp<int64_t>(std::min(left, kSliceNs) / 1'000'000, 0, 1000);
    std::string payload, answer;
    put(payload, slice_ms);
    if (call(kGet, key, payload, &answer)) return answer;
    if (base::now_ns() >= deadline_ns)
      throw plugins::BackendError(HVD_E_TIMEOUT, 0, 0, "no rank has set '" + key + "' in the job's store in time");
  }
}

int64_t StoreClient::add(const std::string& key, int64_t delta) {
  std::string payload, answer;
  put(payload, delta);
  call(kAdd, key, payload, &answer);
  int64_t now = 0;
  if (answer.size() != sizeof now)
    throw plugins::BackendError(HVD_E_INTERNAL, 0, 0, "the job's store: odd answer to add");
  std::memcpy(&now, answer.data(), sizeof now);
  return now;
}

void StoreClient::count(const std::string& key) noexcept {
  std::string payload;
  put(payload, int64_t{1});
  std::unique_lock lock(mutex_, std::try_to_lock);
  // Another thread of this rank may be asking the store just now. An abort must not wait long for its answer.
  for (int tries = 0; !lock && tries < 50; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    (void)lock.try_lock();
  }
  if (!lock) return;
  // A sealed request that is not sent would break the order of the records, so that is found out before.
  pollfd ready = {fd_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  const std::string request = request_text(kAdd, key, payload);
  // So few bytes are sent whole, or not at all if the store's process takes no more bytes.
  if (::send(fd_.get(), request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) ++unread_;
}

void StoreClient::del(const std::string& key) {
  std::string answer;
  call(kDel, key, {}, &answer);
}

}  // namespace hvd::rendezvous
