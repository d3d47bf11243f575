// Making the connections; see mesh.h.
//
// The higher rank calls, the lower one accepts. One poll loop serves the listeners, the guests that have not proved who
// they are, and this rank's own calls, each of which tries the peer's addresses in turn until one answers as the peer.
#include "mesh.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <optional>
#include <string_view>

#include "handshake.h"
#include "interfaces.h"
#include "listener.h"
#include "rendezvous.h"
#include "shared.h"

namespace hvd::tcp {
namespace {

constexpr int64_t kMs = 1000000;
constexpr int64_t kConnectNs = 3000 * kMs;  // for one address; the next may do better
constexpr int64_t kProofNs = 10000 * kMs;   // for one stranger to prove that it is none
constexpr int64_t kRetryNs = 100 * kMs;     // between two rounds through a peer's addresses
constexpr uint32_t kStrangers = 64;         // unproven guests beyond those that are expected

struct Call {
  enum class State { kResting, kConnecting, kProving, kDone };
  uint32_t peer, lane;
  State state = State::kResting;
  size_t candidate = 0;
  int64_t until = 0;  // of the state
  Descriptor fd;
  std::optional<Handshake> handshake;
};

struct Guest {
  Handshake handshake;
  int64_t until;
};

class Builder {
 public:
  Builder(const hvd_comm_args& args, const Directory& directory, const Listener& listener, Mesh* mesh)
      : args_(args),
        directory_(directory),
        listener_(listener),
        mesh_(mesh),
        me_(static_cast<uint32_t>(args.rank)),
        size_(static_cast<uint32_t>(args.size)),
        lanes_(directory.settings.lanes) {}

  hvd_rc run(int64_t deadline_ns, hvd_error* err);

 private:
  void plan_calls();
  std::vector<Endpoint> order(uint32_t peer) const;
  const Endpoint& target(const Call& call) const { return candidates_[call.peer][call.candidate]; }
  void begin(Call& call);
  void give_up(Call& call, const std::string& why);
  void connected(Call& call);
  void prove(Call& call);
  hvd_rc accept_from(int listener, hvd_error* err);
  void hear(std::list<Guest>::iterator guest);
  void expire(int64_t now);
  int64_t next_event(int64_t deadline_ns) const;
  Descriptor& place(uint32_t peer, uint32_t lane) { return mesh_->sockets[peer * lanes_ + lane]; }
  void keep(uint32_t peer, uint32_t lane, Descriptor fd);
  hvd_rc too_late(hvd_error* err) const;
  int32_t world(uint32_t r) const { return args_.ranks != nullptr ? args_.ranks[r] : static_cast<int32_t>(r); }

