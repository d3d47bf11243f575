// The meeting point's thread, and a rank's way through it. Strangers that connect are dropped: all must know the token.
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
constexpr auto kStranger = std::chrono::seconds(5);  // how long a connection may take to say who it is

struct Id {
  char magic[8];
  Token token;
  Address address;
};
static_assert(sizeof(Id) <= ECCL_UNIQUE_ID_BYTES, "the id must hold the address of the meeting point");

// What a rank says to the meeting point and, without an address, to a peer.
struct Hello {
  Token token;
  int32_t rank, size;
  Address address;
};

// What the meeting point answers; the addresses of all ranks follow when all is well.
struct Answer {
  int32_t result;  // ecclResult_t
  char text[124];
};

Failure remote(const std::string& text) { return {ecclRemoteError, text}; }

class Meeting {
 public:
  Meeting() : token_(random_token()) {}

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

  // On its own thread: until all are there, somebody says something impossible, or the last is too late.
  void run() {
    while (!complete()) {
      if (!wait()) return dismiss({ecclRemoteError, "ranks are missing after the time limit"});
      admit();
      for (Guest& guest : guests_) {
        if (!listen_to(guest)) return;
      }
      guests_.erase(std::remove_if(guests_.begin(), guests_.end(), [](const Guest& g) { return !g.socket; }),
                    guests_.end());
    }
    answer_all();
  }

 private:
  struct Guest {
    Socket socket;
    Hello hello{};
    size_t got = 0;
    Clock::time_point since = Clock::now();
    bool known() const { return got == sizeof(Hello); }
  };

  bool complete() const {
    return size_ > 0 &&
           std::count_if(guests_.begin(), guests_.end(), [](const Guest& g) { return g.known(); }) == size_;
  }

