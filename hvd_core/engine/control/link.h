// One edge of the control tree: frames over a Channel, with an outbox for bytes that the channel does not take at once.
//
// A frame is a 32-bit little-endian length and that many bytes. Length kAbortFrame announces an abort: its text follows
// as one ordinary frame. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/control/channel.h"
#include "engine/control/wire.h"

namespace hvd::control {

class Link {
 public:
  Link(std::unique_ptr<Channel> channel, int32_t peer, std::vector<int32_t> subtree)
      : peer(peer), subtree(std::move(subtree)), channel_(std::move(channel)) {}

  void send_frame(std::string_view payload) {
    put_length(static_cast<uint32_t>(payload.size()));
    outbox_.append(payload);
  }
  void send_abort(std::string_view text) {
    put_length(kAbortFrame);
    send_frame(text);
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
    bool any = false;
    std::exception_ptr gone;  // frames that the neighbour sent before its end still count
    try {
      while (size_t n = channel_->recv(buffer, sizeof buffer)) {
        any = true;
        inbox_.append(buffer, n);
        if (n < sizeof buffer) break;
      }
    } catch (const ChannelClosed&) {
      gone = std::current_exception();
    }
    if (any) parse(on_frame, on_abort);
    if (gone) std::rethrow_exception(gone);
    return any;
  }

  Channel& channel() { return *channel_; }

  const int32_t peer;
  const std::vector<int32_t> subtree;  // ranks reached through this link; empty for the link to the parent
  bool lost = false;

 private:
  static constexpr uint32_t kAbortFrame = 0xffffffff, kMaxFrame = 1u << 30;

  template <typename OnFrame, typename OnAbort>
  void parse(OnFrame& on_frame, OnAbort& on_abort) {
    size_t at = 0;
    while (inbox_.size() - at >= sizeof(uint32_t)) {
      uint32_t length;
      std::memcpy(&length, inbox_.data() + at, sizeof length);
      if (length == kAbortFrame) {
        at += sizeof length;
        aborting_ = true;
        continue;
      }
      if (length > kMaxFrame) throw WireError("control message: absurd frame length");
      if (inbox_.size() - at - sizeof length < length) break;
      std::string_view payload(inbox_.data() + at + sizeof length, length);
      at += sizeof length + length;
      if (aborting_)
        on_abort(payload);
      else
        on_frame(payload);
    }
    inbox_.erase(0, at);
  }

  void put_length(uint32_t n) {
    char raw[sizeof n];
    std::memcpy(raw, &n, sizeof n);
    outbox_.append(raw, sizeof raw);
  }

  std::unique_ptr<Channel> channel_;
  std::string outbox_, inbox_;
  size_t sent_ = 0;
  bool aborting_ = false;
};

}  // namespace hvd::control
