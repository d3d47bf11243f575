// An allreduce in place of buffers that lie in windows on all ranks: each rank reduces its slice straight between the
// ranks' buffers, and writes the result to all of them. No slot, no copy in, no copy out.
//
// Each rank names the places of its buffers when it announces the operation. Once all have, each knows whether all
// buffers lie in windows, and comes to the same answer. Used by the thread that is inside a call on the communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "host_kernels/collective.h"
#include "shared.h"
#include "window.h"

namespace hvd::shm {

class DirectReduction {
 public:
  // True if this rank's buffers can be reduced in place: they lie in windows, and at most `most` places name them.
  bool offer(const Windows& windows, uint32_t rank, Collective& op, uint64_t most);
  // The places of this rank's buffers, for the other ranks to read.
  void show(uint64_t* to) const;
  uint64_t places() const { return places_.size(); }

  // All ranks have offered, and their operations agree. `shown`: the places of each rank. Throws INVALID for a place
  // that does not exist.
  void begin(const Windows& windows, uint32_t rank, uint32_t size, const Collective& op,
             const std::vector<const uint64_t*>& shown);
  // Reduces some of this rank's slice. True when it is done.
  bool advance(const Collective& op);

 private:
  uint32_t rank_ = 0, size_ = 0;
  std::vector<uint64_t> places_;
  std::vector<char*> spans_;  // where span i of rank r begins, at [i * size + r]
  std::vector<const void*> sources_;
  size_t span_ = 0;
  uint64_t offset_ = 0, left_ = 0;  // within the span; bytes of the slice that are left
};

}  // namespace hvd::shm
