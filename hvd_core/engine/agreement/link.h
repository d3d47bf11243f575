// One edge of the control tree: frames over a Channel, with an outbox for bytes that the channel does not take at once.
//
// A frame is a 32-bit little-endian head and a payload. The lower 31 bits of the head are the payload's length; the
// upper bit says that the payload is the cause of an abort. Between hosts a tag follows, and the payload may be
// encrypted (rendezvous/seal.h). Used by the thread that drives the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/agreement/channel.h"
#include "engine/agreement/wire.h"
#include "engine/rendezvous/seal.h"

namespace hvd::agreement {

class Link {
 public:
  // The longest payloads. A head that announces more is refused before any room is made for it.
  static constexpr uint32_t kMostFrame = 64u << 20, kMostAbort = 64u << 10;

  // `seals`: null within a host, where the system keeps other users out.
  Link(std::unique_ptr<Channel> channel, int32_t peer, std::vector<int32_t> subtree,
       std::unique_ptr<rendezvous::Seals> seals = nullptr)
      : peer(peer), subtree(std::move(subtree)), channel_(std::move(channel)), seals_(std::move(seals)) {}

  void send_frame(std::string_view payload) {
    if (payload.size() > kMostFrame)
      throw WireError("control message: it would have " + std::to_string(payload.size()) + " bytes, and may have " +
                      std::to_string(kMostFrame) + " at most");
    put(static_cast<uint32_t>(payload.size()), payload);
  }
  // A longer text is cut.
  void send_abort(std::string_view text) {
    text = text.substr(0, kMostAbort);
    put(static_cast<uint32_t>(text.size()) | kAbort, text);
  }

  // Gives the outbox to the channel. Returns whether it is empty afterwards.
  bool flush(bool wake) {
    if (outbox_.empty()) return true;
    size_t n = channel_->send(std::string_view(outbox_).substr(sent_));
    sent_ += n;
    if (n > 0 && wake) channel_->wake_peer();
    if (sent_ < outbox_.size()) return false;
    outbox_.clear();
    sent_ = 0;
    return true;
  }
  bool idle() const { return outbox_.empty(); }

  // Calls on_frame(payload) or on_abort(text) for each frame that has come in. Returns whether any bytes were read.
  template <typename OnFrame, typename OnAbort>
  bool receive(OnFrame&& on_frame, OnAbort&& on_abort) {
    char buffer[16384];
    size_t got = 0;
    std::exception_ptr gone;  // frames that the neighbour sent before its end still count
    try {
      while (got < kMostPerCall) {
        const size_t n = channel_->recv(buffer, sizeof buffer);
        inbox_.append(buffer, n);
        got += n;
        if (n < sizeof buffer) break;
      }
    } catch (const ChannelClosed&) {
      gone = std::current_exception();
    }
    if (got > 0) parse(on_frame, on_abort);
    if (gone) std::rethrow_exception(gone);
    progress_ |= got > 0;
    return got > 0;
  }

  // A frame has begun and has not ended.
  bool unfinished() const { return !inbox_.empty(); }
  // For how long the rest of a frame has been missing. To be called after receive(). A pause of this
  // process, stopped by a debugger for instance, counts as one second: the bytes may be there.
  int64_t stalled_frame_ns(int64_t now) {
    constexpr int64_t kSecond = 1'000'000'000;
    const bool waits = unfinished() && !progress_;
    stalled_ns_ = waits ? stalled_ns_ + std::min(now - checked_at_, kSecond) : 0;
    checked_at_ = now;
    progress_ = false;
    return stalled_ns_;
  }
  // "12 of 300 bytes", of the frame that has begun.
  std::string unfinished_text() const {
    uint32_t head = 0;
    if (inbox_.size() < sizeof head) return std::to_string(inbox_.size()) + " bytes of its length";
    std::memcpy(&head, inbox_.data(), sizeof head);
    return std::to_string(inbox_.size() - sizeof head) + " of " + std::to_string((head & ~kAbort) + tag_bytes()) +
           " bytes";
  }

  Channel& channel() { return *channel_; }

  const int32_t peer;
  const std::vector<int32_t> subtree;  // ranks reached through this link; empty for the link to the parent
  bool lost = false;

 private:
  static constexpr uint32_t kAbort = 1u << 31;
  static constexpr size_t kMostPerCall = 1u << 20;  // further bytes are read in the next call

  size_t tag_bytes() const { return seals_ ? rendezvous::FrameSeal::kTagBytes : 0; }

  template <typename OnFrame, typename OnAbort>
  void parse(OnFrame& on_frame, OnAbort& on_abort) {
    size_t at = 0;
    uint32_t head;
    while (inbox_.size() - at >= sizeof head) {
      std::memcpy(&head, inbox_.data() + at, sizeof head);
      const uint32_t length = head & ~kAbort;
      if (length > ((head & kAbort) ? kMostAbort : kMostFrame))
        throw WireError("control message: " + std::to_string(length) + " bytes were announced, which is too long");
      if (inbox_.size() - at - sizeof head < length + tag_bytes()) break;
      char* const start = inbox_.data() + at + sizeof head;
      const std::string_view payload(start, length);
      if (seals_ && !seals_->in.open(head, start, length, start + length))
        throw WireError("control message: it was changed on the way, or another program has sent it");
      at += sizeof head + length + tag_bytes();
      if (head & kAbort)
        on_abort(payload);
      else
        on_frame(payload);
    }
    inbox_.erase(0, at);
  }

  void put(uint32_t head, std::string_view payload) {
    char raw[sizeof head];
    std::memcpy(raw, &head, sizeof head);
    outbox_.append(raw, sizeof raw);
    if (seals_)
      seals_->out.seal(head, payload, &outbox_);
    else
      outbox_.append(payload);
  }

  std::unique_ptr<Channel> channel_;
  std::unique_ptr<rendezvous::Seals> seals_;
  std::string outbox_, inbox_;
  size_t sent_ = 0;
  int64_t checked_at_ = 0, stalled_ns_ = 0;
  bool progress_ = false;
};

}  // namespace hvd::agreement
