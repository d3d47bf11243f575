// The rendezvous' thread, and a rank's way through it. Connections that do not show the token are closed.
#include "rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "runtime.h"

namespace sim {
namespace {

constexpr char kMagic[8] = {'e', 'c', 'c', 'l', 's', 'i', 'm', '1'};
constexpr auto kUnprovenTime = std::chrono::seconds(5);  // how long a connection may take to tell its rank

struct Id {
  char magic[8];
  Token token;
  Address address;
};
static_assert(sizeof(Id) <= ECCL_UNIQUE_ID_BYTES, "the id must hold the address of the rendezvous");

// The message of a rank to the rendezvous and, without an address, to a peer.
struct Hello {
  Token token;
  int32_t rank, size;
  Address address;
};

// The answer of the rendezvous; on success the addresses of all ranks follow.
struct Answer {
  int32_t result;  // ecclResult_t
  char text[124];
};

Failure remote(const std::string& text) { return {ecclRemoteError, text}; }

class Rendezvous {
 public:
  Rendezvous() : token_(random_token()) {}

  bool open(ecclUniqueId* out) {
    if (!listener_.open(4096)) return false;
    Id id{};
    memcpy(id.magic, kMagic, sizeof kMagic);
    id.token = token_;
    id.address = listener_.address();
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return true;
  }

  // On its own thread: until all ranks have come, a rank sends something impossible, or the last rank is late.
  void run() {
    while (!complete()) {
      if (!wait()) return dismiss({ecclRemoteError, "ranks are missing after the time limit"});
      admit();
      for (Incoming& incoming : incoming_) {
        if (!listen_to(incoming)) return;
      }
      incoming_.erase(std::remove_if(incoming_.begin(), incoming_.end(), [](const Incoming& g) { return !g.socket; }),
                      incoming_.end());
    }
    answer_all();
  }

 private:
  struct Incoming {
    Socket socket;
    Hello hello{};
    size_t got = 0;
    Clock::time_point since = Clock::now();
    bool known() const { return got == sizeof(Hello); }
  };

  bool complete() const {
    return size_ > 0 &&
           std::count_if(incoming_.begin(), incoming_.end(), [](const Incoming& g) { return g.known(); }) == size_;
  }

  // Something to read; false when time is over. Before the first rank has come there is no limit: the id may be kept.
  bool wait() {
    std::vector<pollfd> all{{listener_.unix_fd(), POLLIN, 0}, {listener_.tcp_fd(), POLLIN, 0}};
    for (const Incoming& incoming : incoming_) {
      if (!incoming.known()) all.push_back({incoming.socket.fd(), POLLIN, 0});
    }
    const auto deadline = first_ + settings().quiet;
    const bool limited = size_ > 0 || all.size() > 2;
    poll(all.data(), all.size(), !limited ? -1 : std::min(milliseconds_until(deadline), 1000));
    return size_ == 0 || Clock::now() < deadline;
  }

  void admit() {
    for (Socket s = listener_.accept(); s; s = listener_.accept()) {
      incoming_.emplace_back();
      incoming_.back().socket = std::move(s);
    }
  }

  // False when the rendezvous has failed.
  bool listen_to(Incoming& incoming) {
    if (incoming.known()) return true;
    const auto before = Clock::now();
    // Takes the bytes that have come; with a deadline in the past receive_all does not wait.
    while (!incoming.known()) {
      char* at = reinterpret_cast<char*>(&incoming.hello) + incoming.got;
      if (!receive_all(incoming.socket.fd(), at, 1, before)) break;
      ++incoming.got;
    }
    if (!incoming.known()) {
      if (before - incoming.since > kUnprovenTime) incoming.socket = Socket();
      return true;
    }
    const Hello& h = incoming.hello;
    if (h.token != token_) {  // not a rank of this communicator
      incoming.socket = Socket();
      incoming.got = 0;
      return true;
    }
    if (size_ == 0) {
      size_ = h.size;
      first_ = Clock::now();
    }
    if (h.size != size_) {
      dismiss({ecclInvalidArgument,
               "ranks name different numbers of ranks: " + std::to_string(size_) + " and " + std::to_string(h.size)});
      return false;
    }
    const auto same = [&](const Incoming& g) { return g.known() && g.socket && g.hello.rank == h.rank; };
    if (std::count_if(incoming_.begin(), incoming_.end(), same) > 1) {
      dismiss({ecclInvalidArgument, "rank " + std::to_string(h.rank) + " came twice"});
      return false;
    }
    return true;
  }

  void dismiss(const Failure& why) {
    Answer answer{};
    answer.result = why.code;
    why.text.copy(answer.text, sizeof answer.text - 1);
    for (const Incoming& incoming : incoming_) {
      if (incoming.known() && incoming.socket)
        send_all(incoming.socket.fd(), &answer, sizeof answer, Clock::now() + kUnprovenTime);
    }
  }

