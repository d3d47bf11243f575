// The proof, on each frame of a connection between hosts, that the neighbour sent it, once and in this order.
//
// Both ends know the connection's key, which the bootstrap derived from the job's secret and both nonces of its
// handshake (hvd_core/bootstrap/auth.py). A frame's tag is the beginning of an HMAC-SHA-256 over its number, its head
// and its payload, under the key of one direction. Nothing is encrypted. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <hvd/sha256.hpp>
#include <string>
#include <string_view>

namespace hvd::control {

class FrameSeal {
 public:
  static constexpr size_t kTagBytes = 16;

  // `direction`: a word for the way of the frames, the same at both ends.
  FrameSeal(std::string_view connection_key, std::string_view direction);
  // The tag of the next frame. `head`: the frame's first word.
  std::string next(uint32_t head, std::string_view payload);

 private:
  Hmac keyed_;
  uint64_t number_ = 0;
};

// Takes the same time for every difference. Both texts have kTagBytes.
bool same_tag(std::string_view a, std::string_view b);

struct Seals {
  FrameSeal out, in;
};

}  // namespace hvd::control
