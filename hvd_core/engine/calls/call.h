// An operation as a caller asks for it, in plain values (a call into a backend is plugins::Call). A front end makes it;
// the request of the operation holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/call_site.h"
#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {
struct Backends;
}

namespace hvd::calls {

// A dense tensor. The framework owns the memory, and keeps it until the request is settled; after that a device's
// memory until the work in its stream is over, for which the order of the caller's stream is enough. For good if it
// lingers.
struct Tensor {
  void* data = nullptr;
  int32_t dtype = 0;  // HVD_*
  std::vector<int64_t> shape;
  std::string device_type = "cpu";
  int32_t device_id = 0;  // negative: the backend is asked which device has the memory `data`
  // On a device: the native stream whose work so far produces the data. Without a stream the data are ready.
  bool has_stream = false;
  void* stream = nullptr;
  // In host memory: the type of the device whose tensor the caller copies to this memory, and the result from it;
  // empty if the caller's tensor itself is here.
  std::string staged_from = {};

  bool on_host() const { return device_type == "cpu"; }
  uint64_t count() const {
    uint64_t n = 1;
    for (int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
  uint64_t bytes() const { return count() * base::dtype_bytes(dtype); }
};

class Request;

// Is told that a request is settled, for callers that do not wait.
class Listener {
 public:
  // Called by the thread that drives the engine when the request is settled, and again when it is done if that is
  // later. Must be quick. Returns true if it needs no further call; the listener may have been deleted by then.
  virtual bool settled(const Request& request) noexcept = 0;

  std::shared_ptr<Request> request;  // set when the request is submitted: the listener keeps it alive

 protected:
  ~Listener() = default;
};

struct Call {
  base::OpKind kind = base::OpKind::Allreduce;  // never Adasum: that is an allreduce with reduce_op base::kAdasum
  std::optional<std::string> name = {};         // without a name the process set counts the call
  int32_t process_set = 0;                      // the number that users see
  int32_t reduce_op = 0;                        // HVD_* or base::kAdasum
  int32_t root = -1;                            // broadcast, send: the rank, in the job, that has the data
  int32_t to = -1;  // send: the rank, in the job, that receives; allreduce: the only rank that gets the result, -1: all
  double prescale = 1.0, postscale = 1.0;
  // `out` is empty for barrier, and may be empty for allgather, alltoall and reducescatter: the engine allocates. An
  // allgather with `out` takes equally many rows from all ranks, which must agree on their number.
  std::vector<Tensor> in = {}, out = {};
  // Alltoall: rows for each rank, one list per tensor. An empty list asks for equal shares.
  std::vector<std::vector<int64_t>> splits = {};
  // Alltoall with `out`: for each tensor the rows from each rank, behind each other. If `unit` is not negative, the
  // ranks' splits follow from `unit` and `root`, on which all ranks must agree; otherwise the ranks compare their
  // splits first.
  std::vector<int64_t> received = {};
  int64_t unit = -1;
  // On a device: the points in the caller's streams at which the data are ready. frontend::submit() sets it.
  std::vector<plugins::MarkRef> ready = {};
  bool once = false;   // the name does not come again, so that it is not remembered
  bool soon = false;   // the caller has nothing else to submit, so that coalescing would only delay the operation
  bool waits = false;  // the calling thread is about to wait, and drives the request itself
  bool stays = false;  // the calling thread is about to call Engine::stay(), and drives the request itself for a moment
  bool more_follow = false;  // further calls follow at once, then Engine::announce()
  bool deferred = false;     // the data come later: the request begins with Engine::begin(). Not together with waits
  Listener* listener = nullptr;                              // is called when the request is settled
  base::CallSite site = {};                                  // where the program made the call
  std::shared_ptr<const dataplane::Backends> backends = {};  // add_process_set: those of the set; null: the job's
};

}  // namespace hvd::calls
