// One direction of a link between nodes in one process, which delivers bytes in chunks of any size, and spoils some of
// them.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "engine/agreement/channel.h"
#include "rng.h"

namespace hvd::native {

inline std::string draw_text(Rng& rng, uint64_t longest) {
  std::string text(rng.below(longest + 1), 'x');
  for (char& c : text) c = static_cast<char>(rng.below(256));
  return text;
}

inline std::string spoil(Rng& rng, std::string data) {
  switch (rng.below(6)) {
    case 0:
      for (int64_t n = rng.between(1, 4); n > 0 && !data.empty(); --n)
        data[rng.below(data.size())] = static_cast<char>(rng.below(256));
      break;
    case 1:
      data.resize(rng.below(data.size() + 1));
      break;
    case 2:
      data.insert(rng.below(data.size() + 1), draw_text(rng, 12));
      break;
    case 3:
      data += data;
      break;
    case 4:  // one bit, or the largest number that a byte can begin
      if (!data.empty()) data[rng.below(data.size())] ^= static_cast<char>(1 << rng.below(8));
      if (!data.empty() && rng.one_in(2)) data[rng.below(data.size())] = static_cast<char>(0xff);
      break;
    default: {  // a well-formed frame of nonsense
      const std::string body = draw_text(rng, 40);
      const auto n = static_cast<uint32_t>(body.size());
      data.append(reinterpret_cast<const char*>(&n), sizeof n);
      data += body;
    }
  }
  return data;
}

// One direction of a link. Bytes arrive when they are delivered, in chunks of any size.
struct Pipe {
  std::deque<std::string> under_way;
  std::string arrived;

  void deliver(Rng& rng, bool spoil_it) {
    if (under_way.empty()) return;
    arrived += spoil_it ? spoil(rng, under_way.front()) : under_way.front();
    under_way.pop_front();
  }
};

class PipeChannel final : public agreement::Channel {
 public:
  PipeChannel(Pipe& out, Pipe& in, uint64_t seed) : out_(out), in_(in), rng_(seed) {}
  size_t send(std::string_view bytes) override {
    const size_t n = rng_.one_in(3) ? rng_.below(bytes.size() + 1) : bytes.size();
    if (n > 0) out_.under_way.emplace_back(bytes.substr(0, n));
    return n;
  }
  size_t recv(char* into, size_t room) override {
    size_t n = std::min(room, in_.arrived.size());
    if (n > 0 && rng_.one_in(3)) n = 1 + rng_.below(n);
    std::memcpy(into, in_.arrived.data(), n);
    in_.arrived.erase(0, n);
    return n;
  }
  void wake_peer() override {}

 private:
  Pipe& out_;
  Pipe& in_;
  Rng rng_;
};

}  // namespace hvd::native
