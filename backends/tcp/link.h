// One authenticated connection: the message that is being written to it and the one that is being read from it.
//
// Knows bytes and headers, not collectives. Nothing here blocks. One thread at a time; shut_down: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "extent.h"
#include "host_kernels/descriptor.h"
#include "shared.h"
#include "stream.h"
#include "wire.h"

namespace hvd::tcp {

// A message that an algorithm wants to send.
struct Message {
  uint32_t kind = 0, slice = 0;
  uint64_t at = 0, total = 0;
  Payload payload;
};

class Link {
 public:
  enum class Io {
    kDone,     // the whole header, payload or message
    kBlocked,  // as far as it goes for now
    kClosed,   // the peer has closed its side
    kBroken    // error() says what
  };

  Link(Descriptor fd, uint32_t peer, uint32_t socket_index);

  // Sending. A message at a time.
  bool sending() const { return sending_; }
  void begin(const Header& header, const Message& message);
  Io send();
  const Message& message() const { return message_; }
  // A notify_failure where the stream allows one: between two messages. Best effort.
  void notify_failure(int32_t code, const std::string& text);

  // Receiving: a header, then its payload to the place that was found for it.
  bool has_header() const { return has_header_; }
  bool placed() const { return placed_; }
  Io read_header();
  const Header& header() const { return incoming_; }
  void place(const Payload& payload);
  Io read_payload();
  // Is there something to read or to place, as far as is known? A header may have had to wait for its operation, and
  // nothing need follow it.
  bool has_input() const { return readable || end_ > begin_ || (has_header_ && !placed_); }
  bool between_messages() const { return !has_header_ && end_ == begin_; }

  // Before the first message: see Stream.
  void encrypt(const CryptoLibrary& library, const Digest& key, bool caller) { stream_.encrypt(library, key, caller); }
  // No message follows.
  void end(std::chrono::steady_clock::time_point until) { stream_.end(until); }
  void shut_down() { stream_.shut_down(); }
  int error() const { return error_; }
  int fd() const { return stream_.fd(); }

  const uint32_t peer, socket_index;
  // Set when the poller says so, cleared when the socket has no more bytes, or no more room.
  bool readable = true, writable = true;
  // The peer has closed this connection between two messages, while it had others left: it was done with this one.
  bool ended = false;

 private:
  Io outcome(ssize_t n);

  Stream stream_;
  Header outgoing_ = {}, incoming_ = {};
  Message message_;
  uint64_t sent_ = 0;  // bytes of header and payload
  bool sending_ = false, has_header_ = false, placed_ = false;
  Payload target_;
  uint64_t received_ = 0;          // bytes of the payload
  std::unique_ptr<char[]> ahead_;  // what was read beyond what was asked for: [begin_, end_)
  uint32_t begin_ = 0, end_ = 0;
  int error_ = 0;
};

}  // namespace hvd::tcp
