// Fusion: forms batches from the requests that all ranks have submitted.
//
// Requests come in the order in which the coordinator decided on them. A batch has requests of one process set and one
// fuse key (operation, reduction, factors, root, device type and dtype are equal), of at most `threshold` bytes
// together. A group is one request, so its tensors stay together. Small requests that no caller waits for may be held
// for the coalescing delay, so that one batch carries many of them (rule R3 of docs/protocol.md).
//
// A plain data structure: no clock, no thread, no I/O. Used by the coordinator.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/agreement/messages.h"

namespace hvd::agreement {

struct FusionConfig {
  uint64_t threshold = 128u << 20;  // bytes; 0: every request is a batch of its own
  int64_t coalesce_ns = 1'000'000;  // the coalescing delay
};

class Fusion {
 public:
  struct Batch {
    SetId set;
    std::vector<Item> items;
  };

  explicit Fusion(FusionConfig config) : config_(config) {}

  // `urgent`: a caller waits for this request.
  void add(SetId set, Item item, bool urgent, int64_t now);
  // A caller has begun to wait for one of the requests here: the coalescing delay is over.
  void make_urgent() { urgent_ = !requests_.empty(); }

  // From now on. The requests that wait must be taken before.
  void configure(FusionConfig config) { config_ = config; }

  bool empty() const { return requests_.empty(); }
  // Whether the requests should leave now: a caller waits, they are large enough, or the coalescing delay is over.
  bool due(int64_t now) const;
  // When due() becomes true without further requests; INT64_MAX if there is no request.
  int64_t next_deadline() const;

  // Removes and returns the next batch. There must be a request.
  Batch take_batch();

 private:
  struct Waiting {
    SetId set;
    Item item;
  };

  FusionConfig config_;
  std::deque<Waiting> requests_;
  uint64_t bytes_ = 0;
  int64_t since_ = 0;    // when the oldest request came
  bool urgent_ = false;  // a caller waits for one of the requests
};

}  // namespace hvd::agreement
