// One poll loop over all peers that moves all data that can move. Headers are compared as soon as they are complete.
#include "exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "arithmetic.h"
#include "operation.h"
#include "runtime.h"

namespace sim {
namespace {

// How far one direction of a leg has come.
class Progress {
 public:
  explicit Progress(const std::vector<Chunk>& chunks) : chunks_(chunks) { skip_empty(); }

  bool done() const { return next_ == chunks_.size(); }

  int pending(iovec* out, int most) const {
    int n = 0;
    for (size_t i = next_; i < chunks_.size() && n < most; ++i) {
      const size_t skip = i == next_ ? offset_ : 0;
      if (chunks_[i].bytes > skip) out[n++] = {chunks_[i].data + skip, chunks_[i].bytes - skip};
    }
    return n;
  }

  // `checked` is called with each Header that is now complete.
  template <class Check>
  void advance(size_t bytes, Check&& check) {
    while (bytes > 0) {
      const Chunk& chunk = chunks_[next_];
      const size_t part = std::min(bytes, chunk.bytes - offset_);
      offset_ += part;
      bytes -= part;
      if (offset_ < chunk.bytes) return;
      if (chunk.expected != nullptr) check(chunk);
      ++next_;
      offset_ = 0;
      skip_empty();
    }
  }

 private:
  void skip_empty() {
    while (!done() && chunks_[next_].bytes == 0) ++next_;
  }

  const std::vector<Chunk>& chunks_;
  size_t next_ = 0, offset_ = 0;
};

struct Running {
  const Leg& leg;
  int fd;
  Progress out, in;
  bool done() const { return out.done() && in.done(); }
};

std::string words(const Header& h) {
  std::string text = describe(static_cast<Operation::Kind>(h.kind));
  if (h.kind == static_cast<uint32_t>(Operation::Kind::kMessage)) text = "a message";
  text += " of " + std::to_string(h.count) + " " + name_of(static_cast<ecclDataType_t>(h.type));
  if (h.root >= 0) text += ", root " + std::to_string(h.root);
  return text;
}

[[noreturn]] void gone(int peer) { throw Failure{ecclRemoteError, "rank " + std::to_string(peer) + " went away"}; }

// True if something moved.
bool push(Running& r) {
  if (r.out.done()) return false;
  iovec parts[16];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(r.out.pending(parts, 16));
  const ssize_t sent = sendmsg(r.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) gone(r.leg.peer);
  if (sent <= 0) return false;
  r.out.advance(static_cast<size_t>(sent), [](const Chunk&) {});
  return true;
}

bool pull(Running& r) {
  if (r.in.done()) return false;
  iovec parts[16];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(r.in.pending(parts, 16));
  const ssize_t got = recvmsg(r.fd, &message, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) gone(r.leg.peer);
  if (got < 0) return false;
  r.in.advance(static_cast<size_t>(got), [&](const Chunk& chunk) {
    Header theirs;
    memcpy(&theirs, chunk.data, sizeof theirs);
    if (theirs.agrees(*chunk.expected)) return;
    throw Failure{ecclRemoteError, "rank " + std::to_string(r.leg.peer) + " does " + words(theirs) + ", this rank " +
                                       words(*chunk.expected)};
  });
  return true;
}

std::string waited_for(const std::vector<Running>& all) {
  std::string text;
  for (const Running& r : all) {
    if (!r.done()) text += (text.empty() ? "rank " : ", ") + std::to_string(r.leg.peer);
  }
  return text;
}

}  // namespace

bool Header::agrees(const Header& other) const {
  return kind == other.kind && type == other.type && op == other.op && root == other.root && count == other.count;
}

void transfer(Comm& comm, const std::vector<Leg>& legs) {
  std::vector<Running> all;
  all.reserve(legs.size());
  for (const Leg& leg : legs) all.push_back({leg, comm.peer_fd(leg.peer), Progress(leg.out), Progress(leg.in)});
  for (Running& r : all) push(r);
  std::vector<pollfd> waiting(all.size());
  auto moved = Clock::now();
  for (;;) {
    bool all_done = true;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto events = static_cast<short>((all[i].out.done() ? 0 : POLLOUT) | (all[i].in.done() ? 0 : POLLIN));
      waiting[i] = {events == 0 ? -1 : all[i].fd, events, 0};
      all_done = all_done && events == 0;
    }
    if (all_done) return;
    const int ready = poll(waiting.data(), waiting.size(), milliseconds_until(moved + settings().quiet));
    if (ready == 0 && Clock::now() >= moved + settings().quiet) {
      throw Failure{ecclRemoteError, "nothing came from " + waited_for(all) + " before the time limit"};
    }
    bool any = false;
    for (size_t i = 0; i < all.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      any = push(all[i]) || any;
      any = pull(all[i]) || any;
    }
    if (any) moved = Clock::now();
  }
}

}  // namespace sim
