// How one collective is carried out: the messages to each peer, the places of received data, and the end.
//
// A schedule knows messages, not sockets. progress.cc asks next() whenever a connection to a peer can take another
// message, and place() for every header that came; messages between two ranks may overtake each other where there are
// several connections. All payloads are bounded by ScheduleParams::chunk, and data received ahead of its turn by a
// window, so memory is bounded; a schedule must never wait for space that only a later message could free. Used by the
// thread that is inside a call on the communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "host_kernels/collective.h"
#include "link.h"

namespace hvd::tcp {

// The parameters of a schedule: the same on all ranks, but for `rank`.
struct ScheduleParams {
  uint32_t rank = 0, size = 0;
  uint64_t chunk = 0;       // bytes of the longest message of a large operation; a multiple of 64
  uint64_t small = 0;       // bytes that a rank may receive in a one-step exchange
  uint32_t ring_ranks = 0;  // see SharedSettings
};

constexpr uint32_t kWindow = 4;  // chunks in progress at a time

class Schedule {
 public:
  enum class Verdict {
    kTake,   // *where is filled
    kLater,  // no space yet; ask again when something has moved
    kWrong   // not part of this operation
  };

  virtual ~Schedule() = default;
  // Begins `collective`, which stays valid until finish().
  virtual void begin(const ScheduleParams& params, Collective& collective) = 0;
  // The next message for a peer; false when there is none now.
  virtual bool next(uint32_t peer, Message* message) = 0;
  // The header's sequence number and hash are those of this operation.
  virtual Verdict place(uint32_t peer, const Header& header, Payload* where) = 0;
  // Local work, once everything is sent and received.
  virtual void finish() {}

  void sent(uint32_t peer, const Message& message) {
    --outgoing_[peer];
    --open_;
    on_sent(peer, message);
  }
  void arrived(uint32_t peer, const Header& header) {
    --incoming_[peer];
    --open_;
    on_arrived(peer, header);
  }
  // Whether one more message from the peer may begin: as many have begun as are to come. One that is repeated must not
  // count for another one, because the collective would end while that is still being received.
  bool takes(uint32_t peer) const { return unbegun_[peer] > 0; }
  void begun(uint32_t peer) { --unbegun_[peer]; }
  // Are there messages to come from, or to go to, the peer?
  bool awaits(uint32_t peer) const { return incoming_[peer] > 0; }
  bool owes(uint32_t peer) const { return outgoing_[peer] > 0; }
  bool done() const { return open_ == 0; }

 protected:
  virtual void on_sent(uint32_t, const Message&) {}
  virtual void on_arrived(uint32_t, const Header&) {}

  void clear(const ScheduleParams& params) {
    incoming_.assign(params.size, 0);
    unbegun_.assign(params.size, 0);
    outgoing_.assign(params.size, 0);
    open_ = 0;
  }
  void expect(uint32_t peer, uint64_t messages) {
    incoming_[peer] += messages;
    unbegun_[peer] += messages;
    open_ += messages;
  }
  void owe(uint32_t peer, uint64_t messages) {
    outgoing_[peer] += messages;
    open_ += messages;
  }

 private:
  std::vector<uint64_t> incoming_, unbegun_, outgoing_;  // messages, per peer
  uint64_t open_ = 0;
};

// A part of `total` bytes, divided into chunks.
struct Chunking {
  uint64_t total, chunk;
  uint64_t count() const { return (total + chunk - 1) / chunk; }
  uint64_t bytes(uint64_t i) const { return i * chunk >= total ? 0 : std::min(chunk, total - i * chunk); }
  // Is this the position and length of one of the chunks?
  bool fits(const Header& h) const {
    return h.total == total && h.at % chunk == 0 && h.at <= total && h.bytes == bytes(h.at / chunk) && h.bytes > 0;
  }
};

}  // namespace hvd::tcp
