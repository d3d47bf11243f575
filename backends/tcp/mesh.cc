// Making the connections; see mesh.h.
//
// The higher rank of a pair connects, the lower one accepts. One poll loop serves the listeners, the accepted
// connections whose rank is not proved yet, and this rank's own attempts, each of which tries the peer's addresses in
// turn until the peer answers at one.
#include "mesh.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <list>
#include <optional>
#include <string_view>

#include "handshake.h"
#include "listener.h"
#include "rendezvous.h"
#include "shared.h"

namespace hvd::tcp {
namespace {

constexpr int64_t kMs = 1000000;
constexpr int64_t kSliceMs = 100;           // how often a wait looks whether it is still wanted
constexpr int64_t kConnectNs = 3000 * kMs;  // for one address; the next may do better
constexpr int64_t kProofNs = 10000 * kMs;   // for one accepted connection to prove its rank
constexpr int64_t kPlaceNs = 200 * kMs;     // of these, while others wait to be accepted
constexpr int64_t kRetryNs = 100 * kMs;     // between two rounds through a peer's addresses
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint32_t kUnprovenLimit = 64;  // unproven connections beyond the expected ones

struct Attempt {
  enum class State { kResting, kConnecting, kProving, kDone };
  uint32_t peer, socket_index;
  State state = State::kResting;
  size_t candidate = 0;
  int64_t until = 0;  // of the state
  Descriptor fd;
  std::optional<Handshake> handshake;
};

struct Incoming {
  Handshake handshake;
  int64_t until;
};

class Builder {
 public:
  Builder(const CommInit& init, const Directory& directory, const Listener& listener, Mesh* mesh)
      : init_(init),
        directory_(directory),
        listener_(listener),
        mesh_(mesh),
        me_(static_cast<uint32_t>(init.rank)),
        size_(static_cast<uint32_t>(init.size)),
        sockets_per_peer_(directory.settings.sockets_per_peer) {}

  void run(int64_t deadline_ns);

 private:
  void prepare_attempts();
  std::vector<Endpoint> order(uint32_t peer) const;
  const Endpoint& target(const Attempt& attempt) const { return candidates_[attempt.peer][attempt.candidate]; }
  void begin(Attempt& attempt);
  void give_up(Attempt& attempt, const std::string& why);
  void connected(Attempt& attempt);
  void prove(Attempt& attempt);
  bool is_full(int64_t now) const;
  void accept_from(int listener);
  void hear(std::list<Incoming>::iterator incoming);
  void expire(int64_t now);
  int64_t next_event(int64_t deadline_ns) const;
  Descriptor& place(uint32_t peer, uint32_t socket_index) {
    return mesh_->sockets[peer * sockets_per_peer_ + socket_index];
  }
  void keep(uint32_t peer, uint32_t socket_index, Handshake& handshake);
  [[noreturn]] void throw_too_late() const;
  int32_t world(uint32_t r) const { return world_rank(init_, r); }

