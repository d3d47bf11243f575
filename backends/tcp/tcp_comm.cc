// A communicator's life: create, abort, failures and how they are told. Progress of operations: progress.cc.
#include "tcp_comm.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <chrono>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>

#include "mesh.h"
#include "shared.h"

namespace hvd::tcp {
namespace {

constexpr int64_t kCreateSeconds = 120;
constexpr std::chrono::seconds kEndTime{1};  // for the last records of all connections

}  // namespace

TcpComm::TcpComm(const CommInit& init) : HostComm(init) {
  if (size_ > 1) open_links(init);
}

void TcpComm::open_links(const CommInit& init) {
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  bell_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {EPOLLIN, {.ptr = nullptr}};
  if (!epoll_ || !bell_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &event) != 0) {
    throw formatted_error(HVD_E_UNAVAILABLE, 0, "no descriptor to wait with: %s", strerror(errno));
  }
  Mesh mesh = build_mesh(init, blocking_deadline(init.deadline_ns, kCreateSeconds));
  names_ = std::move(mesh.names);
  names_[rank_] += " (this one)";
  sockets_per_peer_ = mesh.settings.sockets_per_peer;
  peer_timeout_s_ = mesh.local.peer_timeout_s;
  params_ = {rank_, size_, uint64_t{mesh.settings.chunk_kib} * 1024, uint64_t{mesh.settings.small_kib} * 1024,
             mesh.settings.ring_ranks};
  for (uint32_t i = 0; i < mesh.sockets.size(); ++i) {
    if (i / sockets_per_peer_ == rank_) continue;
    auto& link = links_.emplace_back(
        std::make_unique<Link>(std::move(mesh.sockets[i]), i / sockets_per_peer_, i % sockets_per_peer_));
    const uint32_t peer = link->peer;
    const bool known = !init.hosts.empty();
    if (mesh.local.encrypt && (!known || init.hosts[peer] != init.hosts[rank_]))
      link->encrypt(*CryptoLibrary::find(), mesh.keys[i], rank_ > peer);  // the higher rank has connected
    event = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = link.get()}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->fd(), &event) != 0) {
      throw formatted_error(HVD_E_UNAVAILABLE, 0, "cannot watch a connection: %s", strerror(errno));
    }
  }
}

// Waits for calls from other threads that are still inside. Sent data still arrives: the connections are closed in
// order and with nothing unread, which would make the system reset them, since every operation reads all data sent to
// this rank in it.
TcpComm::~TcpComm() {
  while (calls_inside_.load() != 0) std::this_thread::yield();
  // A neighbour that does not read its last bytes is told the end by the system alone, as an error.
  const auto until = std::chrono::steady_clock::now() + kEndTime;
  for (const auto& link : links_) {
    if (dead_.load() != HVD_OK) continue;
    link->end(until);
    // Even where a forked child still holds the descriptor.
    shutdown(link->fd(), SHUT_WR);
  }
}

void TcpComm::shut_down_links() {
  for (const auto& link : links_) link->shut_down();
}

void TcpComm::abort() {
  const CountedCall inside(calls_inside_);
  {
    const std::lock_guard<std::mutex> lock(death_mutex_);
    if (dead_.load() == HVD_OK) {
      dead_.store(HVD_E_ABORTED);  // whoever reads death_ takes the mutex
      death_ = "the communicator was aborted by this rank (" + std::to_string(rank_) + " of it)";
    }
  }
  shut_down_links();
  const uint64_t one = 1;
  if (bell_) [[maybe_unused]]
    const ssize_t n = write(bell_.get(), &one, sizeof one);
}

bool TcpComm::die(hvd_rc code, const char* format, ...) {
  char text[900];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  {
    const std::lock_guard<std::mutex> lock(death_mutex_);
    if (dead_.load() != HVD_OK) return false;  // abort was first
    death_ = text;
    dead_.store(code);
  }
  for (const auto& link : links_) link->notify_failure(code, text);
  shut_down_links();
  return false;
}

void TcpComm::async_error() const {
  const CountedCall inside(calls_inside_);
  check_failure();
}

void TcpComm::check_failure() const {
  const hvd_rc code = dead_.load();
  if (code == HVD_OK) return;
  const std::lock_guard<std::mutex> lock(death_mutex_);
  throw Error(code, death_, HVD_EF_COMM_DEAD);
}

// When one rank dies the others soon leave too, and the news of that may be read first: names all that have gone.
std::string TcpComm::others_gone(const Link& link) const {
  std::string gone;
  uint32_t last = link.peer;
  for (const auto& other : links_) {
    pollfd p = {other->fd(), POLLRDHUP, 0};
    if (other->peer == link.peer || other->peer == last || poll(&p, 1, 0) <= 0) continue;
    last = other->peer;
    gone += (gone.empty() ? "; so have " : ", ") + names_[last];
  }
  return gone;
}

// The connection is gone. What the peer said last may still be there to be read.
bool TcpComm::lost(Link& link, Link::Io io) {
  if (dead_.load() != HVD_OK) return false;  // we shut it down ourselves
  const int error = link.error();
  if (!link.has_header()) {
    link.readable = true;
    if (link.read_header() == Link::Io::kDone && link.header().magic == kWireMagic &&
        link.header().kind == kFailureNotice && link.header().bytes <= kFailureNoticeBytes) {
      return read_failure_notice(link);
    }
  }
  const char* const name = names_[link.peer].c_str();
  if (io == Link::Io::kClosed || error == ECONNRESET || error == EPIPE) {
    return die(HVD_E_REMOTE, "%s has ended or failed: it closed the connection in operation %" PRIu64 "%s", name, seq_,
               others_gone(link).c_str());
  }
  if (error == EBADMSG) {
    // Not REMOTE: no other rank knows of it, so the engine must report it at once.
    return die(HVD_E_INTERNAL,
               "bytes that came from %s in operation %" PRIu64
               " were changed on the way: the encryption of HOROVOD_TLS=1 has detected it",
               name, seq_);
  }
  if (error == ETIMEDOUT) {
    return die(HVD_E_REMOTE, "%s has not answered for %u s (option peer_timeout_s): its host is lost or unreachable",
               name, peer_timeout_s_);
  }
  return die(HVD_E_REMOTE, "the connection to %s failed in operation %" PRIu64 ": %s", name, seq_, strerror(error));
}

bool TcpComm::read_failure_notice(Link& link) {
  char text[kFailureNoticeBytes + 1] = "";
  Extent place;
  const uint64_t bytes = link.header().bytes;  // at most kFailureNoticeBytes, as the caller has seen
  const hvd_rc code = static_cast<hvd_rc>(link.header().slice);
  place.open(text, bytes);
  link.place({&place, 0, bytes});
  // It was sent in one span, and all of it is here, or it does not matter.
  link.read_payload();
  text[bytes] = '\0';
  const std::string said(text);
  return die(code == HVD_E_INVALID ? HVD_E_INVALID : HVD_E_REMOTE, "%s gave up: %s", names_[link.peer].c_str(),
             said.c_str());
}

bool TcpComm::disagreement(const Link& link) {
  const Header& h = link.header();
  char here[200], there[200];
  describe(collective_.words, here, sizeof here);
  describe(h.words, there, sizeof there);
  const bool alike = std::strcmp(here, there) == 0;
  return die(HVD_E_INVALID, "the ranks disagree in operation %" PRIu64 ": %s has %s; %s has %s%s", seq_,
             names_[rank_].c_str(), here, names_[link.peer].c_str(), there, alike ? ", with other counts" : "");
}

}  // namespace hvd::tcp
