// One rank of hierarchical_test.cc: a thread with its communicators, which runs cases and checks what comes out. A
// wrong value or an error ends the process with status 1 and a line about it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/dataplane/direct.h"
#include "engine/dataplane/emulated.h"
#include "engine/dataplane/hierarchical.h"
#include "reduction_reference.h"

namespace hierarchical {

using namespace hvd;
using plugins::Collective;

constexpr int64_t kDeadline = HVD_NO_DEADLINE - 7;  // no deadline in effect, but recognisable
constexpr char kGuard = 0x5a;
constexpr size_t kGuardBytes = 32;

[[noreturn]] inline void fail(const std::string& text) {
  std::printf("failed: %s\n", text.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

class MapStore final : public plugins::Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, int64_t) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_.contains(key); });
    return values_[key];
  }
  int64_t add(const std::string& key, int64_t delta) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += delta;
  }
  void del(const std::string& key) override {
    std::lock_guard lock(mutex_);
    values_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

// Passes everything on, as the engine would, looks at what every step must carry, and adds up what an operation gives
// it.
class Watched final : public dataplane::Lowering {
 public:
  Watched(plugins::Communicator& comm, const dataplane::HostMath& math)
      : direct_(comm), emulated_(direct_, comm, math) {}
  void write_steps(dataplane::Schedule& schedule, const Collective& c) override {
    if (c.deadline_ns != kDeadline || c.seq != seq) fail("a step has another deadline or number than its operation");
    ++steps;
    for (uint64_t n : c.counts) elements += n;
    emulated_.write_steps(schedule, c);
  }
  int32_t rank() const override { return direct_.rank(); }
  int32_t size() const override { return direct_.size(); }

  uint64_t seq = 0, steps = 0, elements = 0;

 private:
  dataplane::DirectLowering direct_;
  dataplane::EmulatedLowering emulated_;  // a DirectLowering where the communicator serves the collective
};

struct Shared {
  std::shared_ptr<plugins::Backend> math, within, between;
  MapStore store;
  std::vector<int32_t> hosts;  // by rank
  std::vector<uint64_t> hashes;
  std::vector<std::vector<std::vector<char>>> inputs;  // of the present case: by rank and buffer, made by the rank
  std::unique_ptr<std::barrier<>> meet;
  std::atomic<uint64_t> arrived{0}, carried{0};
};

struct Case {
  int32_t coll, dtype, op = HVD_SUM;
  std::vector<uint64_t> counts;  // per buffer, or per buffer and rank (see table)
  bool in_place = false, table = false;
  size_t root = 0;
  double pre = 1.0, post = 1.0;
  size_t lanes = 0;  // which of the two lowerings

  std::string text() const {
    std::string s = "collective " + std::to_string(coll) + " dtype " + std::to_string(dtype) + " op " +
                    std::to_string(op) + " root " + std::to_string(root) + " pre " + std::to_string(pre) + " post " +
                    std::to_string(post) + (in_place ? " in place" : "") + (table ? " v" : "") +
                    (lanes ? " all lanes" : " default lanes") + " counts";
    for (uint64_t n : counts) s += " " + std::to_string(n);
    return s;
  }
};

class Rank {
 public:
  Rank(Shared& shared, int32_t rank) : shared_(shared), rank_(static_cast<size_t>(rank)) {
    std::vector<int32_t> world;
    for (size_t r = 0; r < shared.hosts.size(); ++r) world.push_back(static_cast<int32_t>(r));
    layout_ = dataplane::make_layout(world, shared.hosts, rank);
    size_ = world.size();
    if (layout_.neighbours().size() > 1)
      local_ = join(*shared.within, "local" + std::to_string(layout_.my_host()), layout_.neighbours());
    if (layout_.my_local() < layout_.lanes && layout_.host_count() > 1) {
      std::vector<int32_t> lane;
      for (const auto& host : layout_.hosts) lane.push_back(host[static_cast<size_t>(layout_.my_local())]);
      cross_ = join(*shared.between, "cross" + std::to_string(layout_.my_local()), lane);
    }
    for (auto* comm : {&local_, &cross_})
      watched_.push_back(*comm ? std::make_unique<Watched>(**comm, math_) : nullptr);
    // The second one uses all lanes for all sizes, and overlaps the levels of all but the smallest allreduces.
    for (const auto& [lane_bytes, chunk_bytes] :
         {std::pair{dataplane::HierarchicalLowering::kSingleLaneBytes, uint64_t{0}},
          std::pair{uint64_t{0}, uint64_t{1000}}})
      lowerings_.push_back(std::make_unique<dataplane::HierarchicalLowering>(
          layout_, watched_[0].get(), watched_[1].get(), math_,
          dataplane::HierarchicalLowering::Settings{lane_bytes, chunk_bytes, "LEVELS"}));
  }

  void run(const Case& k) {
    case_ = &k;
    ++number_;
    in_.clear(), out_.clear(), collective_ = {};
    shared_.inputs[rank_].clear();
    auto& c = collective_;
    c.coll = k.coll, c.dtype = k.dtype, c.op = k.op;
    c.root = static_cast<int32_t>(k.root);
    c.prescale = k.pre, c.postscale = k.post;
    c.deadline_ns = kDeadline, c.seq = number_;
    buffers_ = k.table ? k.counts.size() / size_ : k.counts.size();
    if (k.coll == HVD_BARRIER) return barrier();
    for (size_t i = 0; i < buffers_; ++i) add_buffer(i);
    complete(k.lanes);
    // Which rank compares with the reference changes; that all have the same is looked at every time.
    uint64_t& hash = shared_.hashes[rank_] = 0;
    for (size_t i = 0; same_for_all() && i < buffers_; ++i) hash = hash_of(out_[i], hash);
    shared_.meet->arrive_and_wait();  // now the inputs and hashes of all ranks can be read
    for (size_t i = 0; i < buffers_; ++i) check(i);
    if (hash != shared_.hashes[0]) wrong("other bits than rank 0");
    shared_.meet->arrive_and_wait();
  }

  void refuses() {
    for (const auto& [coll, dtype, op] :
         {std::array<int32_t, 3>{HVD_ALLREDUCE, HVD_BOOL, HVD_AVG}, {HVD_SEND, HVD_INT32, 0}}) {
      Collective c;
      c.coll = coll, c.dtype = dtype, c.op = op, c.deadline_ns = kDeadline, c.seq = number_;
      char data[16] = {};
      c.in = c.out = {{data, 0, 4}};
      c.counts = {1};
      try {
        for (auto* w : {watched_[0].get(), watched_[1].get()})
          if (w) w->seq = number_;
        lowerings_[0]->write_steps(schedule_, c);
        fail("no refusal of collective " + std::to_string(coll));
      } catch (const plugins::BackendError&) {
        schedule_.clear();
      }
    }
  }

  // What crosses hosts in an allreduce of `n` elements, by all lanes.
  void measure(uint64_t n) {
    for (auto& w : watched_)
      if (w) w->elements = 0;
    run({.coll = HVD_ALLREDUCE, .dtype = HVD_FLOAT32, .counts = {n}, .in_place = true});
    if (watched_[1]) shared_.carried += watched_[1]->elements;
    shared_.meet->arrive_and_wait();
    if (layout_.host_count() > 1 && shared_.carried != n * layout_.hosts.size())
      fail("the lanes exchanged " + std::to_string(shared_.carried) + " elements");
    if (watched_[1] && watched_[1]->elements > n / static_cast<uint64_t>(layout_.lanes) + 64 * size_)
      fail("one lane carries more than its part: " + std::to_string(watched_[1]->elements));
  }

 private:
  std::unique_ptr<plugins::Communicator> join(plugins::Backend& backend, const std::string& key,
                                              const std::vector<int32_t>& ranks) {
    int32_t me = 0;
    while (ranks[static_cast<size_t>(me)] != static_cast<int32_t>(rank_)) ++me;
    return backend.create_comm(key, shared_.store, ranks, std::vector<int32_t>(ranks.size(), 0), me, 0);
  }

  bool reduces() const {
    return case_->coll == HVD_ALLREDUCE || case_->coll == HVD_REDUCE || case_->coll == HVD_REDUCESCATTER;
  }
  bool same_for_all() const {
    return case_->coll == HVD_ALLREDUCE || case_->coll == HVD_BROADCAST || case_->coll == HVD_ALLGATHER;
  }
  uint64_t width() const { return base::dtype_bytes(case_->dtype); }
  // Elements of buffer i: of rank r (allgather: from; reducescatter: to), or from s to r (alltoall).
  uint64_t part(size_t i, size_t r) const { return case_->table ? case_->counts[i * size_ + r] : case_->counts[i]; }
  uint64_t part(size_t i, size_t s, size_t r) const {
    return case_->table ? case_->counts[i * size_ + (s * 3 + r) % size_] : case_->counts[i];
  }
  std::vector<char> own_input(size_t i) const {
    uint64_t n = case_->counts[i];
    if (case_->coll == HVD_ALLGATHER) n = part(i, rank_);
    if (case_->coll == HVD_REDUCESCATTER || case_->coll == HVD_ALLTOALL) {
      n = 0;
      for (size_t d = 0; d < size_; ++d) n += case_->coll == HVD_ALLTOALL ? part(i, rank_, d) : part(i, d);
    }
    return reference::data(number_, rank_, i, n, case_->dtype, reduces());
  }
  // What rank r gave as buffer i, untouched.
  const std::vector<char>& input(size_t r, size_t i) const { return shared_.inputs[r][i]; }
  // A hash of what an operation has written between the guards of a buffer.
  static uint64_t hash_of(const std::vector<char>& out, uint64_t hash) {
    const char* const end = out.data() + out.size() - kGuardBytes;
    for (const char* p = out.data() + kGuardBytes; p < end; p += sizeof hash) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, p, std::min(sizeof bytes, static_cast<size_t>(end - p)));
      hash = reference::mix(hash ^ bytes) + 1;
    }
    return hash;
  }

  void add_buffer(size_t i) {
    auto& c = collective_;
    in_.push_back(own_input(i));
    shared_.inputs[rank_].push_back(in_[i]);
    const uint64_t n = in_[i].size() / width();
    uint64_t result = n;
    if (case_->coll == HVD_ALLGATHER || case_->coll == HVD_ALLTOALL) {
      result = 0;
      for (size_t r = 0; r < size_; ++r) {
        const uint64_t m = case_->coll == HVD_ALLGATHER ? part(i, r) : part(i, r, rank_);
        if (case_->table) c.out_counts.push_back(m);
        if (case_->table && case_->coll == HVD_ALLTOALL) c.in_counts.push_back(part(i, rank_, r));
        result += m;
      }
    } else if (case_->coll == HVD_REDUCESCATTER) {
      result = part(i, rank_);
      for (size_t r = 0; case_->table && r < size_; ++r) c.out_counts.push_back(part(i, r));
    }
    // Guarded on both sides; a base is not where the data begin.
    out_.emplace_back(result * width() + 2 * kGuardBytes, kGuard);
    c.counts.push_back(n);
    c.out.push_back({out_[i].data(), kGuardBytes, result * width()});
    c.in.push_back({in_[i].data(), 0, in_[i].size()});
    if (!case_->in_place) return;
    uint64_t at = kGuardBytes;
    for (size_t r = 0; case_->coll == HVD_ALLGATHER && r < rank_; ++r) at += part(i, r) * width();
    std::copy(in_[i].begin(), in_[i].end(), out_[i].begin() + static_cast<ptrdiff_t>(at));
    c.in[i] = c.out[i];
  }

  void complete(size_t lanes) {
    for (auto& w : watched_)
      if (w) w->seq = number_;
    lowerings_[lanes]->write_steps(schedule_, collective_);
    while (!schedule_.advance())
      if (schedule_.in_flight()) schedule_.wait(HVD_NO_DEADLINE);
    schedule_.clear();
  }

  [[noreturn]] void wrong(const std::string& what) {
    fail("rank " + std::to_string(rank_) + ": " + case_->text() + ": " + what);
  }

  void check(size_t i) {
    const auto& out = out_[i];
    for (size_t g = 0; g < kGuardBytes; ++g)
      if (out[g] != kGuard || out[out.size() - 1 - g] != kGuard) wrong("written outside buffer " + std::to_string(i));
    if (!case_->in_place && in_[i] != input(rank_, i)) wrong("the input was written to");
    if (case_->coll == HVD_REDUCE && rank_ != case_->root) return;
    if (same_for_all() && number_ % size_ != rank_) return;
    const char* got = out.data() + kGuardBytes;
    const char* const end = out.data() + out.size() - kGuardBytes;
    if (reduces()) return check_reduction(i, got, end);
    for (size_t r = 0; r < size_; ++r) {
      if (case_->coll == HVD_BROADCAST && r != case_->root) continue;
      const auto& from = input(r, i);
      uint64_t at = 0, n = from.size();
      if (case_->coll == HVD_ALLTOALL) {
        for (size_t d = 0; d < rank_; ++d) at += part(i, r, d) * width();
        n = part(i, r, rank_) * width();
      }
      const bool fits = n <= static_cast<uint64_t>(end - got);
      if (!fits || (n && std::memcmp(got, from.data() + at, n) != 0))
        wrong("wrong bytes in buffer " + std::to_string(i));
      got += n;
    }
    if (got != end) wrong("a result of another size in buffer " + std::to_string(i));
  }

  void check_reduction(size_t i, const char* got, const char* end) {
    uint64_t at = 0;
    for (size_t r = 0; case_->coll == HVD_REDUCESCATTER && r < rank_; ++r) at += part(i, r) * width();
    std::vector<const char*> from(size_);
    for (size_t r = 0; r < size_; ++r) from[r] = input(r, i).data() + at;
    const uint64_t n = static_cast<uint64_t>(end - got) / width();
    const uint64_t wrong_one = reference::first_wrong(got, from, n, case_->dtype, case_->op, case_->pre, case_->post);
    if (wrong_one < n) wrong("wrong value at element " + std::to_string(wrong_one) + " of buffer " + std::to_string(i));
  }

  void barrier() {
    const uint64_t before = shared_.arrived.fetch_add(1) / size_ * size_;
    complete(case_->lanes);
    if (shared_.arrived < before + size_) wrong("left before all had come");
    shared_.meet->arrive_and_wait();
  }

  Shared& shared_;
  const size_t rank_;
  size_t size_ = 0, buffers_ = 0;
  dataplane::Layout layout_;
  std::unique_ptr<plugins::Communicator> local_, cross_;
  dataplane::HostMath math_{shared_.math};
  std::vector<std::unique_ptr<Watched>> watched_;  // local, cross
  std::vector<std::unique_ptr<dataplane::HierarchicalLowering>> lowerings_;
  dataplane::Schedule schedule_;
  const Case* case_ = nullptr;
  uint64_t number_ = 0;
  Collective collective_;
  std::vector<std::vector<char>> in_, out_;
};

}  // namespace hierarchical