  const hvd_comm_args& args_;
  const Directory& directory_;
  const Listener& listener_;
  Mesh* mesh_;
  const uint32_t me_, size_, lanes_;
  uint32_t missing_ = 0;
  std::vector<std::vector<Endpoint>> candidates_;
  std::vector<std::string> trouble_;  // the last one with each peer
  std::vector<Call> calls_;
  std::list<Guest> guests_;
};

// Neighbours in a network of ours first. Loopback first on one host; elsewhere last, for hosts that only seem to be
// two.
std::vector<Endpoint> Builder::order(uint32_t peer) const {
  const Card& card = directory_.cards[peer];
  std::vector<Endpoint> list(card.endpoints, card.endpoints + card.count);
  const bool one_host = args_.hosts != nullptr && args_.hosts[peer] == args_.hosts[me_];
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

void Builder::plan_calls() {
  mesh_->settings = directory_.settings;
  mesh_->sockets.resize(size_t{size_} * lanes_);
  mesh_->names.resize(size_);
  candidates_.resize(size_);
  trouble_.resize(size_);
  missing_ = (size_ - 1) * lanes_;
  for (uint32_t peer = 0; peer < me_; ++peer) {
    candidates_[peer] = order(peer);
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      Call& call = calls_.emplace_back();
      call.peer = peer;
      call.lane = lane;
    }
  }
}

void Builder::begin(Call& call) {
  const Endpoint& to = target(call);
  call.fd = make_socket(to.family, mesh_->local.peer_timeout_s, mesh_->local.buffer_kib);
  if (!call.fd) return give_up(call, strerror(errno));
  sockaddr_storage address;
  const socklen_t n = to_sockaddr(to, &address);
  call.state = Call::State::kConnecting;
  call.until = now_ns() + kConnectNs;
  if (connect(call.fd.get(), reinterpret_cast<sockaddr*>(&address), n) == 0) return connected(call);
  if (errno != EINPROGRESS) give_up(call, strerror(errno));
}

void Builder::give_up(Call& call, const std::string& why) {
  trouble_[call.peer] = to_text(target(call)) + ": " + why;
  call.handshake.reset();
  call.fd.reset();
  call.state = Call::State::kResting;
  call.candidate = (call.candidate + 1) % candidates_[call.peer].size();
  call.until = call.candidate == 0 ? now_ns() + kRetryNs : 0;
}

void Builder::connected(Call& call) {
  int error = 0;
  socklen_t n = sizeof error;
  if (getsockopt(call.fd.get(), SOL_SOCKET, SO_ERROR, &error, &n) != 0) error = errno;
  if (error != 0) return give_up(call, strerror(error));
  call.state = Call::State::kProving;
  call.until = now_ns() + kProofNs;
  call.handshake.emplace(
      Handshake::as_caller(std::move(call.fd), directory_.secret, {me_, call.peer, call.lane, size_}));
  prove(call);
}

void Builder::prove(Call& call) {
  switch (call.handshake->step()) {
    case Handshake::State::kMore:
      return;
    case Handshake::State::kRefused:
      return give_up(call, "whoever listens there is not the peer, or has gone");
    case Handshake::State::kDone:
      break;
  }
  mesh_->names[call.peer] = to_text(target(call));
  keep(call.peer, call.lane, call.handshake->take());
  call.handshake.reset();
  call.state = Call::State::kDone;
}

void Builder::keep(uint32_t peer, uint32_t lane, Descriptor fd) {
  place(peer, lane) = std::move(fd);
  --missing_;
}

hvd_rc Builder::accept_from(int listener, hvd_error* err) {
  for (;;) {
    Descriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        return fail(err, HVD_E_UNAVAILABLE, 0,
                    "cannot accept a peer's connection: %s; this rank needs %u of them (ulimit -n)", strerror(errno),
                    (size_ - 1) * lanes_);
      }
      return HVD_OK;  // EAGAIN, or a guest that has gone already
    }
    set_up_socket(fd.get(), mesh_->local.peer_timeout_s);
    // Strangers must not keep ranks out: the one that has been silent longest makes room.
    if (guests_.size() >= size_t{size_} * lanes_ + kStrangers) guests_.pop_front();
    guests_.push_back({Handshake::as_host(std::move(fd), directory_.secret, me_, size_, lanes_), now_ns() + kProofNs});
  }
}

void Builder::hear(std::list<Guest>::iterator guest) {
  const Handshake::State state = guest->handshake.step();
  if (state == Handshake::State::kMore) return;
  const Introduction who = guest->handshake.who();
  if (state == Handshake::State::kDone && !place(who.caller, who.lane)) {
    Descriptor fd = guest->handshake.take();
    sockaddr_storage address;
    socklen_t n = sizeof address;
    Endpoint from;
    if (getpeername(fd.get(), reinterpret_cast<sockaddr*>(&address), &n) == 0 &&
        from_sockaddr(reinterpret_cast<sockaddr*>(&address), &from)) {
      mesh_->names[who.caller] = to_text(from);
    }
    keep(who.caller, who.lane, std::move(fd));
  }
  guests_.erase(guest);
}

void Builder::expire(int64_t now) {
  for (Call& call : calls_) {
    if (call.state == Call::State::kDone || now < call.until) continue;
    if (call.state == Call::State::kConnecting) give_up(call, "no answer");
    if (call.state == Call::State::kProving) give_up(call, "connected, but whoever listens there says nothing");
    if (call.state == Call::State::kResting && now >= call.until) begin(call);
  }
  guests_.remove_if([&](const Guest& g) { return now >= g.until; });
}

int64_t Builder::next_event(int64_t deadline_ns) const {
  int64_t next = deadline_ns;
  for (const Call& call : calls_) {
    if (call.state != Call::State::kDone) next = std::min(next, call.until);
  }
  for (const Guest& guest : guests_) next = std::min(next, guest.until);
  return next;
}

