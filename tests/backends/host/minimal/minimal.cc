// A backend with the least collectives, for tests of compositions: allreduce SUM, broadcast and allgather of float32 on
// host memory, one buffer at a time. Ranks are processes (or threads) connected over TCP on the loopback interface;
// rank 0 receives the data of all ranks and sends back the results.
//
// Options: max_count (most elements of one call; enforced), alignment (of addresses, in bytes; enforced).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "hvd/backend.hpp"

namespace {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{1000000000} * t.tv_sec + t.tv_nsec;
}

uint64_t number_option(const char* key, uint64_t fallback) {
  const std::string text = hvd::option(key, "");
  return text.empty() ? fallback : std::strtoull(text.c_str(), nullptr, 10);
}

// A connection with at most one message in flight in each direction.
struct Link {
  int fd = -1;
  std::vector<char> out, in;
  size_t sent = 0, received = 0;

  bool busy() const { return sent < out.size() || received < in.size(); }
};

// Precedes each rank's data, so that a disagreement of ranks is detected.
struct Head {
  uint64_t turn, coll, root, elements;
  bool operator==(const Head& o) const {
    return turn == o.turn && coll == o.coll && root == o.root && elements == o.elements;
  }
};

struct Minimal;

// The one collective in flight. Rank 0: receive all, compute, send all. Others: send, receive.
class Turn : public hvd::Request {
 public:
  Turn(Minimal* comm, const hvd::Coll& c);
  bool test() override;
  bool wait(int64_t deadline_ns) override;

 private:
  void compute();
  void finish();

  Minimal* comm_;
  Head head_{};
  int64_t deadline_ns_;
  std::vector<char> mine_, result_;
  std::vector<uint64_t> counts_;  // elements from each rank
  char* target_ = nullptr;
  float post_ = 1;
  bool answered_ = false, done_ = false;
};

struct Minimal : hvd::Comm<Minimal> {
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_ONE_HOST | HVD_CAP_PROCESS_LOCAL;
  static constexpr uint64_t dtypes = uint64_t{1} << HVD_FLOAT32;
  static constexpr uint64_t reductions = uint64_t{1} << HVD_SUM;
  static constexpr const char* version = "0.1";
  static constexpr hvd_option options[] = {
      hvd::make_option("max_count", "int", "0", "0..", "most elements of one call; 0: any number"),
      hvd::make_option("alignment", "int", "4", "1..4096", "bytes to whose multiples buffers must be aligned"),
  };

  static hvd_coll_caps query(const hvd::Coll&) {
    hvd_coll_caps caps{};
    caps.support = HVD_NATIVE;
    caps.score = 1;
    caps.alignment = static_cast<uint32_t>(number_option("alignment", 4));
    caps.max_count = number_option("max_count", 0);
    return caps;
  }

  explicit Minimal(const hvd::CommInit& init)
      : Comm(init), max_count(number_option("max_count", 0)), alignment(number_option("alignment", 4)) {
    links.resize(rank() == 0 ? static_cast<size_t>(size()) : 1);
    if (size() == 1) return;
    if (rank() == 0)
      listen_for_all(init);
    else
      connect_to_root(init);
  }

  ~Minimal() {
    for (Link& link : links)
      if (link.fd >= 0) close(link.fd);
  }

  hvd::Work allreduce(const hvd::Coll& c) { return start(c); }
  hvd::Work broadcast(const hvd::Coll& c) { return start(c); }
  hvd::Work allgather(const hvd::Coll& c) { return start(c); }

  void abort() {
    aborted = true;
    for (const Link& link : links)
      if (link.fd >= 0) shutdown(link.fd, SHUT_RDWR);  // wakes waiting threads on both sides
  }

