// See doctor.h.
#include "engine/watch/doctor.h"

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

#include "engine/base/log.h"
#include "engine/base/text.h"
#include "engine/base/threads.h"

namespace hvd::watch {
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
  const int64_t left = std::max<int64_t>(0, (until - base::now_ns()) / 1'000'000);
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
  const int64_t until = base::now_ns() + int64_t{kPatienceMs} * 1'000'000;
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
  const int64_t until = base::now_ns() + int64_t{kPatienceMs} * 1'000'000;
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
  thread_ = base::start_thread("hvd-doctor", [this] { serve(); });
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
      base::log(base::Level::Debug, std::string("hvd doctor got no answer: ") + e.what());
    }
  }
}

void AskServer::answer_one(int fd) {
  if (!may_ask(fd)) {
    // Once: another user could fill the log.
    return base::log(std::exchange(refused_, true) ? base::Level::Debug : base::Level::Warning,
                     "hvd doctor of another user was refused");
  }
  const std::string question = read_question(fd);
  if (!question.empty()) write_all(fd, answer_(question));
}

// An answer is a line of facts, then parts: "PART kind rank bytes", a line end, the bytes. Its reader is
// hvd_core/_cli/doctor.py.

using namespace std::chrono_literals;
using base::Json;

namespace {

constexpr auto kDriverTime = 1000ms, kTreeTime = 2500ms;

void add_part(std::string& answer, std::string_view kind, int32_t rank, const std::string& data) {
  answer += "PART " + std::string(kind) + " " + std::to_string(rank) + " " + std::to_string(data.size()) + "\n" + data;
}

std::string json_of(const std::map<int32_t, std::vector<int32_t>>& process_sets) {
  Json all = Json::object();
  for (const auto& [number, members] : process_sets) {
    Json list = Json::array();
    for (int32_t r : members) list.push(Json(r));
    all.set(std::to_string(number), list);
  }
  return all.text();
}

}  // namespace

Doctor::Doctor(std::string facts, const std::shared_ptr<const Program>& program, Engine engine)
    : facts_(std::move(facts)),
      engine_(std::move(engine)),
      sampler_(program ? std::make_unique<StackSampler>(program) : nullptr) {}

void Doctor::serve(const std::string& name) {
  server_ = std::make_unique<AskServer>(name, [this](const std::string& question) { return answer(question); });
}

void Doctor::stop() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  server_.reset();
  sampler_.reset();
}

void Doctor::set_state(State own) {
  std::lock_guard lock(mutex_);
  own_ = std::move(own);
  changed_.notify_all();
}

void Doctor::add_snapshot(int32_t rank, std::string snapshot) {
  std::lock_guard lock(mutex_);
  others_[rank] = std::move(snapshot);
  changed_.notify_all();
}

template <typename Ready>
void Doctor::wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time, Ready&& ready) {
  changed_.wait_for(lock, time, [&] { return quit_ || ready(); });
}

std::string Doctor::answer(const std::string& question) {
  if (question == "facts") return facts_ + "\n";
  const bool all_ranks = question == "job";
  std::unique_lock lock(mutex_);
  own_.reset();
  others_.clear();
  lock.unlock();
  engine_.wake(all_ranks);
  lock.lock();
  wait(lock, kDriverTime, [this] { return own_.has_value(); });
  const std::optional<State> own = std::exchange(own_, std::nullopt);
  lock.unlock();

  std::string text = facts_ + "\n";
  Snapshot snapshot = own ? own->snapshot : engine_.last();
  if (own) {
    for (const std::string& line : own->engine) add_part(text, "engine", snapshot.rank, line);
    add_part(text, "sets", snapshot.rank, json_of(own->process_sets));
  } else {
    add_part(text, "stuck", snapshot.rank, "");
    if (const std::string call = engine_.under_way(); !call.empty()) add_part(text, "engine", snapshot.rank, call);
  }
  if (sampler_) {
    sampler_->start(snapshot.waiting);
    sampler_->wait(StackSampler::kPatience);
    snapshot.program = sampler_->take(snapshot.waiting);
  }
  add_part(text, "snapshot", snapshot.rank, encode(snapshot));
  if (!all_ranks) return text;
  lock.lock();
  wait(lock, kTreeTime, [this] { return others_.size() + 1 >= static_cast<size_t>(engine_.size); });
  for (const auto& [rank, data] : others_)
    if (rank != snapshot.rank) add_part(text, "snapshot", rank, data);
  return text;
}

}  // namespace hvd::watch