hvd_rc Builder::too_late(hvd_error* err) const {
  for (uint32_t peer = 0; peer < size_; ++peer) {
    for (uint32_t lane = 0; peer != me_ && lane < lanes_; ++lane) {
      if (mesh_->sockets[peer * lanes_ + lane]) continue;
      if (peer < me_) {
        return fail(err, HVD_E_TIMEOUT, 0,
                    "rank %d could not connect to rank %d in time (%s); option iface chooses other "
                    "addresses",
                    world(me_), world(peer), trouble_[peer].empty() ? "no attempt ended" : trouble_[peer].c_str());
      }
      std::string at;
      for (const Endpoint& e : listener_.endpoints()) at += (at.empty() ? "" : ", ") + to_text(e);
      return fail(err, HVD_E_TIMEOUT, 0,
                  "rank %d did not connect to rank %d in time, which listened at %s; option iface "
                  "chooses other addresses",
                  world(peer), world(me_), at.c_str());
    }
  }
  return fail(err, HVD_E_TIMEOUT, 0, "the deadline passed");
}

hvd_rc Builder::run(int64_t deadline_ns, hvd_error* err) {
  plan_calls();
  std::vector<pollfd> polled;
  std::vector<std::list<Guest>::iterator> polled_guests;
  std::vector<Call*> polled_calls;
  while (missing_ > 0) {
    const int64_t now = now_ns();
    if (now >= deadline_ns) return too_late(err);
    expire(now);
    polled.clear();
    polled_guests.clear();
    polled_calls.clear();
    for (const Descriptor& fd : listener_.sockets()) polled.push_back({fd.get(), POLLIN, 0});
    for (auto guest = guests_.begin(); guest != guests_.end(); ++guest) {
      polled.push_back({guest->handshake.fd(), POLLIN, 0});
      polled_guests.push_back(guest);
    }
    for (Call& call : calls_) {
      if (call.state == Call::State::kConnecting) polled.push_back({call.fd.get(), POLLOUT, 0});
      if (call.state == Call::State::kProving) polled.push_back({call.handshake->fd(), POLLIN, 0});
      if (call.state == Call::State::kConnecting || call.state == Call::State::kProving) polled_calls.push_back(&call);
    }
    const int64_t left = std::max<int64_t>(0, next_event(deadline_ns) - now);
    const int timeout = static_cast<int>(std::min<int64_t>(left / kMs + 1, 1000));
    if (missing_ == 0 || poll(polled.data(), polled.size(), timeout) <= 0) continue;
    size_t at = listener_.sockets().size();
    // Guests before listeners: whoever is accepted now has not been asked about.
    for (const auto& guest : polled_guests) {
      if (polled[at++].revents != 0) hear(guest);
    }
    for (Call* call : polled_calls) {
      if (polled[at++].revents == 0) continue;
      call->state == Call::State::kConnecting ? connected(*call) : prove(*call);
    }
    for (size_t i = 0; i < listener_.sockets().size(); ++i) {
      if (polled[i].revents == 0) continue;
      if (const hvd_rc rc = accept_from(polled[i].fd, err); rc != HVD_OK) return rc;
    }
  }
  for (uint32_t r = 0; r < size_; ++r) {
    const std::string where = mesh_->names[r];
    mesh_->names[r] = "rank " + std::to_string(world(r)) + (where.empty() ? "" : " (" + where + ")");
  }
  return HVD_OK;
}

}  // namespace

hvd_rc build_mesh(const hvd_comm_args& args, int64_t deadline_ns, Mesh* mesh, hvd_error* err) {
  mesh->local = local_settings();
  Listener listener;
  Card card = {};
  hvd_error problem = {};
  problem.hdr.struct_size = sizeof problem;
  const hvd_rc opened = listener.open(mesh->local, SOMAXCONN, &problem);
  if (opened == HVD_OK) {
    card.count = static_cast<uint32_t>(listener.endpoints().size());
    std::copy(listener.endpoints().begin(), listener.endpoints().end(), card.endpoints);
  } else {
    card.reason[std::string_view(problem.text).copy(card.reason, sizeof card.reason - 1)] = '\0';
  }
  Directory directory;
  hvd_rc rc = meet(args, card, deadline_ns, &directory, err);
  if (opened != HVD_OK) return fail(err, opened, 0, "%s", problem.text);
  if (rc != HVD_OK) return rc;
  Builder builder(args, directory, listener, mesh);
  rc = builder.run(deadline_ns, err);
  if (args.rank == 0) forget(args);
  return rc;
}

}  // namespace hvd::tcp