  // Sends and receives as much as possible; returns true if nothing is left.
  bool move() {
    bool idle = true;
    for (Link& link : links) {
      while (link.sent < link.out.size()) {
        const ssize_t n = send(link.fd, link.out.data() + link.sent, link.out.size() - link.sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (n < 0) lost();
        link.sent += static_cast<size_t>(n);
      }
      while (link.received < link.in.size()) {
        const ssize_t n = recv(link.fd, link.in.data() + link.received, link.in.size() - link.received, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (n <= 0) lost();
        link.received += static_cast<size_t>(n);
      }
      idle = idle && !link.busy();
    }
    return idle;
  }

  [[noreturn]] void lost() const {
    if (aborted) throw hvd::Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
    throw hvd::Error(HVD_E_REMOTE, "a peer has closed the connection", HVD_EF_COMM_DEAD);
  }

  // Sleeps until a link is ready, or until the deadline.
  void sleep(int64_t deadline_ns) {
    std::vector<pollfd> list;
    for (const Link& link : links) {
      short events = 0;
      if (link.sent < link.out.size()) events |= POLLOUT;
      if (link.received < link.in.size()) events |= POLLIN;
      if (events) list.push_back({link.fd, events, 0});
    }
    const int64_t left = deadline_ns == HVD_NO_DEADLINE ? 1000000000 : deadline_ns - now_ns();
    if (left > 0) poll(list.data(), list.size(), static_cast<int>(std::min<int64_t>(left / 1000000 + 1, 1000)));
  }

  std::vector<Link> links;  // on rank 0 one per rank, its own unused; elsewhere the one to rank 0
  uint64_t max_count, alignment, turn = 0;
  std::atomic<bool> aborted{false};

 private:
  void check(const void* p, uint64_t elements) const {
    if (max_count && elements > max_count)
      throw hvd::Error(HVD_E_INVALID, "more elements than max_count, which query tells");
    if (elements && reinterpret_cast<uintptr_t>(p) % alignment)
      throw hvd::Error(HVD_E_INVALID, "a buffer is not aligned as query asks");
  }

  hvd::Work start(const hvd::Coll& c) {
    uint64_t out = c.count(0);
    if (c.kind() == HVD_ALLGATHER) {
      out = 0;
      for (int32_t r = 0; r < size(); ++r) out += c.out_count(0, r, size(), c.count(0));
    }
    if (c.kind() != HVD_BROADCAST || c.args().root == rank()) check(c.in(0), c.count(0));
    if (c.args().out[0].base) check(c.out(0), out);
    auto request = std::make_unique<Turn>(this, c);
    if (request->test()) return hvd::Work::done();
    return hvd::Work(std::move(request));
  }

  void listen_for_all(const hvd::CommInit& init) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener, size()) != 0 || getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw hvd::Error(HVD_E_UNAVAILABLE, std::string("no listener on the loopback interface: ") + strerror(errno));
    }
    init.store.set("port", std::to_string(ntohs(address.sin_port)));
    for (int32_t arrived = 1; arrived < size();) {
      pollfd wanted{listener, POLLIN, 0};
      const int64_t left = init.deadline_ns - now_ns();
      if (left <= 0 || poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left / 1000000 + 1, 1000))) < 0) {
        close(listener);
        throw hvd::Error(HVD_E_TIMEOUT, "not every rank arrived in time");
      }
      if (!(wanted.revents & POLLIN)) continue;
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int32_t who = -1;
      if (fd < 0 || recv(fd, &who, sizeof(who), MSG_WAITALL) != sizeof(who) || who < 1 || who >= size()) {
        if (fd >= 0) close(fd);
        continue;
      }
      prepare(links[static_cast<size_t>(who)], fd);
      ++arrived;
    }
    close(listener);
    init.store.del("port");
  }

  void connect_to_root(const hvd::CommInit& init) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(init.store.get("port", init.deadline_ns).c_str())));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int32_t me = rank();
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        send(fd, &me, sizeof(me), MSG_NOSIGNAL) != sizeof(me)) {
      throw hvd::Error(HVD_E_REMOTE, std::string("rank 0 cannot be reached: ") + strerror(errno));
    }
    prepare(links[0], fd);
  }

  static void prepare(Link& link, int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    link.fd = fd;
  }
};