  // Something to read; false when time is over. Before the first rank has come there is no limit: the id may be kept.
  bool wait() {
    std::vector<pollfd> all{{listener_.unix_fd(), POLLIN, 0}, {listener_.tcp_fd(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      if (!guest.known()) all.push_back({guest.socket.fd(), POLLIN, 0});
    }
    const auto deadline = first_ + settings().quiet;
    const bool limited = size_ > 0 || all.size() > 2;
    poll(all.data(), all.size(), !limited ? -1 : std::min(milliseconds_until(deadline), 1000));
    return size_ == 0 || Clock::now() < deadline;
  }

  void admit() {
    for (Socket s = listener_.accept(); s; s = listener_.accept()) {
      guests_.emplace_back();
      guests_.back().socket = std::move(s);
    }
  }

  // False when the meeting has failed.
  bool listen_to(Guest& guest) {
    if (guest.known()) return true;
    const auto before = Clock::now();
    // Whatever is there now; a deadline in the past makes it not wait.
    while (!guest.known()) {
      char* at = reinterpret_cast<char*>(&guest.hello) + guest.got;
      if (!receive_all(guest.socket.fd(), at, 1, before)) break;
      ++guest.got;
    }
    if (!guest.known()) {
      if (before - guest.since > kStranger) guest.socket = Socket();
      return true;
    }
    const Hello& h = guest.hello;
    if (h.token != token_) {  // not one of ours
      guest.socket = Socket();
      guest.got = 0;
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
    const auto same = [&](const Guest& g) { return g.known() && g.socket && g.hello.rank == h.rank; };
    if (std::count_if(guests_.begin(), guests_.end(), same) > 1) {
      dismiss({ecclInvalidArgument, "rank " + std::to_string(h.rank) + " came twice"});
      return false;
    }
    return true;
  }

  void dismiss(const Failure& why) {
    Answer answer{};
    answer.result = why.code;
    why.text.copy(answer.text, sizeof answer.text - 1);
    for (const Guest& guest : guests_) {
      if (guest.known() && guest.socket) send_all(guest.socket.fd(), &answer, sizeof answer, Clock::now() + kStranger);
    }
  }

  void answer_all() {
    std::vector<Address> addresses(static_cast<size_t>(size_));
    for (const Guest& guest : guests_) {
      if (guest.known()) addresses[static_cast<size_t>(guest.hello.rank)] = guest.hello.address;
    }
    const Answer fine{};
    for (const Guest& guest : guests_) {
      if (!guest.known()) continue;
      const auto deadline = Clock::now() + kStranger;
      send_all(guest.socket.fd(), &fine, sizeof fine, deadline);
      send_all(guest.socket.fd(), addresses.data(), addresses.size() * sizeof(Address), deadline);
    }
  }

  Listener listener_;
  const Token token_;
  std::vector<Guest> guests_;
  int size_ = 0;
  Clock::time_point first_{};
};

// Connects to one peer and hears that it is the one.
Socket call(const Address& address, const Hello& mine, int peer, Clock::time_point deadline) {
  Socket s = connect_to(address, deadline);
  Token echo{};
  if (!s || !send_all(s.fd(), &mine, sizeof mine, deadline) ||
      !receive_all(s.fd(), echo.data(), echo.size(), deadline) || echo != mine.token) {
    throw remote("cannot reach rank " + std::to_string(peer));
  }
  return s;
}

// Takes the calls of all higher ranks.
void answer_calls(Listener& listener, const Hello& mine, std::vector<Socket>& peers, Clock::time_point deadline) {
  auto missing = static_cast<int>(peers.size()) - 1 - mine.rank;
  while (missing > 0) {
    Socket s = listener.accept();
    if (!s) {
      pollfd both[] = {{listener.unix_fd(), POLLIN, 0}, {listener.tcp_fd(), POLLIN, 0}};
      poll(both, 2, milliseconds_until(deadline));
      if (Clock::now() >= deadline) throw remote(std::to_string(missing) + " ranks have not called");
      continue;
    }
    Hello theirs;
    if (!receive_all(s.fd(), &theirs, sizeof theirs, std::min(deadline, Clock::now() + kStranger))) continue;
    if (theirs.token != mine.token || theirs.rank <= mine.rank || theirs.rank >= mine.size) continue;
    Socket& place = peers[static_cast<size_t>(theirs.rank)];
    if (place || !send_all(s.fd(), mine.token.data(), mine.token.size(), deadline)) continue;
    place = std::move(s);
    --missing;
  }
}

}  // namespace

void open_meeting(ecclUniqueId* id) {
  auto meeting = std::make_shared<Meeting>();
  if (!meeting->open(id)) throw Failure{ecclSystemError, "cannot open a socket to meet at"};
  std::thread([meeting] { meeting->run(); }).detach();
}

std::vector<Socket> meet(const ecclUniqueId& unique, int size, int rank, Clock::time_point deadline) {
  Id id;
  memcpy(&id, &unique, sizeof id);
  if (memcmp(id.magic, kMagic, sizeof kMagic) != 0) throw Failure{ecclInvalidArgument, "not an id of ecclGetUniqueId"};
  Listener listener;
  if (!listener.open(size)) throw Failure{ecclSystemError, "cannot open a socket to listen at"};
  Socket point = connect_to(id.address, deadline);
  if (!point) throw remote("nobody is at the meeting point: the process that made the id has ended, or it was used");
  const Hello hello{id.token, rank, size, listener.address()};
  Answer answer{};
  std::vector<Address> addresses(static_cast<size_t>(size));
  if (!send_all(point.fd(), &hello, sizeof hello, deadline) ||
      !receive_all(point.fd(), &answer, sizeof answer, deadline)) {
    throw remote("the meeting point went away, or ranks are missing after the time limit");
  }
  if (answer.result != ecclSuccess) throw Failure{static_cast<ecclResult_t>(answer.result), answer.text};
  if (!receive_all(point.fd(), addresses.data(), addresses.size() * sizeof(Address), deadline)) {
    throw remote("the meeting point went away");
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
