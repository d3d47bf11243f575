// See ohcl_comm.h. Each collective copies its arguments into a call of OHCL that the worker makes.
#include "ohcl_comm.h"

#include <hvd/backend_reduce.hpp>
#include <limits>

namespace {

// Seconds until a deadline of hvd-core.
double left(int64_t deadline_ns) {
  if (deadline_ns == HVD_NO_DEADLINE) return std::numeric_limits<double>::max();
  return static_cast<double>(deadline_ns > 0 ? deadline_ns - hvd::now_ns() : hvd::kDefaultWaitNs) / 1e9;
}

// Passes: L4.deadline, L4.killed_rank
void check(int code, const char* call) {
  if (code == ohclSuccess) return;
  constexpr struct {
    hvd_rc code;
    const char* text;
  } meaning[] = {{HVD_OK, ""},
                 {HVD_E_TIMEOUT, "not every rank has called it in time"},
                 {HVD_E_REMOTE, "another rank has died or left"},
                 {HVD_E_ABORTED, "it was interrupted"},
                 {HVD_E_INVALID, "the ranks ask for different collectives"},
                 {HVD_E_INTERNAL, "the system refused it"}};
  const auto& m = meaning[code];
  throw hvd::Error(m.code, std::string(call) + ": " + m.text, HVD_EF_COMM_DEAD, code);
}

class Pending : public hvd::Request {
 public:
  Pending(std::shared_ptr<Worker> worker, std::shared_ptr<Worker::Job> job)
      : worker_(std::move(worker)), job_(std::move(job)) {}
  bool test() override { return worker_->done(*job_, 0); }
  bool wait(int64_t deadline_ns) override { return worker_->done(*job_, deadline_ns); }

 private:
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Worker::Job> job_;
};

// A reduction without the arguments of its call, which are gone when it runs.
struct Reduction {
  int32_t dtype, op;
  static void combine(void* inout, const void* in, size_t count, const void* context) {
    const auto* r = static_cast<const Reduction*>(context);
    hvd::combine_elements(r->dtype, r->op, inout, inout, in, count);
  }
};

}  // namespace

// hvd-core composes the collectives that are not served here. An average of integers divides the exact sum; this
// library adds in the elements' own type.
hvd_coll_caps OhclComm::query(const hvd::Coll& c) {
  hvd_coll_caps caps{};
  if (c.kind() == HVD_ALLREDUCE && c.op() == HVD_AVG && !hvd::is_floating(c.dtype())) return caps;
  caps.support = HVD_NATIVE;
  caps.score = 20;
  return caps;
}

// Passes: L4.create_deadline, L4.recreate
OhclComm::OhclComm(const hvd::CommInit& init) : Comm(init) {
  char name[64] = "";
  if (rank() == 0) {
    check(ohclCreate(size(), name), "ohclCreate");
    if (size() > 1) init.store.set("name", name);
  } else {
    std::strncpy(name, init.store.get("name", init.deadline_ns).c_str(), sizeof(name) - 1);
  }
  ohclComm_t made = nullptr;
  const int code = ohclJoin(name, rank(), size(), left(init.deadline_ns), &made);
  if (rank() == 0) {  // all have joined, or they never will
    ohclRemove(name);
    if (size() > 1) init.store.del("name");
  }
  check(code, "ohclJoin");
  comm_.reset(made);
  worker_ = std::make_shared<Worker>(init.notify_token);
}

// A call that blocks must end before its thread can, and the thread before the library's communicator.
OhclComm::~OhclComm() {
  ohclInterrupt(comm_.get());
  worker_->stop();
}

// Passes: L4.abort
void OhclComm::abort() { ohclInterrupt(comm_.get()); }

void OhclComm::async_error() { worker_->check(); }

hvd::Work OhclComm::post(const hvd::Coll& c, std::function<int(ohclComm_t, double)> call) {
  const int64_t deadline = c.args().deadline_ns > 0 ? c.args().deadline_ns : hvd::now_ns() + hvd::kDefaultWaitNs;
  auto job = worker_->post([comm = comm_.get(), deadline, call = std::move(call)] {
    check(call(comm, left(deadline)), "a collective of OHCL");
  });
  return hvd::Work(std::make_unique<Pending>(worker_, std::move(job)));
}

// Passes: L2.allreduce, L2.scaling
hvd::Work OhclComm::allreduce(const hvd::Coll& c) {
  const bool averages = c.op() == HVD_AVG;
  const Reduction r{c.dtype(), averages ? HVD_SUM : c.op()};
  return post(c,
              [r, averages, ranks = static_cast<uint32_t>(size()), in = c.in(0), out = c.out(0), n = c.count(0),
               width = c.element_bytes(), pre = c.prescale(), post = c.postscale()](ohclComm_t comm, double seconds) {
                if (in != out && n > 0) std::memcpy(out, in, n * width);
                if (pre != 1) hvd::scale_elements(r.dtype, out, n, pre);
                const int code = ohclAllreduce(comm, out, out, n, width, &Reduction::combine, &r, seconds);
                if (code != ohclSuccess) return code;
                if (averages) hvd::divide_elements(r.dtype, out, n, ranks);
                if (post != 1) hvd::scale_elements(r.dtype, out, n, post);
                return code;
              });
}

// Passes: L2.broadcast
hvd::Work OhclComm::broadcast(const hvd::Coll& c) {
  const int root = c.args().root;
  if (root < 0 || root >= size()) throw hvd::Error(HVD_E_INVALID, "the root is no rank of this communicator");
  const void* in = root == rank() ? c.in(0) : nullptr;
  return post(c, [in, out = c.out(0), bytes = c.count(0) * c.element_bytes(), root](ohclComm_t comm, double seconds) {
    return ohclBroadcast(comm, in, out, bytes, root, seconds);
  });
}

// Passes: L2.allgather, L2.allgatherv
hvd::Work OhclComm::allgather(const hvd::Coll& c) {
  std::vector<size_t> bytes;
  for (int r = 0; r < size(); ++r) bytes.push_back(c.out_count(0, r, size(), c.count(0)) * c.element_bytes());
  return post(c, [in = c.in(0), out = c.out(0), bytes = std::move(bytes), me = static_cast<size_t>(rank())](
                     ohclComm_t comm, double seconds) {
    size_t before = 0;
    for (size_t r = 0; r < me; ++r) before += bytes[r];
    const void* mine = in == out ? static_cast<char*>(out) + before : in;
    return ohclAllgatherv(comm, mine, out, bytes.data(), seconds);
  });
}
