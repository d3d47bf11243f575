// EmulatedLowering and DirectLowering over backends that lack collectives, types or reductions, compared with the shm
// backend, which has them all: every collective, type and reduction must give the same bits. Ranks are threads.
//
//   emulated_test path/to/libhvd_backend_shm.so path/to/libminimal.so [seed [most_ranks]]
//
// With up to three ranks, each reduction of a type has one shape for each number of ranks; with more, several.
#include "engine/dataplane/emulated.h"

#include <cstdlib>
#include <set>

#include "collective_cases.h"
#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/dataplane/direct.h"
#include "masked_backend.h"

using namespace hvd;
using dataplane::Schedule;
using plugins::Collective;
using test::Buffers;
using test::Case;
using test::make;
using test::run;
using test::same;

namespace {

std::shared_ptr<plugins::Backend> shm_backend;
uint64_t cases = 0;

struct Setup {
  std::string name;
  std::shared_ptr<plugins::Backend> backend;
  uint64_t scratch = 64 << 20;
  uint64_t max_count = 0;
  bool complete = true;  // everything but reductions that do not exist must work
};

bool exists(const Case& x) { return !base::has_reduction(x.coll) || base::is_reducible(x.dtype, x.op); }

// One rank's data for each case, and the results of the shm backend.
struct Reference {
  std::vector<Buffers> inputs, results;
};

Reference make_reference(test::MapStore& store, const std::vector<Case>& list, int rank, int size, uint64_t seed) {
  const auto comm = test::join_comm(*shm_backend, store, "reference", rank, size);
  const dataplane::HostMath math(shm_backend);
  dataplane::DirectLowering whole(*comm);
  Schedule schedule;
  Reference made;
  for (const Case& x : list) {
    made.inputs.push_back(make(x, rank, size, math, seed + made.inputs.size()));
    made.results.push_back(test::copy(made.inputs.back()));
    if (!exists(x)) continue;
    whole.write_steps(schedule, made.results.back().c);
    run(schedule);
    schedule.clear();
  }
  return made;
}

void run_setup(const Setup& setup, const std::vector<Case>& list, const std::vector<Reference>& references) {
  test::MapStore store;
  const int size = static_cast<int>(references.size());
  const std::string where = setup.name + " on " + std::to_string(size) + ": ";
  test::on_ranks(size, [&](int rank) {
    const Reference& reference = references[static_cast<size_t>(rank)];
    const auto comm = test::join_comm(*setup.backend, store, "minimal", rank, size);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering direct(*comm);
    dataplane::EmulationPolicy policy;
    policy.scratch_bytes = setup.scratch;
    dataplane::EmulatedLowering emulated(direct, *comm, math, policy);
    Schedule schedule;
    for (size_t k = 0; k < list.size(); ++k) {
      const Case& x = list[k];
      // Hundreds of calls show what thousands would.
      if (setup.max_count > 0 && !x.counts.empty() && x.counts[0] > 400 * setup.max_count) continue;
      Buffers got = test::copy(reference.inputs[k]);
      std::string refused;
      try {
        emulated.write_steps(schedule, got.c);
        run(schedule);
      } catch (const plugins::BackendError& e) {
        if (e.code != HVD_E_UNSUPPORTED) throw;
        refused = e.what();
      }
      schedule.clear();
      if (!exists(x) || !setup.complete) {
        const auto service = emulated.served(x.coll, x.dtype, x.op, x.varying);
        const bool said = service.service == dataplane::Service::Unsupported;
        test::check(said == !refused.empty(), where + x.text() + ": service() and write_steps() differ; " + refused);
        if (!exists(x)) test::check(!refused.empty(), where + x.text() + " was not refused");
        if (!refused.empty()) continue;
      }
      if (!refused.empty()) {
        test::check(false, where + x.text() + ": refused: " + refused);
        continue;
      }
      if (!same(x, reference.results[k], got, rank))
        test::check(false, where + "rank " + std::to_string(rank) + ": " + x.text());
      if (rank == 0) ++cases;
    }
  });
}

// Every collective, type and reduction over every backend; several times where there are three ranks.
void run_setups(const std::vector<Setup>& setups, int size, uint64_t seed, bool thorough) {
  const auto list = test::make_cases(size, seed, thorough && size == 3 ? 3 : 1, size == 3 ? 3 : 1);
  std::vector<Reference> references(static_cast<size_t>(size));
  test::MapStore store;
  test::on_ranks(
      size, [&](int rank) { references[static_cast<size_t>(rank)] = make_reference(store, list, rank, size, seed); });
  for (const Setup& s : setups) run_setup(s, list, references);
}

template <int N, class Serves>
Setup masked(const char* shm_library, const std::string& name, Serves serves, uint64_t more_caps = 0,
             uint32_t alignment = 1, uint64_t max_count = 0) {
  using B = test::MaskedBackend<N>;
  B::open(shm_library);
  B::mask.name = name;
  B::mask.caps |= more_caps;
  B::mask.serves = serves;
  B::mask.alignment = alignment;
  B::mask.max_count = max_count;
  return {.name = name, .backend = plugins::Backend::load_entry(&B::entry, name, "this test"), .max_count = max_count};
}

// A list of allgathers: how many groups does it take?
template <int N>
void groups(const Setup& setup, int expected) {
  auto& mask = test::MaskedBackend<N>::mask;
  mask.groups = mask.grouped = 0;
  test::MapStore store;
  test::on_ranks(2, [&](int rank) {
    const auto comm = test::join_comm(*setup.backend, store, "groups", rank, 2);
    dataplane::DirectLowering direct(*comm);
    Schedule schedule;
    std::vector<float> words(12, static_cast<float>(rank)), all(24);
    Collective c;
    c.coll = HVD_ALLGATHER;
    c.dtype = HVD_FLOAT32;
    for (size_t i = 0; i < words.size(); ++i) {
      c.in.push_back({&words[i], 0, 4});
      c.out.push_back({&all[2 * i], 0, 8});
      c.counts.push_back(1);
    }
    direct.write_steps(schedule, c);
    run(schedule);
    for (size_t i = 0; i < all.size(); ++i) test::check(all[i] == static_cast<float>(i % 2), "a member of a group");
  });
  test::check(mask.groups == expected, setup.name + ": " + std::to_string(mask.groups) + " groups");
}

// Messages, and the reported services of a backend.
void words(const Setup& minimal) {
  test::MapStore store;
  const auto comm = test::join_comm(*minimal.backend, store, "words", 0, 1);
  const dataplane::HostMath math(shm_backend);
  dataplane::DirectLowering direct(*comm);
  dataplane::EmulationPolicy off;
  off.allowed = false;
  dataplane::EmulatedLowering emulated(direct, *comm, math), forbidden(direct, *comm, math, off);
  using dataplane::Service;
  test::check(emulated.served(HVD_ALLREDUCE, HVD_FLOAT32, HVD_SUM).service == Service::Native, "native");
  const auto gathered = emulated.served(HVD_ALLREDUCE, HVD_INT64, HVD_SUM);
  test::check(gathered.service == Service::Emulated && gathered.how == "allgather + local reduction", gathered.how);
  const auto as_bytes = emulated.served(HVD_BROADCAST, HVD_INT64, HVD_SUM);
  test::check(as_bytes.how == "moving its bytes as float32", as_bytes.how);
  test::check(emulated.served(HVD_ALLREDUCE, HVD_FLOAT32, HVD_AVG).how == "sum + local division", "average");
  test::check(emulated.served(HVD_ALLTOALL, HVD_UINT8, HVD_SUM).how == "allgather", "alltoall");
  test::check(emulated.served(HVD_BARRIER, 0, 0).how == "allreduce", "barrier");
  test::check(emulated.served(HVD_SEND, HVD_FLOAT32, 0).service == Service::Unsupported, "send");
  test::check(emulated.served(HVD_ALLREDUCE, HVD_FLOAT8_E5M2, HVD_SUM).service == Service::Unsupported, "float8");
  test::check(forbidden.served(HVD_ALLREDUCE, HVD_INT64, HVD_SUM).service == Service::Unsupported, "forbidden");
  Schedule schedule;
  int64_t value = 3;
  Collective c;
  c.coll = HVD_ALLREDUCE;
  c.dtype = HVD_INT64;
  c.in = c.out = {{&value, 0, 8}};
  c.counts = {1};
  std::string text = test::thrown([&] { forbidden.write_steps(schedule, c); });
  test::check(text ==
                  "UNSUPPORTED horovod: allreduce of int64 on cpu is not supported by backend 'minimal' and emulation "
                  "is off (HOROVOD_EMULATION=0).\n  fix: HOROVOD_EMULATION=1, HOROVOD_BACKEND=cpu.allreduce="
                  "<another backend>, or cast.  No automatic narrowing is done.",
              text);
  c.dtype = HVD_FLOAT8_E5M2;
  text = test::thrown([&] { emulated.write_steps(schedule, c); });
  test::check(test::contains(text, "this reduction of float8_e5m2 does not exist on host memory"), text);
}

// The log lines, in a file that replaces stderr: each once, and from rank 0 alone.
void said_once(const Setup& minimal) {
  std::fflush(stderr);
  const int saved = dup(2);
  FILE* file = std::tmpfile();
  dup2(fileno(file), 2);
  base::set_log(base::Level::Info, false, -1);
  test::MapStore store;
  test::on_ranks(2, [&](int rank) {
    const auto comm = test::join_comm(*minimal.backend, store, "once", rank, 2);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering direct(*comm);
    dataplane::EmulationPolicy policy;
    dataplane::EmulatedLowering first(direct, *comm, math, policy), second(direct, *comm, math, policy);
    Schedule schedule;
    for (int k = 0; k < 4; ++k) {
      int64_t value = 1 + rank;
      Collective c;
      c.coll = k < 3 ? HVD_ALLREDUCE : HVD_BROADCAST;
      c.dtype = HVD_INT64;
      c.in = c.out = {{&value, 0, 8}};
      c.counts = {1};
      (k == 1 ? second : first).write_steps(schedule, c);
      run(schedule);
      schedule.clear();
    }
  });
  base::set_log(base::Level::Error, false, -1);
  dup2(saved, 2);
  close(saved);
  std::rewind(file);
  char text[4096];
  const size_t n = std::fread(text, 1, sizeof text - 1, file);
  text[n] = 0;
  std::fclose(file);
  const std::string warning =
      "horovod WARNING: allreduce of int64 on cpu: backend 'minimal' has no int64; EMULATED by allgather + local "
      "reduction "
      "(said once).\n";
  const std::string info =
      "horovod INFO: broadcast of int64 on cpu: backend 'minimal' has no int64; EMULATED by moving its bytes as "
      "float32 "
      "(said once).\n";
  test::check(text == warning + info, std::string("said: ") + text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  base::set_log(base::Level::Error, false, -1);
  const char* const shm = argv[1];
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const int most_ranks = argc > 4 ? std::atoi(argv[4]) : 4;
  shm_backend = plugins::Backend::load_library(shm, "shm");
  const uint64_t lists = HVD_CAP_VECTORED;
  std::vector<Setup> setups;
  setups.push_back({.name = "minimal", .backend = plugins::Backend::load_library(argv[2], "minimal")});
  setups.push_back(
      masked<0>(shm, "gather_u8", [](int c, int t, int, bool v) { return c == HVD_ALLGATHER && t == HVD_UINT8 && v; }));
  setups.push_back(masked<1>(
      shm, "gather_f64",
      [](int c, int t, int, bool v) {
        return c == HVD_ALLGATHER && t == HVD_FLOAT64 && !v;  // one size only
      },
      lists, 32));
  setups.push_back(masked<2>(
      shm, "sums",
      [](int c, int t, int op, bool) {
        if (c == HVD_ALLREDUCE) return op == HVD_SUM && t != HVD_INT8 && t != HVD_FLOAT16 && t != HVD_BOOL;
        return (c == HVD_BROADCAST || c == HVD_ALLGATHER) && t == HVD_INT16;
      },
      lists));
  setups.push_back(masked<3>(
      shm, "exchange",
      [](int c, int t, int, bool v) { return (c == HVD_ALLGATHER || c == HVD_ALLTOALL) && t == HVD_INT32 && v; },
      lists));
  setups.push_back(masked<4>(
      shm, "limited",
      [](int c, int t, int, bool) {
        if (c == HVD_ALLREDUCE || c == HVD_ALLGATHER) return t == HVD_FLOAT32;
        return c == HVD_ALLTOALL && t == HVD_UINT8;
      },
      0, 64, 40));
  setups.push_back(masked<5>(shm, "all_limited", [](int, int, int, bool) { return true; }, lists, 16, 7));
  setups.push_back(masked<6>(shm, "all_single", [](int, int, int, bool) { return true; }));
  setups.push_back(masked<7>(shm, "all_groups", [](int, int, int, bool) { return true; }, HVD_CAP_GROUP_SAME));
  setups.push_back(masked<8>(shm, "all_mixed", [](int, int, int, bool) { return true; }, HVD_CAP_GROUP_MIXED));
  setups.push_back(masked<9>(shm, "wide", [](int c, int t, int op, bool) {
    if (c == HVD_ALLREDUCE) return (t == HVD_FLOAT64 && op != HVD_PROD) || (t == HVD_INT64 && op == HVD_PROD);
    return false;  // no movement at all: reductions of wider types are all that is left
  }));
  // Floats do not hold all products, unsigned types no negative numbers.
  setups.push_back(
      masked<10>(shm, "wide_float", [](int c, int t, int, bool) { return c == HVD_ALLREDUCE && t == HVD_FLOAT64; }));
  setups.push_back(
      masked<11>(shm, "wide_unsigned", [](int c, int t, int, bool) { return c == HVD_ALLREDUCE && t == HVD_UINT64; }));
  for (Setup& s : setups) {
    if (s.name.substr(0, 4) == "wide") s.complete = false;
    if (s.name != "minimal" && s.name != "all_single") s.scratch = 1 << 12;
  }
  for (int size = 1; size <= most_ranks; ++size)
    run_setups(setups, size, seed * 1000 + static_cast<uint64_t>(size), most_ranks > 3);
  groups<7>(setups[8], 1);
  groups<8>(setups[9], 1);
  groups<6>(setups[7], 0);
  words(setups[0]);
  said_once(setups[0]);
  std::printf("%llu collectives compared\n", static_cast<unsigned long long>(cases));
  return test::verdict();
}