  const CommInit& init_;
  const Directory& directory_;
  const Listener& listener_;
  Mesh* mesh_;
  const uint32_t me_, size_, sockets_per_peer_;
  uint32_t missing_ = 0;
  std::vector<std::vector<Endpoint>> candidates_;
  std::vector<std::string> trouble_;  // the last one with each peer
  std::vector<Attempt> attempts_;
  std::list<Incoming> incoming_;
};

// Addresses in a network of this host first. Loopback first on one host; elsewhere last, for hosts that only seem to be
// two.
std::vector<Endpoint> Builder::order(uint32_t peer) const {
  const RankAddresses& own = directory_.ranks[peer];
  std::vector<Endpoint> list(own.endpoints, own.endpoints + own.count);
  const bool one_host = !init_.hosts.empty() && init_.hosts[peer] == init_.hosts[me_];
  const std::vector<Interface> ours = list_interfaces();
  const auto distance = [&](const Endpoint& e) {
    if (e.loopback) return one_host ? 0 : 3;
    const bool near = std::any_of(ours.begin(), ours.end(), [&](const Interface& i) {
      return !i.endpoint.loopback && same_network(i.endpoint, e, i.bits);
    });
    return near ? 1 : 2;
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Endpoint& a, const Endpoint& b) { return distance(a) < distance(b); });
  return list;
}

void Builder::prepare_attempts() {
  mesh_->settings = directory_.settings;
  mesh_->sockets.resize(size_t{size_} * sockets_per_peer_);
  mesh_->keys.resize(mesh_->sockets.size());
  mesh_->names.resize(size_);
  candidates_.resize(size_);
  trouble_.resize(size_);
  missing_ = (size_ - 1) * sockets_per_peer_;
  for (uint32_t peer = 0; peer < me_; ++peer) {
    candidates_[peer] = order(peer);
    for (uint32_t socket_index = 0; socket_index < sockets_per_peer_; ++socket_index) {
      Attempt& attempt = attempts_.emplace_back();
      attempt.peer = peer;
      attempt.socket_index = socket_index;
    }
  }
}

void Builder::begin(Attempt& attempt) {
  const Endpoint& to = target(attempt);
  attempt.fd = make_socket(to.family, mesh_->local.peer_timeout_s, mesh_->local.buffer_kib);
  if (!attempt.fd) return give_up(attempt, strerror(errno));
  sockaddr_storage address;
  const socklen_t n = to_sockaddr(to, &address);
  attempt.state = Attempt::State::kConnecting;
  attempt.until = now_ns() + kConnectNs;
  if (connect(attempt.fd.get(), reinterpret_cast<sockaddr*>(&address), n) == 0) return connected(attempt);
  if (errno != EINPROGRESS) give_up(attempt, strerror(errno));
}

void Builder::give_up(Attempt& attempt, const std::string& why) {
  trouble_[attempt.peer] = to_text(target(attempt)) + ": " + why;
  attempt.handshake.reset();
  attempt.fd.reset();
  attempt.state = Attempt::State::kResting;
  attempt.candidate = (attempt.candidate + 1) % candidates_[attempt.peer].size();
  attempt.until = attempt.candidate == 0 ? now_ns() + kRetryNs : 0;
}

void Builder::connected(Attempt& attempt) {
  int error = 0;
  socklen_t n = sizeof error;
  if (getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &n) != 0) error = errno;
  if (error != 0) return give_up(attempt, strerror(error));
  attempt.state = Attempt::State::kProving;
  attempt.until = now_ns() + kProofNs;
  attempt.handshake.emplace(
      Handshake::as_caller(std::move(attempt.fd), directory_.secret, {me_, attempt.peer, attempt.socket_index, size_}));
  prove(attempt);
}

void Builder::prove(Attempt& attempt) {
  switch (attempt.handshake->step()) {
    case Handshake::State::kMore:
      // From now on the peer may count this connection, and listen no more. It closes one that it does not count.
      if (attempt.handshake->has_proved()) attempt.until = kNever;
      return;
    case Handshake::State::kRefused:
      return give_up(attempt, "the program that listens there is not the peer, or has ended");
    case Handshake::State::kDone:
      break;
  }
  mesh_->names[attempt.peer] = to_text(target(attempt));
  keep(attempt.peer, attempt.socket_index, *attempt.handshake);
  attempt.handshake.reset();
  attempt.state = Attempt::State::kDone;
}

void Builder::keep(uint32_t peer, uint32_t socket_index, Handshake& handshake) {
  mesh_->keys[peer * sockets_per_peer_ + socket_index] = handshake.key();
  Descriptor& kept = place(peer, socket_index);
  if (!kept) --missing_;
  kept = handshake.take();
}

// Unproven connections take all places, and each of them may still prove its rank. The next ones wait in the listener's
// queue.
bool Builder::is_full(int64_t now) const {
  return incoming_.size() >= size_t{size_} * sockets_per_peer_ + kUnprovenLimit &&
         now < incoming_.front().until - kProofNs + kPlaceNs;
}

