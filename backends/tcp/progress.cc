// The progress of a communicator's collective.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "shared.h"
#include "tcp_comm.h"

namespace hvd::tcp {
namespace {

constexpr int64_t kCheckNs = 1000000000;
constexpr int kRounds = 8;            // through the connections, in one test
constexpr uint32_t kDirectLooks = 2;  // so many connections are tried rather than asked about

}  // namespace

void TcpComm::begin(const hvd_coll_args& args) {
  ++seq_;
  deadline_ns_ = op_deadline(args.deadline_ns);
  next_check_ns_ = 0;
  ScheduleParams params = params_;
  schedule_ = &schedules_.choose(collective_, &params);
  schedule_->begin(params, collective_);
}

// Edges for all connections. The bell is level-triggered and stays rung: a dead communicator never sleeps again.
void TcpComm::read_events() {
  epoll_event events[64];
  const int n = epoll_wait(epoll_.get(), events, 64, 0);
  for (int i = 0; i < n; ++i) {
    Link* link = static_cast<Link*>(events[i].data.ptr);
    if (link == nullptr) continue;
    if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) link->readable = !link->ended;
    if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) link->writable = true;
  }
}

// Finds out what is new. Where few connections matter, trying them costs less than asking about them first.
void TcpComm::look() {
  Link* wanted[kDirectLooks];
  uint32_t n = 0;
  for (const auto& link : links_) {
    const bool in = !link->readable && !link->ended && schedule_->awaits(link->peer);
    const bool out = !link->writable && (link->sending() || schedule_->owes(link->peer));
    if (!in && !out) continue;
    if (n == kDirectLooks) return read_events();
    wanted[n++] = link.get();
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (schedule_->awaits(wanted[i]->peer)) wanted[i]->readable = !wanted[i]->ended;
    if (wanted[i]->sending() || schedule_->owes(wanted[i]->peer)) wanted[i]->writable = true;
  }
}

bool TcpComm::accept_header(Link& link) {
  const Header& h = link.header();
  if (h.magic != kWireMagic) {
    return die(HVD_E_REMOTE, "%s sent no message where one was due (it begins with %08x): the stream is out of step",
               names_[link.peer].c_str(), h.magic);
  }
  if (h.kind == kFailureNotice) {
    if (h.bytes <= kFailureNoticeBytes) return read_failure_notice(link);
    return die(HVD_E_REMOTE, "%s gave up, for a reason of %" PRIu64 " bytes: the stream is out of step",
               names_[link.peer].c_str(), h.bytes);
  }
  if (h.seq != seq_) {
    // With several connections a peer's next operation may overtake what this one still waits for.
    if (h.seq > seq_ && sockets_per_peer_ > 1) return false;
    return die(HVD_E_INVALID, "%s is in operation %" PRIu64 " while this rank waits for its data in operation %" PRIu64,
               names_[link.peer].c_str(), h.seq, seq_);
  }
  if (h.hash != collective_.hash) return disagreement(link);
  Payload where;
  const auto verdict = schedule_->takes(link.peer) ? schedule_->place(link.peer, h, &where) : Schedule::Verdict::kWrong;
  switch (verdict) {
    case Schedule::Verdict::kLater:
      return false;
    case Schedule::Verdict::kWrong:
      return die(HVD_E_INVALID,
                 "%s sent %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64 " (kind %u, part %u) in operation %" PRIu64
                 ", which this rank does not expect: the ranks disagree about sizes",
                 names_[link.peer].c_str(), h.bytes, h.at, h.total, h.kind, h.slice, seq_);
    case Schedule::Verdict::kTake:
      break;
  }
  link.place(where);
  schedule_->begun(link.peer);
  return true;
}

// A peer that is done closes all its connections. One of them may end before the data of the others has been read: are
// there others?
bool TcpComm::others_remain(Link& link) {
  if (sockets_per_peer_ == 1 || !link.between_messages()) return false;
  link.ended = true;
  link.readable = false;
  return std::any_of(links_.begin(), links_.end(),
                     [&](const auto& other) { return other->peer == link.peer && !other->ended; });
}

// At most one message.
bool TcpComm::move_in(Link& link) {
  Link::Io io = link.read_header();
  if (io == Link::Io::kDone && !link.placed() && !accept_header(link)) return false;
  if (io == Link::Io::kDone) io = link.read_payload();
  if (io == Link::Io::kBlocked || (io == Link::Io::kClosed && others_remain(link))) return false;
  if (io != Link::Io::kDone) return lost(link, io);
  schedule_->arrived(link.peer, link.header());
  return true;
}

