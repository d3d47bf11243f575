// A cache of a communicator's query answers: which collectives it serves itself, and with which limits.
//
// The answers depend only on the arguments of ask(), so all ranks decide alike. Used by the driver.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/plugins/communicator.h"

namespace hvd::dataplane {

struct Ability {
  bool served = false;
  uint32_t alignment = 1;           // of buffers' addresses, in bytes; a power of two
  uint64_t max_count = UINT64_MAX;  // most elements in any buffer of one call
  uint64_t pack_below = 0;          // bytes; smaller buffers of a list should be packed
  std::string why;                  // the reason for which it is not served, if the backend gives one
  bool plain() const { return alignment <= 1 && max_count == UINT64_MAX; }
};

class Abilities {
 public:
  explicit Abilities(plugins::Communicator& comm) : comm_(comm) {}

  // Which factors of a reduction differ from 1.
  enum Factors : uint32_t { kNone = 0, kPrescale = 2, kPostscale = 4 };
  static uint32_t factors_of(const plugins::Collective& c);

  // `varying`: with explicit sizes per rank (allgather, reducescatter, alltoall). `op` and `factors` matter to
  // reductions only.
  const Ability& ask(int32_t coll, int32_t dtype, int32_t op, bool varying, uint32_t factors = kNone);
  const Ability& ask(const plugins::Collective& c, uint32_t factors = kNone) {
    return ask(c.coll, c.dtype, c.op, c.varying(), factors);
  }
  bool serves(int32_t coll, int32_t dtype, int32_t op = HVD_SUM, bool varying = false) {
    return ask(coll, dtype, op, varying).served;
  }

 private:
  Ability query(int32_t coll, int32_t dtype, int32_t op, bool varying, uint32_t factors);

  plugins::Communicator& comm_;
  std::map<uint32_t, Ability> known_;
  uint32_t last_key_ = 0;  // most calls ask the same again
  const Ability* last_ = nullptr;
};

}  // namespace hvd::dataplane
