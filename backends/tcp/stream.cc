// See stream.h.
#include "stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace hvd::tcp {
namespace {

constexpr const char *kFromCaller = "from the caller", *kFromHost = "from the host";

uint64_t bytes_of(const iovec* spans, int n) {
  uint64_t bytes = 0;
  for (int i = 0; i < n; ++i) bytes += spans[i].iov_len;
  return bytes;
}

ssize_t send_bytes(int fd, const iovec* spans, int n) {
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(spans);
  m.msg_iovlen = static_cast<size_t>(n);
  for (;;) {
    const ssize_t wrote = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote >= 0 || errno != EINTR) return wrote;
  }
}

ssize_t receive_bytes(int fd, const iovec* spans, int n) {
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(spans);
  m.msg_iovlen = static_cast<size_t>(n);
  for (;;) {
    const ssize_t got = recvmsg(fd, &m, MSG_DONTWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

void Stream::encrypt(const CryptoLibrary& library, const Digest& key, bool caller) {
  const std::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size());
  const char *const out = caller ? kFromCaller : kFromHost, *const in = caller ? kFromHost : kFromCaller;
  sealed_.reset(new Sealed{RecordCipher(library, bytes, out, true), RecordCipher(library, bytes, in, false),
                           std::unique_ptr<char[]>(new char[kOut]), std::unique_ptr<char[]>(new char[kIn])});
}

ssize_t Stream::write(const iovec* spans, int n) {
  if (!sealed_) return send_bytes(fd_.get(), spans, n);
  if (!flush()) return -1;
  const auto length = static_cast<uint32_t>(std::min<uint64_t>(bytes_of(spans, n), kMostText));
  if (length == 0) return 0;
  if (!put_record(spans, n, length)) {
    errno = EIO;
    return -1;
  }
  if (!flush() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  return length;
}

bool Stream::put_record(const iovec* spans, int n, uint32_t length) {
  Sealed& s = *sealed_;
  char* const record = s.out_bytes.get();
  std::memcpy(record, &length, kHead);
  if (!s.out.begin(record, kHead)) return false;
  uint32_t at = 0;
  for (int i = 0; i < n && at < length; ++i) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(spans[i].iov_len, length - at));
    if (!s.out.update(spans[i].iov_base, record + kHead + at, part)) return false;
    at += part;
  }
  if (!s.out.seal(record + kHead + length)) return false;
  s.out_at = 0;
  s.out_end = kHead + length + kTag;
  return true;
}

bool Stream::flush() {
  while (unsent()) {
    const iovec rest = {sealed_->out_bytes.get() + sealed_->out_at, sealed_->out_end - sealed_->out_at};
    const ssize_t wrote = send_bytes(fd_.get(), &rest, 1);
    if (wrote < 0) return false;
    sealed_->out_at += static_cast<uint32_t>(wrote);
  }
  return true;
}

ssize_t Stream::read(const iovec* spans, int n, bool* more) {
  if (!sealed_) {
    const ssize_t got = receive_bytes(fd_.get(), spans, n);
    *more = got >= 0 && static_cast<uint64_t>(got) == bytes_of(spans, n);
    return got;
  }
  Sealed& s = *sealed_;
  *more = false;
  bool drained = false;  // by this call: what came after an earlier one may have been announced already
  size_t taken = 0;
  int span = 0;
  size_t offset = 0;
  while (span < n) {
    if (s.text_at == s.text_end) {
      const int opened = s.ended ? 0 : open_record();
      if (opened < 0) return -1;
      if (s.ended || opened == 0) {
        if (taken > 0) break;  // an error or the end is for the next call
        if (s.ended) return 0;
        if (fill(&drained) < 0) return -1;
      }
      continue;
    }
    const size_t part = std::min<size_t>(spans[span].iov_len - offset, s.text_end - s.text_at);
    std::memcpy(static_cast<char*>(spans[span].iov_base) + offset, s.in_bytes.get() + s.text_at, part);
    s.text_at += static_cast<uint32_t>(part);
    taken += part;
    offset += part;
    if (offset == spans[span].iov_len) {
      ++span;
      offset = 0;
    }
  }
  *more = s.text_at < s.text_end || s.in_end - s.in_at >= kHead + kTag || s.ended || !drained;
  return static_cast<ssize_t>(taken);
}

int Stream::open_record() {
  Sealed& s = *sealed_;
  uint32_t length;
  if (s.in_end - s.in_at < kHead) return 0;
  char* const record = s.in_bytes.get() + s.in_at;
  std::memcpy(&length, record, kHead);
  if (length <= kMostText) {
    if (s.in_end - s.in_at < kHead + length + kTag) return 0;
    char* const text = record + kHead;
    if (s.in.begin(record, kHead) && s.in.update(text, text, length) && s.in.open(text + length)) {
      s.text_at = s.in_at + kHead;
      s.text_end = s.text_at + length;
      s.in_at = s.text_end + kTag;
      s.ended = length == 0;
      return 1;
    }
  }
  errno = EBADMSG;
  return -1;
}

// Reads from the system. All that was opened has been read. Returns a positive number, or -1 and errno. `drained`:
// whether the system has no more bytes.
ssize_t Stream::fill(bool* drained) {
  Sealed& s = *sealed_;
  if (s.in_at > 0) std::memmove(s.in_bytes.get(), s.in_bytes.get() + s.in_at, s.in_end - s.in_at);
  s.in_end -= s.in_at;
  s.in_at = s.text_at = s.text_end = 0;
  const iovec rest = {s.in_bytes.get() + s.in_end, kIn - s.in_end};
  const ssize_t got = receive_bytes(fd_.get(), &rest, 1);
  *drained = got < static_cast<ssize_t>(rest.iov_len);
  if (got == 0) errno = ECONNRESET;  // an end without the last record
  if (got <= 0) return -1;
  s.in_end += static_cast<uint32_t>(got);
  return got;
}

bool Stream::flush_until(std::chrono::steady_clock::time_point until) {
  while (!flush()) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd p = {fd_.get(), POLLOUT, 0};
    if (left <= 0 || (poll(&p, 1, static_cast<int>(left)) < 0 && errno != EINTR)) return false;
  }
  return true;
}

void Stream::end(std::chrono::steady_clock::time_point until) {
  if (sealed_ && flush_until(until) && put_record(nullptr, 0, 0)) flush_until(until);
}

void Stream::shut_down() { shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace hvd::tcp
