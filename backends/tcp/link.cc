// Reading and writing messages; see link.h.
#include "link.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

namespace hvd::tcp {
namespace {

constexpr uint32_t kAhead = 8192;  // a small message comes with one system call
constexpr int kVectors = 64;

}  // namespace

Link::Link(Descriptor fd, uint32_t peer, uint32_t socket_index)
    : peer(peer), socket_index(socket_index), stream_(std::move(fd)), ahead_(new char[kAhead]) {}

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
  while (sent_ < total || stream_.unsent()) {
    if (sent_ == total) {
      if (stream_.flush()) break;
      const Io io = outcome(-1);
      if (io == Io::kBlocked) writable = false;
      return io;
    }
    iovec v[kVectors];
    int n = 0;
    if (sent_ < sizeof outgoing_) v[n++] = {reinterpret_cast<char*>(&outgoing_) + sent_, sizeof outgoing_ - sent_};
    uint64_t covered;
    const uint64_t done = sent_ > sizeof outgoing_ ? sent_ - sizeof outgoing_ : 0;
    n += message_.payload.fill(done, v + n, kVectors - n, &covered);
    const ssize_t wrote = stream_.write(v, n);
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
  const iovec whole = {bytes, sizeof header + header.bytes};
  [[maybe_unused]] const ssize_t n = stream_.write(&whole, 1);
}

Link::Io Link::read_header() {
  if (has_header_) return Io::kDone;
  while (end_ - begin_ < sizeof incoming_) {
    if (!readable) return Io::kBlocked;
    std::memmove(ahead_.get(), ahead_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const uint32_t capacity = kAhead - end_;
    const iovec rest = {ahead_.get() + end_, capacity};
    bool more;
    const ssize_t n = stream_.read(&rest, 1, &more);
    if (n <= 0) {
      const Io io = outcome(n);
      if (io == Io::kBlocked) readable = false;
      return io;
    }
    if (!more) readable = false;
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
    // With the last bytes of this message comes the beginning of the next.
    if (covered == bytes - received_) {
      v[n++] = {ahead_.get(), kAhead};
    }
    bool more;
    const ssize_t got = stream_.read(v, n, &more);
    if (got <= 0) {
      const Io io = outcome(got);
      if (io == Io::kBlocked) readable = false;
      return io;
    }
    const uint64_t taken = static_cast<uint64_t>(got);
    if (!more) readable = false;
    if (taken > covered) end_ = static_cast<uint32_t>(taken - covered);
    received_ += std::min(taken, covered);
  }
  has_header_ = placed_ = false;
  return Io::kDone;
}

}  // namespace hvd::tcp
