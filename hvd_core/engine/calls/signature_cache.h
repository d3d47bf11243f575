// The signatures of an engine's last reductions. A training step repeats the calls of the step before, and the
// signature of a call that is like an earlier one need not be checked and encoded again. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "engine/agreement/signature.h"
#include "engine/calls/call.h"

namespace hvd::calls {

class KnownSignatures {
 public:
  // The signature of an earlier allreduce on host memory that asks for the same, with tensors of the same types and
  // shapes; null if there is no such call here. A call with a signature needs no further checks of its inputs.
  agreement::SigRef find(const calls::Call& call);

  // Keeps the signature of a call that has passed its checks, in place of another one.
  void remember(const calls::Call& call, const agreement::SigRef& signature);

 private:
  static constexpr size_t kPlaces = 64;

  static size_t place_of(const calls::Call& call);

  std::mutex mutex_;  // no thread waits for it: the signature can be made as well
  std::array<agreement::SigRef, kPlaces> places_;
};

}  // namespace hvd::calls