// A part of those that wait, so that a program that connects without end does not keep this rank from the connections
// it has.
void Builder::accept_from(int listener) {
  for (uint32_t n = 0; n < kUnprovenLimit && !is_full(now_ns()); ++n) {
    Descriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        throw formatted_error(HVD_E_UNAVAILABLE, 0,
                              "cannot accept a peer's connection: %s; this rank needs %u of them (ulimit -n)",
                              strerror(errno), (size_ - 1) * sockets_per_peer_);
      }
      return;  // EAGAIN, or a connection that the caller has closed already
    }
    set_up_socket(fd.get(), mesh_->local.peer_timeout_s);
    // Unproven connections must not keep ranks out: the oldest one is closed.
    if (incoming_.size() >= size_t{size_} * sockets_per_peer_ + kUnprovenLimit) incoming_.pop_front();
    incoming_.push_back(
        {Handshake::as_host(std::move(fd), directory_.secret, me_, size_, sockets_per_peer_), now_ns() + kProofNs});
  }
}

void Builder::hear(std::list<Incoming>::iterator incoming) {
  const Handshake::State state = incoming->handshake.step();
  if (state == Handshake::State::kMore) return;
  const Introduction from_peer = incoming->handshake.introduction();
  // A peer that connects once more has given its earlier connection up, for which the answer came too late: the later
  // one counts.
  if (state == Handshake::State::kDone) {
    sockaddr_storage address;
    socklen_t n = sizeof address;
    Endpoint from;
    if (getpeername(incoming->handshake.fd(), reinterpret_cast<sockaddr*>(&address), &n) == 0 &&
        from_sockaddr(reinterpret_cast<sockaddr*>(&address), &from)) {
      mesh_->names[from_peer.caller] = to_text(from);
    }
    keep(from_peer.caller, from_peer.socket_index, incoming->handshake);
  }
  incoming_.erase(incoming);
}

void Builder::expire(int64_t now) {
  for (Attempt& attempt : attempts_) {
    if (attempt.state == Attempt::State::kDone || now < attempt.until) continue;
    if (attempt.state == Attempt::State::kConnecting) give_up(attempt, "no answer");
    if (attempt.state == Attempt::State::kProving) prove(attempt);  // the answer may be there: this rank was stopped
    if (attempt.state == Attempt::State::kProving && now >= attempt.until)
      give_up(attempt, "connected, but the program that listens there does not answer");
    if (attempt.state == Attempt::State::kResting && now >= attempt.until) begin(attempt);
  }
  incoming_.remove_if([&](const Incoming& g) { return now >= g.until; });
}

int64_t Builder::next_event(int64_t deadline_ns) const {
  int64_t next = deadline_ns;
  for (const Attempt& attempt : attempts_) {
    if (attempt.state != Attempt::State::kDone) next = std::min(next, attempt.until);
  }
  for (const Incoming& incoming : incoming_) next = std::min(next, incoming.until);
  if (is_full(now_ns())) next = std::min(next, incoming_.front().until - kProofNs + kPlaceNs);
  return next;
}

void Builder::throw_too_late() const {
  for (uint32_t peer = 0; peer < size_; ++peer) {
    for (uint32_t socket_index = 0; peer != me_ && socket_index < sockets_per_peer_; ++socket_index) {
      if (mesh_->sockets[peer * sockets_per_peer_ + socket_index]) continue;
      if (peer < me_) {
        throw formatted_error(HVD_E_TIMEOUT, 0,
                              "rank %d could not connect to rank %d in time (%s); option iface chooses other "
                              "addresses",
                              world(me_), world(peer),
                              trouble_[peer].empty() ? "no attempt ended" : trouble_[peer].c_str());
      }
      std::string at;
      for (const Endpoint& e : listener_.endpoints()) at += (at.empty() ? "" : ", ") + to_text(e);
      throw formatted_error(HVD_E_TIMEOUT, 0,
                            "rank %d did not connect to rank %d in time, which listened at %s; option iface "
                            "chooses other addresses",
                            world(peer), world(me_), at.c_str());
    }
  }
  throw formatted_error(HVD_E_TIMEOUT, 0, "the deadline passed");
}