  void answer_all() {
    std::vector<Address> addresses(static_cast<size_t>(size_));
    for (const Incoming& incoming : incoming_) {
      if (incoming.known()) addresses[static_cast<size_t>(incoming.hello.rank)] = incoming.hello.address;
    }
    const Answer fine{};
    for (const Incoming& incoming : incoming_) {
      if (!incoming.known()) continue;
      const auto deadline = Clock::now() + kUnprovenTime;
      send_all(incoming.socket.fd(), &fine, sizeof fine, deadline);
      send_all(incoming.socket.fd(), addresses.data(), addresses.size() * sizeof(Address), deadline);
    }
  }

  Listener listener_;
  const Token token_;
  std::vector<Incoming> incoming_;
  int size_ = 0;
  Clock::time_point first_{};
};

// Connects to one peer, which confirms its rank.
Socket call(const Address& address, const Hello& mine, int peer, Clock::time_point deadline) {
  Socket s = connect_to(address, deadline);
  Token echo{};
  if (!s || !send_all(s.fd(), &mine, sizeof mine, deadline) ||
      !receive_all(s.fd(), echo.data(), echo.size(), deadline) || echo != mine.token) {
    throw remote("cannot reach rank " + std::to_string(peer));
  }
  return s;
}

// Accepts the connections of all higher ranks.
void answer_calls(Listener& listener, const Hello& mine, std::vector<Socket>& peers, Clock::time_point deadline) {
  auto missing = static_cast<int>(peers.size()) - 1 - mine.rank;
  while (missing > 0) {
    Socket s = listener.accept();
    if (!s) {
      pollfd both[] = {{listener.unix_fd(), POLLIN, 0}, {listener.tcp_fd(), POLLIN, 0}};
      poll(both, 2, milliseconds_until(deadline));
      if (Clock::now() >= deadline) throw remote(std::to_string(missing) + " ranks have not connected");
      continue;
    }
    Hello theirs;
    if (!receive_all(s.fd(), &theirs, sizeof theirs, std::min(deadline, Clock::now() + kUnprovenTime))) continue;
    if (theirs.token != mine.token || theirs.rank <= mine.rank || theirs.rank >= mine.size) continue;
    Socket& place = peers[static_cast<size_t>(theirs.rank)];
    if (place || !send_all(s.fd(), mine.token.data(), mine.token.size(), deadline)) continue;
    place = std::move(s);
    --missing;
  }
}

}  // namespace

void open_rendezvous(ecclUniqueId* id) {
  auto rendezvous = std::make_shared<Rendezvous>();
  if (!rendezvous->open(id)) throw Failure{ecclSystemError, "cannot open a socket for the rendezvous"};
  std::thread([rendezvous] { rendezvous->run(); }).detach();
}

std::vector<Socket> meet(const ecclUniqueId& unique, int size, int rank, Clock::time_point deadline) {
  Id id;
  memcpy(&id, &unique, sizeof id);
  if (memcmp(id.magic, kMagic, sizeof kMagic) != 0) throw Failure{ecclInvalidArgument, "not an id of ecclGetUniqueId"};
  Listener listener;
  if (!listener.open(size)) throw Failure{ecclSystemError, "cannot open a socket to listen at"};
  Socket point = connect_to(id.address, deadline);
  if (!point)
    throw remote("the rendezvous has no process: the process that made the id has ended, or the id was used before");
  const Hello hello{id.token, rank, size, listener.address()};
  Answer answer{};
  std::vector<Address> addresses(static_cast<size_t>(size));
  if (!send_all(point.fd(), &hello, sizeof hello, deadline) ||
      !receive_all(point.fd(), &answer, sizeof answer, deadline)) {
    throw remote("the rendezvous was closed, or ranks are missing after the time limit");
  }
  if (answer.result != ecclSuccess) throw Failure{static_cast<ecclResult_t>(answer.result), answer.text};
  if (!receive_all(point.fd(), addresses.data(), addresses.size() * sizeof(Address), deadline)) {
    throw remote("the rendezvous was closed");
  }
  return connect_ranks(listener, addresses, id.token, rank, deadline);
}

std::vector<Socket> connect_ranks(Listener& listener, const std::vector<Address>& addresses, const Token& token,
                                  int rank, Clock::time_point deadline) {
  const Hello hello{token, rank, static_cast<int32_t>(addresses.size()), listener.address()};
  std::vector<Socket> peers(addresses.size());
  for (int peer = 0; peer < rank; ++peer) {
    peers[static_cast<size_t>(peer)] = call(addresses[static_cast<size_t>(peer)], hello, peer, deadline);
  }
  answer_calls(listener, hello, peers, deadline);
  return peers;
}

}  // namespace sim
