// See doctor.h.
#include "engine/watch/doctor.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/text.h"
#include "engine/base/threads.h"

namespace hvd::watch {
namespace {

using namespace std::chrono_literals;
using base::Json;

constexpr auto kDriverTime = 1000ms, kTreeTime = 2500ms;
constexpr size_t kLongestQuestion = 64;
constexpr timeval kPeerTime{2, 0};  // for a peer that does not read or write

bool may_ask(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

// The first line of the peer, without its end; empty if it does not come in time.
std::string read_question(int fd) {
  std::string text;
  char part[kLongestQuestion];
  while (text.size() < kLongestQuestion) {
    const ssize_t n = ::recv(fd, part, sizeof part, 0);
    if (n <= 0) return {};
    text.append(part, static_cast<size_t>(n));
    if (const size_t end = text.find('\n'); end != std::string::npos) return text.substr(0, end);
  }
  return {};
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// An answer is the facts and a line end, then parts: "PART kind rank bytes", a line end, the bytes. Its reader is
// hvd_core/_cli/doctor.py.
std::string part(std::string_view kind, int32_t rank, const std::string& data) {
  return "PART " + std::string(kind) + " " + std::to_string(rank) + " " + std::to_string(data.size()) + "\n" + data;
}

std::string json_of(const Doctor::ProcessSets& process_sets) {
  Json all = Json::object();
  for (const auto& [id, members] : process_sets) {
    Json list = Json::array();
    for (int32_t r : members) list.push(Json(r));
    all.set(std::to_string(id), list);
  }
  return all.text();
}

}  // namespace

Doctor::Doctor(std::string facts, int32_t size, const std::shared_ptr<const Program>& program, Host& host)
    : facts_(std::move(facts)),
      size_(static_cast<size_t>(size)),
      host_(host),
      sampler_(program ? std::make_unique<StackSampler>(program) : nullptr) {}

void Doctor::serve(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    throw std::system_error(EINVAL, std::generic_category(), "the socket of hvd doctor: its name");
  name.copy(address.sun_path + 1, name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  listener_ = fd;
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(fd, 64) != 0)
    throw std::system_error(errno, std::generic_category(), "the socket of hvd doctor");
  thread_ = base::start_thread("hvd-doctor", [this] { run(); });
}

void Doctor::stop() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  ::shutdown(listener_, SHUT_RDWR);  // ends accept()
  if (thread_.joinable()) thread_.join();
  close_socket();
  sampler_.reset();
}

void Doctor::close_socket() noexcept {
  if (const int fd = listener_.exchange(-1); fd >= 0) ::close(fd);
}

void Doctor::run() {
  for (;;) {
    const int peer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    bool quit;
    {
      std::unique_lock lock(mutex_);
      // Without a free descriptor the peer stays in the queue, and accept() fails again at once.
      if (peer < 0) wait(lock, 100ms, [] { return false; });
      quit = quit_;
    }
    try {
      if (peer >= 0 && !quit) answer_peer(peer);
    } catch (const std::exception& e) {
      base::log(base::Level::Debug, std::string("hvd doctor got no answer: ") + e.what());
    }
    if (peer >= 0) ::close(peer);
    if (quit) return;
  }
}

void Doctor::answer_peer(int fd) {
  if (!may_ask(fd)) {
    // Once: another user could fill the log.
    return base::log(std::exchange(refused_, true) ? base::Level::Debug : base::Level::Warning,
                     "hvd doctor of another user was refused");
  }
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(fd, SOL_SOCKET, option, &kPeerTime, sizeof kPeerTime);
  if (const std::string question = read_question(fd); !question.empty()) write_all(fd, answer(question));
}

void Doctor::set_own(Snapshot own, ProcessSets process_sets) {
  std::lock_guard lock(mutex_);
  own_ = std::move(own);
  process_sets_ = std::move(process_sets);
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
  std::string text = facts_ + "\n";
  if (question == "facts") return text;
  const bool all_ranks = question == "job";
  std::unique_lock lock(mutex_);
  own_.reset();
  others_.clear();
  lock.unlock();
  host_.wake_for_doctor(all_ranks);
  lock.lock();
  wait(lock, kDriverTime, [this] { return own_.has_value(); });
  std::optional<Snapshot> own = std::exchange(own_, std::nullopt);
  if (own) text += part("sets", own->rank, json_of(process_sets_));
  lock.unlock();
  if (!own) own = host_.snapshot_of_stuck_rank();
  if (sampler_) {
    sampler_->start(own->waiting);
    sampler_->wait(StackSampler::kPatience);
    own->program = sampler_->take(own->waiting);
  }
  text += part("snapshot", own->rank, encode(*own));
  if (!all_ranks) return text;
  lock.lock();
  wait(lock, kTreeTime, [this] { return others_.size() + 1 >= size_; });
  for (const auto& [rank, data] : others_)
    if (rank != own->rank) text += part("snapshot", rank, data);
  return text;
}

}  // namespace hvd::watch