Turn::Turn(Minimal* comm, const hvd::Coll& c) : comm_(comm), deadline_ns_(c.args().deadline_ns) {
  const auto ranks = static_cast<size_t>(comm->size());
  const auto root = static_cast<size_t>(c.args().root);
  head_ = {++comm->turn, static_cast<uint64_t>(c.kind()), c.kind() == HVD_BROADCAST ? root : 0, 0};
  counts_.assign(ranks, c.count(0));
  if (c.kind() == HVD_BROADCAST)
    for (size_t r = 0; r < ranks; ++r) counts_[r] = r == root ? c.count(0) : 0;
  if (c.kind() == HVD_ALLGATHER)
    for (size_t r = 0; r < ranks; ++r) counts_[r] = c.out_count(0, static_cast<int32_t>(r), comm->size(), c.count(0));
  uint64_t total = 0;
  for (uint64_t n : counts_) total += n;
  head_.elements = c.kind() == HVD_ALLREDUCE ? c.count(0) : total;
  result_.resize(head_.elements * 4);
  target_ = c.args().out[0].base ? static_cast<char*>(c.out(0)) : nullptr;
  // In place, this rank's input of an allgather lies at its place in the output.
  uint64_t skip = 0;
  if (c.kind() == HVD_ALLGATHER && c.in(0) == c.out(0))
    for (int32_t r = 0; r < comm->rank(); ++r) skip += counts_[static_cast<size_t>(r)];
  const uint64_t own = counts_[static_cast<size_t>(comm->rank())];
  mine_.resize(sizeof(Head) + own * 4);
  std::memcpy(mine_.data(), &head_, sizeof(head_));
  if (own) std::memcpy(mine_.data() + sizeof(Head), static_cast<const char*>(c.in(0)) + skip * 4, own * 4);
  if (c.kind() == HVD_ALLREDUCE && c.prescale() != 1) {
    auto* p = reinterpret_cast<float*>(mine_.data() + sizeof(Head));
    for (uint64_t i = 0; i < own; ++i) p[i] *= static_cast<float>(c.prescale());
  }
  post_ = static_cast<float>(c.postscale());
  if (comm->rank() != 0) {
    Link& link = comm->links[0];
    link.out = std::move(mine_);
    link.in.resize(result_.size());
    link.sent = link.received = 0;
  } else {
    for (size_t r = 1; r < ranks; ++r) {
      Link& link = comm->links[r];
      link.out.clear();
      link.in.resize(sizeof(Head) + counts_[r] * 4);
      link.sent = link.received = 0;
    }
  }
}

void Turn::compute() {
  const auto part = [&](size_t r) {
    const std::vector<char>& from = r == 0 ? mine_ : comm_->links[r].in;
    Head theirs;
    std::memcpy(&theirs, from.data(), sizeof(theirs));
    if (!(theirs == head_)) throw hvd::Error(HVD_E_INVALID, "the ranks ask for different collectives");
    return from.data() + sizeof(Head);
  };
  uint64_t at = 0;
  for (size_t r = 0; r < counts_.size(); ++r) {
    const char* from = part(r);
    if (head_.coll != HVD_ALLREDUCE) {
      if (counts_[r]) std::memcpy(result_.data() + at, from, counts_[r] * 4);
      at += counts_[r] * 4;
      continue;
    }
    for (uint64_t i = 0; i < head_.elements; ++i) {
      float sum = 0, x;
      if (r > 0) std::memcpy(&sum, result_.data() + i * 4, 4);
      std::memcpy(&x, from + i * 4, 4);
      sum = r == 0 ? x : sum + x;
      if (r + 1 == counts_.size()) sum *= post_;
      std::memcpy(result_.data() + i * 4, &sum, 4);
    }
  }
}

void Turn::finish() {
  if (comm_->rank() != 0) result_ = std::move(comm_->links[0].in);
  if (target_ && !result_.empty()) std::memcpy(target_, result_.data(), result_.size());
  for (Link& link : comm_->links) {
    link.in.clear();
    link.out.clear();
    link.sent = link.received = 0;
  }
  done_ = true;
}

bool Turn::test() {
  if (done_) return true;
  if (comm_->aborted) comm_->lost();
  while (comm_->move()) {
    if (comm_->rank() != 0 || answered_) {
      finish();
      return true;
    }
    compute();
    for (size_t r = 1; r < counts_.size(); ++r) comm_->links[r].out = result_;
    answered_ = true;
  }
  if (deadline_ns_ > 0 && deadline_ns_ != HVD_NO_DEADLINE && now_ns() >= deadline_ns_)
    throw hvd::Error(HVD_E_TIMEOUT, "not every rank took part in time", HVD_EF_COMM_DEAD);
  return false;
}

bool Turn::wait(int64_t deadline_ns) {
  while (!test()) {
    if (deadline_ns != HVD_NO_DEADLINE && now_ns() >= deadline_ns) return false;
    comm_->sleep(deadline_ns_ > 0 ? std::min(deadline_ns, deadline_ns_) : deadline_ns);
  }
  return true;
}

}  // namespace

HVD_BACKEND(minimal, hvd::NoDevice, Minimal)
