// Every collective over a made-up layout of hosts, between threads of one process, over real communicators within the
// "hosts" and between them. Every value is compared with reduction_reference.h, and where all ranks get the same, the
// bits of all ranks with one another.
//
//   hierarchical_test SHM WITHIN BETWEEN all|few HOST_OF_RANK_0 HOST_OF_RANK_1 ...
//
// The first three are libraries named libhvd_backend_NAME.so: for local arithmetic, and for the two levels. What they
// lack is emulated. Prints "passed: N collectives"; a wrong value or an error ends the process with status 1 and a line
// about it.
#include <thread>

#include "hierarchical_rank.h"

namespace {

using namespace hvd;
using hierarchical::Case;

constexpr int32_t kReducing[] = {HVD_UINT8,   HVD_INT8,    HVD_UINT16, HVD_INT16,    HVD_INT32,  HVD_INT64, HVD_FLOAT16,
                                 HVD_FLOAT32, HVD_FLOAT64, HVD_BOOL,   HVD_BFLOAT16, HVD_UINT32, HVD_UINT64};
constexpr int32_t kSome[] = {HVD_FLOAT32, HVD_INT8, HVD_INT64, HVD_FLOAT16};
constexpr int32_t kMoving[] = {HVD_UINT8, HVD_FLOAT32, HVD_INT64, HVD_BFLOAT16, HVD_FLOAT8_E4M3FN};
const std::vector<std::vector<uint64_t>> kSmall = {{0}, {1}, {17}, {1023}, {17, 0, 1023, 1, 300}};
const std::vector<std::vector<uint64_t>> kLarge = {{100000}, {5000, 0, 70001, 3}};

// Counts by buffer and rank, made from counts by buffer; some are 0.
std::vector<uint64_t> by_rank(const std::vector<uint64_t>& counts, size_t ranks) {
  std::vector<uint64_t> all;
  for (size_t i = 0; i < counts.size(); ++i)
    for (size_t r = 0; r < ranks; ++r) all.push_back((r + i) % 3 == 2 ? 0 : counts[i] / (1 + (r + i) % 4) + r % 2);
  return all;
}

class Cases {
 public:
  Cases(size_t ranks, bool few) : ranks_(ranks) {
    if (few) {
      for (int32_t dtype : {HVD_FLOAT32, HVD_INT64, HVD_BFLOAT16}) reductions(dtype, {{17, 0, 1023, 1, 300}});
      for (int32_t dtype : {HVD_FLOAT32, HVD_UINT8}) movements(dtype, {{17, 0, 1023, 1, 300}});
      reductions(HVD_FLOAT32, kLarge);
      add({.coll = HVD_BARRIER, .dtype = HVD_UINT8, .counts = {}});
      return;
    }
    for (int32_t dtype : kReducing) reductions(dtype, kSmall);
    for (int32_t dtype : {HVD_FLOAT32, HVD_FLOAT16, HVD_INT32, HVD_UINT64}) reductions(dtype, kLarge);
    for (int32_t dtype : kMoving) movements(dtype, kSmall);
    for (int32_t dtype : {HVD_UINT8, HVD_FLOAT64}) movements(dtype, kLarge);
    for (int i = 0; i < 40; ++i) add({.coll = HVD_BARRIER, .dtype = HVD_UINT8, .counts = {}});
  }
  std::vector<Case> all;

 private:
  static bool in_some(int32_t dtype) { return std::find(std::begin(kSome), std::end(kSome), dtype) != std::end(kSome); }
  void add(Case c) {
    // Factors and the way through the lanes change from case to case, not in step with one another; some types go
    // both ways with everything.
    constexpr double kFactors[][2] = {{1, 1}, {0.5, 3}, {1, 1}, {1, 0.75}, {2, 1}};
    const auto& f = kFactors[all.size() % 5];
    if (c.dtype != HVD_BOOL) c.pre = f[0], c.post = f[1];
    c.lanes = static_cast<int>(reference::mix(all.size()) % 2);
    all.push_back(c);
    if (!in_some(c.dtype)) return;
    c.lanes = 1 - c.lanes;
    all.push_back(c);
  }
  // With equal parts for all ranks, and with a table.
  void add_parts(Case c) {
    add(c);
    c.counts = by_rank(c.counts, ranks_);
    c.table = true;
    add(c);
  }
  void reductions(int32_t dtype, const std::vector<std::vector<uint64_t>>& lists) {
    for (int32_t op = HVD_SUM; op <= HVD_AVG; ++op) {
      if (op == HVD_AVG && dtype == HVD_BOOL) continue;
      for (const auto& counts : lists) {
        if (counts[0] > 1023 && op != HVD_SUM && op != HVD_AVG) continue;
        for (bool in_place : {false, true})
          add({.coll = HVD_ALLREDUCE, .dtype = dtype, .op = op, .counts = counts, .in_place = in_place});
        add_parts({.coll = HVD_REDUCESCATTER, .dtype = dtype, .op = op, .counts = counts});
        for (size_t root = 0; in_some(dtype) && root < ranks_; ++root)
          add({.coll = HVD_REDUCE, .dtype = dtype, .op = op, .counts = counts, .root = root});
      }
    }
  }
  void movements(int32_t dtype, const std::vector<std::vector<uint64_t>>& lists) {
    for (const auto& counts : lists) {
      for (bool in_place : {false, true}) {
        for (size_t root = 0; root < ranks_; ++root)
          add({.coll = HVD_BROADCAST, .dtype = dtype, .counts = counts, .in_place = in_place, .root = root});
        add_parts({.coll = HVD_ALLGATHER, .dtype = dtype, .counts = counts, .in_place = in_place});
      }
      add_parts({.coll = HVD_ALLTOALL, .dtype = dtype, .counts = counts});
    }
  }
  const size_t ranks_;
};

std::shared_ptr<plugin::Backend> load(const std::string& path) {
  const size_t name = path.rfind("libhvd_backend_") + 15;
  return plugin::Backend::load_library(path, path.substr(name, path.rfind('.') - name));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  hierarchical::Shared shared;
  shared.math = load(argv[1]);
  shared.within = load(argv[2]);
  shared.between = load(argv[3]);
  for (int i = 5; i < argc; ++i) shared.hosts.push_back(std::atoi(argv[i]));
  shared.hashes.resize(shared.hosts.size());
  shared.inputs.resize(shared.hosts.size());
  shared.meet = std::make_unique<std::barrier<>>(static_cast<ptrdiff_t>(shared.hosts.size()));
  const Cases cases(shared.hosts.size(), std::string(argv[4]) == "few");
  std::vector<std::thread> threads;
  for (size_t r = 0; r < shared.hosts.size(); ++r) {
    threads.emplace_back([&shared, &cases, r] {
      try {
        hierarchical::Rank rank(shared, static_cast<int32_t>(r));
        for (const Case& c : cases.all) rank.run(c);
        rank.measure(100000);
        rank.refuses();
      } catch (const std::exception& e) {
        hierarchical::fail("rank " + std::to_string(r) + ": " + e.what());
      }
    });
  }
  for (auto& t : threads) t.join();
  std::printf("passed: %zu collectives\n", cases.all.size());
}
