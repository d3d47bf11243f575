// Reading and writing messages; see link.h.
#include "link.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace hvd::tcp {
namespace {

constexpr uint32_t kAhead = 8192;  // a small message comes with one system call
constexpr int kVectors = 64;

}  // namespace

Link::Link(Descriptor fd, uint32_t peer, uint32_t socket_index)
    : peer(peer), socket_index(socket_index), fd_(std::move(fd)), ahead_(new char[kAhead]) {}

Link::Io Link::outcome(ssize_t n) {
  if (n == 0) return Io::kClosed;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kBlocked;
  error_ = errno;
  return Io::kBroken;
}

void Link::begin(const Header& header, const Message& message) {
  outgoing_ = header;
  message_ = message;
  sent_ = 0;
  sending_ = true;
}

Link::Io Link::send() {
  const uint64_t total = sizeof outgoing_ + outgoing_.bytes;
  while (sent_ < total) {
    iovec v[kVectors];
    int n = 0;
    if (sent_ < sizeof outgoing_) v[n++] = {reinterpret_cast<char*>(&outgoing_) + sent_, sizeof outgoing_ - sent_};
    uint64_t covered;
    const uint64_t done = sent_ > sizeof outgoing_ ? sent_ - sizeof outgoing_ : 0;
    n += message_.payload.fill(done, v + n, kVectors - n, &covered);
    msghdr m = {};
    m.msg_iov = v;
    m.msg_iovlen = static_cast<size_t>(n);
    const ssize_t wrote = sendmsg(fd_.get(), &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const Io io = outcome(wrote);
      if (io == Io::kBlocked) writable = false;
      return io;
    }
    sent_ += static_cast<uint64_t>(wrote);
  }
  sending_ = false;
  return Io::kDone;
}

void Link::notify_failure(int32_t code, const std::string& text) {
  if (sending_ && sent_ > 0) return;
  Header header = {};
  header.magic = kWireMagic;
  header.kind = kFailureNotice;
  header.slice = static_cast<uint32_t>(code);
  header.bytes = std::min<uint64_t>(text.size(), kFailureNoticeBytes);
  char bytes[sizeof header + kFailureNoticeBytes];
  std::memcpy(bytes, &header, sizeof header);
  std::memcpy(bytes + sizeof header, text.data(), header.bytes);
  // Partly or not at all sent: then the peer sees the end of the stream, and knows less.
  [[maybe_unused]] const ssize_t n =
      ::send(fd_.get(), bytes, sizeof header + header.bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Link::Io Link::read_header() {
  if (has_header_) return Io::kDone;
  while (end_ - begin_ < sizeof incoming_) {
    if (!readable) return Io::kBlocked;
    std::memmove(ahead_.get(), ahead_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const uint32_t capacity = kAhead - end_;
    const ssize_t n = recv(fd_.get(), ahead_.get() + end_, capacity, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const Io io = outcome(n);
      if (io == Io::kBlocked) readable = false;
      return io;
    }
    if (static_cast<uint32_t>(n) < capacity) readable = false;  // there was no more
    end_ += static_cast<uint32_t>(n);
  }
  std::memcpy(&incoming_, ahead_.get() + begin_, sizeof incoming_);
  begin_ += static_cast<uint32_t>(sizeof incoming_);
  has_header_ = true;
  placed_ = false;
  return Io::kDone;
}

void Link::place(const Payload& payload) {
  target_ = payload;
  received_ = 0;
  placed_ = true;
}

Link::Io Link::read_payload() {
  const uint64_t bytes = incoming_.bytes;
  while (received_ < bytes) {
    if (end_ > begin_) {
      const uint64_t n = std::min<uint64_t>(end_ - begin_, bytes - received_);
      target_.extent->scatter(target_.at + received_, n, ahead_.get() + begin_);
      begin_ += static_cast<uint32_t>(n);
      received_ += n;
      continue;
    }
    if (!readable) return Io::kBlocked;
    begin_ = end_ = 0;
    iovec v[kVectors];
    uint64_t covered;
    int n = target_.fill(received_, v, kVectors - 1, &covered);
    uint64_t asked = covered;
    // With the last bytes of this message comes the beginning of the next.
    if (covered == bytes - received_) {
      v[n++] = {ahead_.get(), kAhead};
      asked += kAhead;
    }
    msghdr m = {};
    m.msg_iov = v;
    m.msg_iovlen = static_cast<size_t>(n);
    const ssize_t got = recvmsg(fd_.get(), &m, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const Io io = outcome(got);
      if (io == Io::kBlocked) readable = false;
      return io;
    }
    const uint64_t taken = static_cast<uint64_t>(got);
    if (taken < asked) readable = false;
    if (taken > covered) end_ = static_cast<uint32_t>(taken - covered);
    received_ += std::min(taken, covered);
  }
  has_header_ = placed_ = false;
  return Io::kDone;
}

void Link::shut_down() { shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace hvd::tcp
