// A communicator as NCCL's callers see it: it comes into being and connects in the background when it is non-blocking,
// and may not be used meanwhile. What carries the data is sim::Comm. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "comm.h"
#include "nccl_abi.h"
#include "operation.h"
#include "streams.h"

namespace cusim {

struct Nccl : std::enable_shared_from_this<Nccl> {
  int rank = 0, size = 0;
  Context* context = nullptr;
  bool blocking = true;
  std::atomic<bool> finalized{false};

  // The lasting failure, or ncclInProgress; checked at the beginning of each use.
  ncclResult_t state();
  std::string text();
  ncclResult_t ready();

  // Does `job` at once, or in the background with the state ncclInProgress until it is through. Its failure lasts.
  ncclResult_t perform(std::function<ncclResult_t()> job);

  sim::CommRef comm();
  void set_comm(sim::CommRef comm);
  void fail(ncclResult_t code, const std::string& text);
  void abort();
  // Is `peer` (-1: every rank) connected already? From now on it is.
  bool connect(int peer);

 private:
  std::mutex mutex_;
  sim::CommRef comm_;
  bool busy_ = false, aborted_ = false;
  ncclResult_t failure_ = ncclSuccess;
  std::string text_;
  std::set<int> connected_;
};
using NcclRef = std::shared_ptr<Nccl>;

ncclComm_t add(const NcclRef& nccl);
NcclRef find(ncclComm_t handle);
NcclRef take(ncclComm_t handle);

// Ranks find each other by `id`; throws nothing, the result is the communicator's state.
ncclResult_t create(const NcclRef& nccl, const ncclUniqueId& id);
// A collective call on `parent`. No child for this rank: `child` stays null.
ncclResult_t split(const NcclRef& parent, int color, int key, NcclRef* child, bool blocking);

// Remembers a failure of this thread's, and of the group that is open. Returns `code`.
ncclResult_t refuse(ncclResult_t code, const std::string& text);
const std::string& last_text();

// Groups, as the calling thread collects them.
void group_start();
ncclResult_t group_end();
ncclResult_t submit(const NcclRef& nccl, const StreamRef& stream, sim::Operation op);
ncclResult_t submit(const NcclRef& nccl, std::function<ncclResult_t()> job);

}  // namespace cusim
