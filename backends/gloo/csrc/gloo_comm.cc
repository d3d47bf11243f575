// See gloo_comm.h.
#include "gloo_comm.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/reduce.h>

#include <cstring>
#include <hvd/backend_reduce.hpp>

namespace hvd::gloo_backend {
namespace {

constexpr const char* kLibrary =
    "libgloo " HVD_TEXT(GLOO_VERSION_MAJOR) "." HVD_TEXT(GLOO_VERSION_MINOR) "." HVD_TEXT(GLOO_VERSION_PATCH);
// A ring's steps grow with the ranks, bcube's with their logarithm; for large ones the ring overlaps better.
constexpr uint64_t kBcubeBytes = 256 * 1024;
constexpr int32_t kBcubeRanks = 4;

// A reduction without its arguments, which may be gone when it runs.
struct Reduction {
  Reduction(const Coll& c, int32_t size)
      : dtype(c.dtype()), op(c.op() == HVD_AVG ? HVD_SUM : c.op()), pre(c.prescale()), post(c.postscale()) {
    if (c.op() == HVD_AVG) divisor = static_cast<uint32_t>(size);
  }
  ::gloo::AllreduceOptions::Func function() const {
    return [dtype = dtype, op = op](void* out, const void* a, const void* b, size_t n) {
      combine_elements(dtype, op, out, a, b, n);
    };
  }
  void scale_before(void* p, uint64_t n) const {
    if (pre != 1) scale_elements(dtype, p, n, pre);
  }
  void scale_after(void* p, uint64_t n) const {
    if (divisor != 1) divide_elements(dtype, p, n, divisor);
    if (post != 1) scale_elements(dtype, p, n, post);
  }
  int32_t dtype, op;
  uint32_t divisor = 1;
  double pre, post;
};

void copy(void* to, const void* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Gloo wants the elements' size by a type.
template <class O>
void set_output(O& options, void* p, uint64_t n, uint64_t width) {
  switch (width) {
    case 1:
      return options.setOutput(static_cast<uint8_t*>(p), n);
    case 2:
      return options.setOutput(static_cast<uint16_t*>(p), n);
    case 4:
      return options.setOutput(static_cast<uint32_t*>(p), n);
    default:
      return options.setOutput(static_cast<uint64_t*>(p), n);
  }
}

class Pending : public Request {
 public:
  Pending(std::shared_ptr<Worker> worker, std::shared_ptr<Worker::Job> job)
      : worker_(std::move(worker)), job_(std::move(job)) {}
  bool test() override { return worker_->test(*job_); }
  bool wait(int64_t deadline_ns) override { return worker_->wait(*job_, deadline_ns); }

 private:
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Worker::Job> job_;
};

}  // namespace

const char* GlooComm::vendor_lib() { return kLibrary; }

std::string GlooComm::info(const std::string& key) { return key == "library" ? kLibrary : ""; }

// Serves every collective that Gloo has. An average of integers divides the exact sum, but Gloo adds in the elements'
// own type; Gloo has no current reducescatter.
hvd_coll_caps GlooComm::query(const Coll& c) {
  hvd_coll_caps caps{};
  const bool reduces = c.kind() == HVD_ALLREDUCE || c.kind() == HVD_REDUCE;
  if (reduces && c.op() == HVD_AVG && !is_floating(c.dtype())) return caps;
  caps.support = HVD_NATIVE;
  caps.score = 30;
  return caps;
}

GlooComm::GlooComm(const CommInit& init) : Comm(init), settings_(settings()) {
  if (size() == 1) return;
  mesh_ = Mesh::connect(init, &settings_);
  worker_ = std::make_shared<Worker>(mesh_, settings_.timeout_s, init.notify_token);
}

GlooComm::~GlooComm() {
  if (worker_ != nullptr) worker_->stop();
}

void GlooComm::abort() {
  if (worker_ != nullptr) worker_->abort();
}

void GlooComm::async_error() {
  if (worker_ == nullptr) return;
  const Failure failure = worker_->failure();
  if (failure) failure.raise();
}

Work GlooComm::post(const char* what, const Coll& c, Worker::Body body) {
  return Work(std::make_unique<Pending>(worker_, worker_->post(what, c.args().deadline_ns, std::move(body))));
}

// Gloo matches messages by a tag. It holds what all ranks must agree on, so that ranks which do not agree never take
// each other's bytes: their messages do not match, and the operation ends at its deadline.
uint32_t GlooComm::next_tag(const Coll& c, const std::vector<uint64_t>& sizes) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3u;
  };
  mix(++sequence_);
  mix(static_cast<uint64_t>(c.kind()));
  mix(c.kind() == HVD_BARRIER ? 0 : static_cast<uint64_t>(c.dtype()));
  mix(c.kind() == HVD_ALLREDUCE || c.kind() == HVD_REDUCE ? static_cast<uint64_t>(c.op()) : 0);
  mix(c.kind() == HVD_BROADCAST || c.kind() == HVD_REDUCE ? static_cast<uint64_t>(c.args().root) : 0);
  for (const uint64_t n : sizes) mix(n);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

bool GlooComm::use_bcube(uint64_t bytes) const {
  if (settings_.algorithm == "ring" || settings_.algorithm == "bcube") return settings_.algorithm == "bcube";
  return size() >= kBcubeRanks && bytes <= kBcubeBytes;
}

Work GlooComm::allreduce(const Coll& c) {
  const uint64_t n = c.count(0), width = c.element_bytes();
  const uint32_t tag = next_tag(c, {n});
  if (n == 0) return Work::done();
  const Reduction reduction(c, size());
  const void* const in = c.in(0);
  void* const out = c.out(0);
  if (mesh_ == nullptr) {
    copy(out, in, n * width);
    reduction.scale_before(out, n);
    reduction.scale_after(out, n);
    return Work::done();
  }
  return post("allreduce", c, [=, mesh = mesh_, bcube = use_bcube(n * width)]() {
    copy(out, in, n * width);
    reduction.scale_before(out, n);
    ::gloo::AllreduceOptions options(mesh);
    options.setAlgorithm(bcube ? ::gloo::AllreduceOptions::Algorithm::BCUBE
                               : ::gloo::AllreduceOptions::Algorithm::RING);
    set_output(options, out, n, width);
    options.setReduceFunction(reduction.function());
    options.setTag(tag);
    ::gloo::allreduce(options);
    reduction.scale_after(out, n);
  });
}

void GlooComm::check_root(const Coll& c) const {
  if (c.args().root >= 0 && c.args().root < size()) return;
  throw Error(HVD_E_INVALID, "root " + std::to_string(c.args().root) + " is none of the " + std::to_string(size()) +
                                 " ranks of this communicator");
}

Work GlooComm::reduce(const Coll& c) {
  check_root(c);
  const uint64_t n = c.count(0), width = c.element_bytes();
  const uint32_t tag = next_tag(c, {n});
  if (n == 0) return Work::done();
  const Reduction reduction(c, size());
  const bool is_root = rank() == c.args().root;
  const void* const in = c.in(0);
  void* const out = is_root ? c.out(0) : nullptr;
  if (mesh_ == nullptr) {
    copy(out, in, n * width);
    reduction.scale_before(out, n);
    reduction.scale_after(out, n);
    return Work::done();
  }
  return post("reduce", c, [=, mesh = mesh_, root = c.args().root]() {
    // Gloo uses the output as its scratchpad on every rank; only the root's is the caller's.
    std::vector<char> scratch(is_root ? 0 : n * width);
    void* const place = is_root ? out : scratch.data();
    copy(place, in, n * width);
    reduction.scale_before(place, n);
    ::gloo::ReduceOptions options(mesh);
    set_output(options, place, n, width);
    options.setReduceFunction(reduction.function());
    options.setRoot(root);
    options.setTag(tag);
    ::gloo::reduce(options);
    if (is_root) reduction.scale_after(out, n);
  });
}

Work GlooComm::broadcast(const Coll& c) {
  check_root(c);
  const uint64_t bytes = c.count(0) * c.element_bytes();
  const uint32_t tag = next_tag(c, {bytes});
  if (bytes == 0) return Work::done();
  const bool is_root = rank() == c.args().root;
  const void* const in = is_root ? c.in(0) : nullptr;
  char* const out = static_cast<char*>(c.out(0));
  if (mesh_ == nullptr) {
    copy(out, in, bytes);
    return Work::done();
  }
  return post("broadcast", c, [=, mesh = mesh_, root = c.args().root]() {
    if (is_root) copy(out, in, bytes);
    ::gloo::BroadcastOptions options(mesh);
    options.setOutput(out, bytes);
    options.setRoot(root);
    options.setTag(tag);
    ::gloo::broadcast(options);
  });
}

Work GlooComm::allgather(const Coll& c) {
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  std::vector<size_t> parts(ranks);
  uint64_t total = 0, before = 0;
  for (size_t r = 0; r < ranks; ++r) {
    parts[r] = c.out_count(0, static_cast<int32_t>(r), size(), c.count(0)) * c.element_bytes();
    total += parts[r];
    if (r < me) before += parts[r];
  }
  const uint32_t tag = next_tag(c, std::vector<uint64_t>(parts.begin(), parts.end()));
  if (total == 0) return Work::done();
  const void* const in = c.in(0);
  char* const out = static_cast<char*>(c.out(0));
  const uint64_t own = parts[me];
  // In place: this rank's part is already in its place.
  const auto place_own = [=] {
    if (in != out) copy(out + before, in, own);
  };
  if (mesh_ == nullptr) {
    place_own();
    return Work::done();
  }
  return post("allgather", c, [=, mesh = mesh_, parts = std::move(parts)]() {
    place_own();
    ::gloo::AllgathervOptions options(mesh);
    options.setOutput(out, parts);
    options.setTag(tag);
    ::gloo::allgatherv(options);
  });
}

Work GlooComm::alltoall(const Coll& c) {
  const hvd_coll_args& args = c.args();
  const auto ranks = static_cast<size_t>(size());
  const auto parts = [&](const uint64_t* counts) {
    std::vector<int64_t> bytes(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      bytes[r] = static_cast<int64_t>((counts != nullptr ? counts[r] : c.count(0) / ranks) * c.element_bytes());
    }
    return bytes;
  };
  std::vector<int64_t> sent = parts(args.in_counts), received = parts(args.out_counts);
  char* const in = const_cast<char*>(static_cast<const char*>(c.in(0)));  // Gloo does not write there
  char* const out = static_cast<char*>(c.out(0));
  const auto me = static_cast<size_t>(rank());
  if (in == out && c.count(0) > 0) throw Error(HVD_E_UNSUPPORTED, "Gloo has no alltoall in place");
  if (sent[me] != received[me]) {
    throw Error(HVD_E_INVALID, "alltoall: this rank sends itself " + std::to_string(sent[me]) + " bytes and receives " +
                                   std::to_string(received[me]));
  }
  const uint32_t tag = next_tag(c, {c.element_bytes()});
  if (mesh_ == nullptr) {
    copy(out, in, static_cast<uint64_t>(sent[0]));
    return Work::done();
  }
  return post("alltoall", c, [=, mesh = mesh_]() {
    ::gloo::AlltoallvOptions options(mesh);
    options.setInput(in, sent);
    options.setOutput(out, received);
    options.setTag(tag);
    ::gloo::alltoallv(options);
  });
}

Work GlooComm::barrier(const Coll& c) {
  const uint32_t tag = next_tag(c, {});
  if (mesh_ == nullptr) return Work::done();
  return post("barrier", c, [=, mesh = mesh_]() {
    ::gloo::BarrierOptions options(mesh);
    options.setTag(tag);
    ::gloo::barrier(options);
  });
}

}  // namespace hvd::gloo_backend
