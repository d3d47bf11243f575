// A control link on which one side is a rank that follows the protocol and says wrong things: reads its messages as the
// other side would, changes some of them, and sends them on. All of them are well-formed; wire_fuzz spoils bytes.
#pragma once

#include <array>
#include <atomic>
#include <thread>

#include "engine/agreement/link.h"
#include "engine/agreement/messages.h"
#include "rng.h"

namespace hvd::native {

class HostileRelay {
 public:
  struct Settings {
    uint64_t seed = 1;
    int32_t hostile = 0, other = 0, world = 2;  // the ranks at both ends
    uint32_t cache_capacity = 1024;
  };
  explicit HostileRelay(const Settings& settings);
  // Both sides see the end of the link.
  ~HostileRelay();
  HostileRelay(const HostileRelay&) = delete;

  // The ends for the hostile rank and for the other.
  std::array<int, 2> ends() const { return {fds_[0], fds_[2]}; }
  // From here on one message in `one_in` is changed.
  void begin(uint64_t one_in) { one_in_ = one_in; }
  // The end of the hostile rank: from here on it says nothing, and then both sides see the end of the link.
  void mute() { muted_ = true; }
  void cut();

  static inline std::atomic<uint64_t> messages{0}, changed{0};

 private:
  void run();
  bool pass_on(agreement::Link& from, agreement::Link& to);
  std::string changed_up(std::string_view frame);
  std::string changed_down(std::string_view frame);
  void change(agreement::UpMessage& m);
  void change(agreement::Entry& e);
  agreement::SigRef change(const agreement::SigRef& sig);
  agreement::Item invented();
  bool spoils() { return one_in_ > 0 && rng_.one_in(one_in_); }
  int32_t any_rank() { return static_cast<int32_t>(rng_.one_in(8) ? rng_.below(1 << 30) : rng_.below(2 * world_)); }

  const bool upwards_;  // the hostile rank is the child
  const uint64_t world_;
  Rng rng_;
  std::array<int, 4> fds_;  // two pairs: the first end of each is a rank's, the second this object's
  std::atomic<uint64_t> one_in_{0};
  std::atomic<bool> over_{false}, muted_{false};
  agreement::Decoder<agreement::UpMessage> up_in_;
  agreement::Encoder<agreement::UpMessage> up_out_;
  agreement::Decoder<agreement::Entry> down_in_;
  agreement::Encoder<agreement::Entry> down_out_;
  std::vector<agreement::Item> seen_;  // some of the requests that have gone by
  std::thread thread_;
};

}  // namespace hvd::native