bool TcpComm::move_out(Link& link) {
  if (!link.sending()) {
    Message message;
    if (!schedule_->next(link.peer, &message)) return false;
    Header header = {};
    header.magic = kWireMagic;
    header.kind = message.kind;
    header.slice = message.slice;
    header.seq = seq_;
    header.hash = collective_.hash;
    header.at = message.at;
    header.bytes = message.payload.bytes;
    header.total = message.total;
    std::memcpy(header.words, collective_.words, sizeof header.words);
    link.begin(header, message);
  }
  const Link::Io io = link.send();
  if (io == Link::Io::kBlocked) return false;
  if (io != Link::Io::kDone) return lost(link, io);
  schedule_->sent(link.peer, link.message());
  return true;
}

// One test's worth of progress. Sending and receiving alternate, so that both directions stay busy.
bool TcpComm::advance() {
  look();
  more_to_do_ = true;
  for (int round = 0; more_to_do_ && round < kRounds; ++round) {
    more_to_do_ = false;
    for (const auto& link : links_) {
      if (link->writable && (link->sending() || schedule_->owes(link->peer))) more_to_do_ |= move_out(*link);
      if (link->has_input() && schedule_->awaits(link->peer)) more_to_do_ |= move_in(*link);
    }
    if (dead_.load(std::memory_order_relaxed) != HVD_OK) check_failure();
    if (schedule_->done()) {
      schedule_->finish();
      return true;
    }
  }
  return false;
}

uint32_t TcpComm::awaited_rank() const {
  for (uint32_t r = 0; r < size_; ++r) {
    if (schedule_->awaits(r)) return r;
  }
  for (uint32_t r = 0; r < size_; ++r) {
    if (schedule_->owes(r)) return r;
  }
  return rank_;
}

// While our bytes are on the way, silence means acknowledgements that fail to come: the system repeats itself for a
// quarter of an hour. A peer that lives but does not read answers its probes, so it is not mistaken for a dead one.
void TcpComm::check_peers() {
  for (const auto& link : links_) {
    if (!schedule_->awaits(link->peer) && !link->sending() && !schedule_->owes(link->peer)) continue;
    tcp_info info = {};
    socklen_t n = sizeof info;
    if (getsockopt(link->fd(), IPPROTO_TCP, TCP_INFO, &info, &n) != 0) continue;
    const bool unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 1;
    if (!unanswered || info.tcpi_last_ack_recv < peer_timeout_s_ * 1000) continue;
    die(HVD_E_REMOTE, "%s has not answered for %u s (option peer_timeout_s): its host is lost or unreachable",
        names_[link->peer].c_str(), info.tcpi_last_ack_recv / 1000);
    return;
  }
}

// Throws if the communicator has failed by now.
void TcpComm::check_deadlines(int64_t now) {
  if (now >= deadline_ns_) {
    char what[200];
    describe(collective_.words, what, sizeof what);
    die(HVD_E_TIMEOUT, "the deadline passed: %s waited for %s in operation %" PRIu64 ", %s", names_[rank_].c_str(),
        names_[awaited_rank()].c_str(), seq_, what);
  } else if (now >= next_check_ns_) {
    if (next_check_ns_ != 0) check_peers();
    next_check_ns_ = now + kCheckNs;
  }
  if (dead_.load() != HVD_OK) check_failure();
}

bool TcpComm::test_collective() {
  if (advance()) return true;
  check_deadlines(now_ns());
  return false;
}

bool TcpComm::wait_for_collective(int64_t deadline_ns) {
  for (;;) {
    if (advance()) return true;
    const int64_t now = now_ns();
    check_deadlines(now);
    if (now >= deadline_ns) return false;
    if (more_to_do_) continue;
    const int64_t left = std::max<int64_t>(0, std::min({deadline_ns, deadline_ns_, next_check_ns_}) - now);
    // epoll_wait() knows milliseconds only. The host may want its thread back sooner, for another communicator.
    pollfd any{epoll_.get(), POLLIN, 0};
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    ppoll(&any, 1, &timeout, nullptr);
    read_events();
  }
}

}  // namespace hvd::tcp
