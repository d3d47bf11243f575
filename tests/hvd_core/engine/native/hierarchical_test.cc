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

using Types = std::vector<int32_t>;
using Lists = std::vector<std::vector<uint64_t>>;

const Types kReducing = {HVD_UINT8,   HVD_INT8,    HVD_UINT16, HVD_INT16,    HVD_INT32,  HVD_INT64, HVD_FLOAT16,
                         HVD_FLOAT32, HVD_FLOAT64, HVD_BOOL,   HVD_BFLOAT16, HVD_UINT32, HVD_UINT64};
const Types kMoving = {HVD_UINT8, HVD_FLOAT32, HVD_INT64, HVD_BFLOAT16, HVD_FLOAT8_E4M3FN};
const Lists kSmall = {{0}, {1}, {17}, {1023}, {17, 0, 1023, 1, 300}};
const Lists kSeveral = {{17, 0, 1023, 1, 300}};
// More than HierarchicalLowering::kSingleLaneBytes of every type that they are used with.
const Lists kLarge = {{40000}, {5000, 0, 35001, 3}};

// Counts by buffer and rank, made from counts by buffer; some are 0.
std::vector<uint64_t> by_rank(const std::vector<uint64_t>& counts, size_t ranks) {
  std::vector<uint64_t> all;
  for (size_t i = 0; i < counts.size(); ++i)
    for (size_t r = 0; r < ranks; ++r) all.push_back((r + i) % 3 == 2 ? 0 : counts[i] / (1 + (r + i) % 4) + r % 2);
  return all;
}

// Every collective, in place or not, with equal parts or a table, takes every type, and each of them every operation.
// The rest goes round: lists of counts, factors, the way through the lanes, roots. Their steps differ, so that nearly
// every two of them meet, and each meets every type, operation and collective.
class Cases {
 public:
  Cases(size_t ranks, bool few) : ranks_(ranks) {
    const std::vector<int32_t> every{HVD_SUM, HVD_PROD, HVD_MIN, HVD_MAX, HVD_AVG}, summing{HVD_SUM, HVD_AVG};
    if (few) {
      reductions({HVD_FLOAT32, HVD_INT64, HVD_BFLOAT16}, every, kSeveral);
      movements({HVD_FLOAT32, HVD_UINT8}, kSeveral);
      reductions({HVD_FLOAT32}, summing, kLarge);
      add({.coll = HVD_BARRIER, .dtype = HVD_UINT8, .counts = {}});
      return;
    }
    reductions(kReducing, every, kSmall);
    reductions({HVD_FLOAT32, HVD_FLOAT16, HVD_INT32, HVD_UINT64}, summing, kLarge);
    movements(kMoving, kSmall);
    movements({HVD_UINT8, HVD_FLOAT64}, kLarge);
    for (size_t i = 0; i < 40; ++i) add({.coll = HVD_BARRIER, .dtype = HVD_UINT8, .counts = {}, .lanes = i % 2});
  }
  std::vector<Case> all;

 private:
  void add(Case c) {
    if (c.table) c.counts = by_rank(c.counts, ranks_);
    all.push_back(c);
  }
  void reductions(const Types& types, const std::vector<int32_t>& ops, const Lists& lists) {
    constexpr double kFactors[][2] = {{1, 1}, {0.5, 3}, {1, 1}, {1, 0.75}, {2, 1}};
    for (size_t t = 0; t < types.size(); ++t) {
      for (size_t o = 0; o < ops.size(); ++o) {
        if (ops[o] == HVD_AVG && types[t] == HVD_BOOL) continue;
        // From v = 4 on, reduce with root v - 4: with every root for some of the types, with one for each other.
        for (size_t v = 0; v < 4 + ranks_; ++v) {
          if (v >= 4 && t % 3 > 0 && v - 4 != (t + 2 * o) % ranks_) continue;
          Case c{.coll = v < 2   ? HVD_ALLREDUCE
                         : v < 4 ? HVD_REDUCESCATTER
                                 : HVD_REDUCE,
                 .dtype = types[t],
                 .op = ops[o],
                 .counts = lists[(t + o + v) % lists.size()],
                 .in_place = v == 1,
                 .table = v == 3,
                 .lanes = (t / lists.size() + o + v / 2) % 2};
          if (v >= 4) c.root = v - 4;
          const auto& f = kFactors[(3 * t + 2 * o + v) % 5];
          if (c.dtype != HVD_BOOL) c.pre = f[0], c.post = f[1];
          add(c);
        }
      }
    }
  }
  void movements(const Types& types, const Lists& lists) {
    for (size_t l = 0; l < lists.size(); ++l) {
      for (size_t v = 0; v < 6; ++v) {
        for (size_t lane = 0; lane < 2; ++lane) {
          add({.coll = v < 4 ? HVD_ALLGATHER : HVD_ALLTOALL,
               .dtype = types[(v + l + lane) % types.size()],
               .counts = lists[l],
               .in_place = v == 1 || v == 3,
               .table = v == 2 || v == 3 || v == 5,
               .lanes = lane});
        }
      }
      for (size_t root = 0; root < ranks_; ++root) {
        for (size_t in_place = 0; in_place < 2; ++in_place) {
          add({.coll = HVD_BROADCAST,
               .dtype = types[(root / 2 + 2 * l + in_place) % types.size()],
               .counts = lists[l],
               .in_place = in_place > 0,
               .root = root,
               .lanes = (root + l + in_place) % 2});
        }
      }
    }
  }
  const size_t ranks_;
};

std::shared_ptr<plugins::Backend> load(const std::string& path) {
  const size_t name = path.rfind("libhvd_backend_") + 15;
  return plugins::Backend::load_library(path, path.substr(name, path.rfind('.') - name));
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
