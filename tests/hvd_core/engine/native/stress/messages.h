// Messages of two ranks at a time, beside the streams of actors.h. Each function on a thread of its own.
#pragma once

#include <cstdint>

#include "actors.h"

namespace hvd::native {

// `count` messages between two ranks each, on all ranks with the same seed: each rank submits those that it sends and
// receives in one order, and waits for them in another.
void run_messages(Engine& engine, int rank, int ranks, int count, uint64_t seed, Course& course);

// A message of the first two members of a set that the second one never asks for: it ends with the set. Null on the
// other ranks.
class LostMessage {
 public:
  LostMessage(Engine& engine, int rank, const Set& set);
  ~LostMessage() { wait(); }
  LostMessage(const LostMessage&) = delete;
  // The set has been removed.
  void check(Course& course) const;

 private:
  void wait() const;

  Engine& engine_;
  float value_ = 0;
  calls::RequestRef request_;
};

}  // namespace hvd::native