void Builder::run(int64_t deadline_ns) {
  prepare_attempts();
  std::vector<pollfd> polled;
  std::vector<std::list<Incoming>::iterator> polled_incoming;
  std::vector<Attempt*> polled_attempts;
  while (missing_ > 0) {
    const int64_t now = now_ns();
    if (now >= deadline_ns) throw_too_late();
    expire(now);
    polled.clear();
    polled_incoming.clear();
    polled_attempts.clear();
    const bool full = is_full(now);
    for (const Descriptor& fd : listener_.sockets()) polled.push_back({full ? -1 : fd.get(), POLLIN, 0});
    for (auto incoming = incoming_.begin(); incoming != incoming_.end(); ++incoming) {
      polled.push_back({incoming->handshake.fd(), POLLIN, 0});
      polled_incoming.push_back(incoming);
    }
    for (Attempt& attempt : attempts_) {
      if (attempt.state == Attempt::State::kConnecting) polled.push_back({attempt.fd.get(), POLLOUT, 0});
      if (attempt.state == Attempt::State::kProving) polled.push_back({attempt.handshake->fd(), POLLIN, 0});
      if (attempt.state == Attempt::State::kConnecting || attempt.state == Attempt::State::kProving)
        polled_attempts.push_back(&attempt);
    }
    const int64_t left = std::max<int64_t>(0, next_event(deadline_ns) - now);
    const int timeout = static_cast<int>(std::min<int64_t>(left / kMs + 1, kSliceMs));
    if (missing_ == 0) continue;
    const int ready = poll(polled.data(), polled.size(), timeout);
    if (ready == 0 && timeout == kSliceMs) init_.store.del("tcp/wanted");  // throws if the host has given this up
    if (ready <= 0) continue;
    size_t at = listener_.sockets().size();
    // Accepted connections before listeners: a connection that is accepted now is not in `polled`.
    for (const auto& incoming : polled_incoming) {
      if (polled[at++].revents != 0) hear(incoming);
    }
    for (Attempt* attempt : polled_attempts) {
      if (polled[at++].revents == 0) continue;
      attempt->state == Attempt::State::kConnecting ? connected(*attempt) : prove(*attempt);
    }
    for (size_t i = 0; i < listener_.sockets().size(); ++i) {
      if (polled[i].revents == 0) continue;
      accept_from(polled[i].fd);
    }
  }
  for (uint32_t r = 0; r < size_; ++r) {
    const std::string where = mesh_->names[r];
    mesh_->names[r] = "rank " + std::to_string(world(r)) + (where.empty() ? "" : " (" + where + ")");
  }
}

}  // namespace

Mesh build_mesh(const CommInit& init, int64_t deadline_ns) {
  Mesh mesh;
  mesh.local = local_settings();
  Listener listener;
  RankAddresses own = {};
  own.encrypts = mesh.local.encrypt;
  std::optional<Error> problem;
  try {
    const auto elsewhere = [&](int32_t host) { return host != init.hosts[static_cast<size_t>(init.rank)]; };
    const bool one_host = !init.hosts.empty() && std::none_of(init.hosts.begin(), init.hosts.end(), elsewhere);
    if (mesh.local.encrypt && !one_host && CryptoLibrary::find() == nullptr)
      throw Error(HVD_E_UNAVAILABLE, CryptoLibrary::problem());
    listener.open(mesh.local, one_host, SOMAXCONN);
    own.count = static_cast<uint32_t>(listener.endpoints().size());
    std::copy(listener.endpoints().begin(), listener.endpoints().end(), own.endpoints);
  } catch (const Error& error) {  // the other ranks are told, so that they need not wait for the deadline
    problem = error;
    own.reason[std::string_view(error.text).copy(own.reason, sizeof own.reason - 1)] = '\0';
  }
  Directory directory;
  try {
    directory = exchange_addresses(init, own, deadline_ns);
  } catch (const Error&) {
    if (problem) throw *problem;
    throw;
  }
  if (problem) throw *problem;
  Builder builder(init, directory, listener, &mesh);
  const auto clean_up = [&] {
    if (init.rank == 0) remove_addresses(init);
  };
  try {
    builder.run(deadline_ns);
  } catch (...) {
    clean_up();
    throw;
  }
  clean_up();
  return mesh;
}

}  // namespace hvd::tcp
