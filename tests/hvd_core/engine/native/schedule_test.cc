// The steps that the lowerings write for small collectives: how many, in which order, with which buffers. And how a
// schedule runs its steps. No data move: the communicators only record.
//
//   schedule_test path/to/libhvd_backend_shm.so
#include "engine/dataplane/schedule.h"

#include <cstdlib>
#include <map>
#include <new>

#include "../../../abi/support.h"
#include "engine/dataplane/direct.h"
#include "engine/dataplane/emulated.h"
#include "engine/dataplane/hierarchical.h"
#include "recording_backend.h"

using namespace hvd;
using dataplane::Schedule;
using plugins::Collective;
using test::check;
using test::RecordingComm;

namespace {
uint64_t allocations = 0;
}

// Not inlined: GCC takes the pair for a mismatch where it expands one of the two into its caller.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

alignas(64) char memory[1 << 20];

// A collective whose buffers are parts of `memory`, one after the other, each at a multiple of 64 bytes, plus `shift`.
Collective collective(int32_t coll, const std::vector<uint64_t>& counts, int32_t dtype = HVD_FLOAT32,
                      uint64_t shift = 0, int32_t ranks = 1) {
  Collective c;
  c.coll = coll;
  c.dtype = dtype;
  uint64_t at = shift;
  for (uint64_t n : counts) {
    const uint64_t bytes = n * base::dtype_bytes(dtype), out = bytes * static_cast<uint64_t>(ranks);
    c.in.push_back({memory + at, 0, bytes});
    at += (bytes + 63) / 64 * 64;
    c.out.push_back({memory + at, 0, out});
    at += (out + 63) / 64 * 64;
    c.counts.push_back(n);
  }
  return c;
}

void expect(dataplane::Lowering& lowering, const Collective& c, const std::string& steps, const std::string& what) {
  Schedule schedule;
  lowering.write_steps(schedule, c);
  const std::string found = test::text_of(schedule);
  check(found == steps, what + ":\n  expected " + steps + "\n  found    " + found);
}

// ---------------------------------------------------------------------------------------------------- DirectLowering

void direct_lists() {
  RecordingComm lists("b", 0, 3, HVD_CAP_VECTORED), single("b", 0, 3, 0);
  dataplane::DirectLowering takes_lists(lists.comm()), takes_one(single.comm());
  expect(takes_lists, collective(HVD_ALLREDUCE, {8}), "b: allreduce float32 8", "one buffer");
  expect(takes_lists, collective(HVD_ALLREDUCE, {3, 5}), "b: allreduce float32 3 5", "a list");
  expect(takes_one, collective(HVD_ALLREDUCE, {3, 5}), "compute; b: allreduce float32 8; compute", "packed");
  expect(takes_one, collective(HVD_BROADCAST, {3, 5}), "compute; b: broadcast float32 8; compute",
         "packed by the root");
  expect(takes_one, collective(HVD_BARRIER, {}), "b: barrier", "barrier");
  expect(takes_one, collective(HVD_ALLGATHER, {2, 4}, HVD_FLOAT32, 0, 3),
         "b: allgather float32 2; b: allgather float32 4", "packing would rearrange an allgather");
  RecordingComm receiver("b", 1, 3, 0);
  dataplane::DirectLowering receives(receiver.comm());
  expect(receives, collective(HVD_BROADCAST, {3, 5}), "b: broadcast float32 8; compute", "only the root packs");
  expect(receives, collective(HVD_REDUCE, {3, 5}), "compute; b: reduce float32 8", "only the root unpacks");
}

void direct_pack_below() {
  RecordingComm comm("b", 0, 2, 0);
  comm.pack_below = 64;
  dataplane::DirectLowering direct(comm.comm());
  expect(direct, collective(HVD_ALLREDUCE, {3, 100, 5}),
         "compute; b: allreduce float32 8; b: allreduce float32 100; compute", "large buffers are not packed");
  expect(direct, collective(HVD_ALLREDUCE, {3, 100}), "b: allreduce float32 3; b: allreduce float32 100",
         "one small buffer is not packed");
}

void direct_groups() {
  RecordingComm same("b", 0, 2, HVD_CAP_GROUP_SAME);
  dataplane::DirectLowering grouped(same.comm());
  const Collective list = collective(HVD_ALLGATHER, {2, 4}, HVD_FLOAT32, 0, 2);
  expect(grouped, list, "b: group(allgather float32 2, allgather float32 4)", "a group of one kind");
  RecordingComm limited("b", 0, 2, HVD_CAP_GROUP_MIXED);
  limited.alignment = 64;
  dataplane::DirectLowering apart(limited.comm());
  expect(apart, list, "b: allgather float32 2; b: allgather float32 4",
         "collectives that may need copies are no members of a group");
}

void direct_limits() {
  RecordingComm comm("b", 0, 2, 0);
  comm.max_count = 4;
  dataplane::DirectLowering direct(comm.comm());
  const Collective long_one = collective(HVD_ALLREDUCE, {10});
  Schedule schedule;
  direct.write_steps(schedule, long_one);
  check(test::text_of(schedule) == "b: allreduce float32 4; b: allreduce float32 4; b: allreduce float32 2",
        "max_count");
  for (size_t i = 0; i < schedule.size(); ++i) {
    check(schedule.collective_at(i).in[0].offset == 16 * i, "the parts follow one another in the input");
    check(schedule.collective_at(i).out[0].offset == 16 * i, "the parts follow one another in the output");
  }

  RecordingComm aligned("b", 0, 2, 0);
  aligned.alignment = 64;
  dataplane::DirectLowering moves(aligned.comm());
  expect(moves, collective(HVD_ALLREDUCE, {8}), "b: allreduce float32 8", "an aligned buffer is not copied");
  for (const std::vector<uint64_t>& counts : {std::vector<uint64_t>{8}, std::vector<uint64_t>{3, 5}}) {
    schedule.clear();
    moves.write_steps(schedule, collective(HVD_ALLREDUCE, counts, HVD_FLOAT32, 4));
    check(test::text_of(schedule) == "compute; b: allreduce float32 8; compute",
          "copied, or packed: " + test::text_of(schedule));
    if (schedule.size() != 3) continue;
    const Collective& c = schedule.collective_at(1);
    for (const hvd_buf& b : {c.in[0], c.out[0]})
      check((reinterpret_cast<uintptr_t>(b.base) + b.offset) % 64 == 0, "the copy is aligned");
  }
}

// -------------------------------------------------------------------------------------------------- EmulatedLowering

bool is_float32(int32_t dtype) { return dtype == HVD_FLOAT32; }

void emulated_steps(const dataplane::HostMath& math) {
  RecordingComm gathers("b", 0, 3, 0);
  gathers.serves = [](int32_t coll, int32_t dtype, int32_t) { return coll == HVD_ALLGATHER && is_float32(dtype); };
  dataplane::DirectLowering direct(gathers.comm());
  dataplane::EmulatedLowering least(direct, gathers.comm(), math);
  expect(least, collective(HVD_ALLGATHER, {4}, HVD_FLOAT32, 0, 3), "b: allgather float32 4", "served");
  expect(least, collective(HVD_ALLREDUCE, {4}, HVD_INT64), "b: allgather float32 8; compute",
         "an allreduce: every rank gathers all data and reduces them");
  expect(least, collective(HVD_ALLREDUCE, {5}, HVD_INT8), "compute; b: allgather float32 2; compute",
         "5 bytes are padded to 2 elements of the carrier");
  expect(least, collective(HVD_BROADCAST, {4}, HVD_INT64), "b: allgather float32 8; compute", "a broadcast");
  expect(least, collective(HVD_BARRIER, {}), "compute; b: allgather float32 1", "a barrier");
  expect(least, collective(HVD_ALLTOALL, {3}, HVD_INT64), "b: allgather float32 6; compute",
         "an alltoall: first the sizes");

  RecordingComm sums("b", 0, 3, 0);
  sums.serves = [](int32_t coll, int32_t dtype, int32_t op) {
    return is_float32(dtype) &&
           (coll == HVD_BROADCAST || coll == HVD_ALLGATHER || (coll == HVD_ALLREDUCE && op == HVD_SUM));
  };
  dataplane::DirectLowering over(sums.comm());
  dataplane::EmulatedLowering more(over, sums.comm(), math);
  expect(more, collective(HVD_BROADCAST, {4}, HVD_INT64), "b: broadcast float32 8", "the bytes as another type");
  Collective average = collective(HVD_ALLREDUCE, {8});
  average.op = HVD_AVG;
  expect(more, average, "b: allreduce float32 8; compute", "an average: sum and division");
  expect(more, collective(HVD_ALLREDUCE, {8}, HVD_FLOAT16), "b: allgather float32 4; compute",
         "among 3 ranks, an allgather of 16-bit floats costs less than an allreduce of float32");
  expect(more, collective(HVD_REDUCE, {8}), "b: allreduce float32 8", "a reduce through an allreduce");
  expect(more, collective(HVD_REDUCESCATTER, {6}), "b: allreduce float32 6; compute", "a reducescatter");
  expect(more, collective(HVD_BARRIER, {}), "b: allreduce float32 1", "a barrier through an allreduce");

  RecordingComm five("b", 0, 5, 0);
  five.serves = sums.serves;
  dataplane::DirectLowering over_five(five.comm());
  dataplane::EmulatedLowering many(over_five, five.comm(), math);
  expect(many, collective(HVD_ALLREDUCE, {8}, HVD_FLOAT16), "compute; b: allreduce float32 8; compute", "widened");
}

// ---------------------------------------------------------------------------------------------- HierarchicalLowering

// The steps of one rank of a set; a rank that is alone on its host, or in no lane, has one communicator less. The steps
// of the second call: the first one does not overlap the levels.
std::string levels(const std::vector<int32_t>& hosts, int32_t rank, const Collective& c,
                   const dataplane::HostMath& math, uint64_t single_lane_bytes, uint64_t chunk_bytes = 0) {
  std::vector<int32_t> members;
  for (size_t r = 0; r < hosts.size(); ++r) members.push_back(static_cast<int32_t>(r));
  const dataplane::Layout layout = dataplane::make_layout(members, hosts, rank);
  const auto neighbours = static_cast<int32_t>(layout.neighbours().size());
  RecordingComm within("within", layout.my_local(), neighbours, HVD_CAP_VECTORED);
  RecordingComm between("between", layout.my_host(), layout.host_count(), HVD_CAP_VECTORED);
  dataplane::DirectLowering local(within.comm()), cross(between.comm());
  dataplane::HierarchicalLowering lowering(layout, neighbours > 1 ? &local : nullptr,
                                           layout.my_local() < layout.lanes ? &cross : nullptr, math,
                                           {single_lane_bytes, chunk_bytes, "LEVELS"});
  Schedule schedule;
  for (int turn = 0; turn < 2; ++turn) {
    schedule.clear();
    lowering.write_steps(schedule, c);
  }
  return test::text_of(schedule);
}

void hierarchical_steps(const dataplane::HostMath& math) {
  const std::vector<int32_t> two_by_two = {0, 0, 1, 1};
  const auto expect = [&](int32_t rank, const Collective& c, uint64_t single_lane, const std::string& steps) {
    const std::string found = levels(two_by_two, rank, c, math, single_lane);
    check(found == steps, "rank " + std::to_string(rank) + ":\n  expected " + steps + "\n  found    " + found);
  };
  for (int32_t rank = 0; rank < 4; ++rank)
    expect(rank, collective(HVD_ALLREDUCE, {256}), 0,
           "within: reducescatter float32 256; between: allreduce float32 128; within: allgather float32 128");
  const Collective small = collective(HVD_ALLREDUCE, {8});
  expect(0, small, 1024, "within: reduce float32 8; between: allreduce float32 8; within: broadcast float32 8");
  expect(3, small, 1024, "within: reduce float32 8; within: broadcast float32 8");
  expect(0, collective(HVD_BARRIER, {}), 0, "within: barrier; between: barrier; within: barrier");
  expect(1, collective(HVD_BARRIER, {}), 0, "within: barrier; within: barrier");
}

void hierarchical_chunks(const dataplane::HostMath& math) {
  const auto expect = [&](const std::vector<int32_t>& hosts, int32_t rank, const std::vector<uint64_t>& counts,
                          const std::string& steps) {
    const std::string found = levels(hosts, rank, collective(HVD_ALLREDUCE, counts), math, 0, 512);
    check(found == steps, "rank " + std::to_string(rank) + ":\n  expected " + steps + "\n  found    " + found);
  };
  for (int32_t rank = 0; rank < 4; ++rank)
    expect({0, 0, 1, 1}, rank, {384},
           "strands(within: reducescatter float32 128; compute; within: reducescatter float32 128; compute; wait; "
           "within: allgather float32 64; within: reducescatter float32 128; compute; wait; within: allgather float32 "
           "64; wait; within: allgather float32 64 | wait; between: allreduce float32 64; compute; wait; between: "
           "allreduce float32 64; compute; wait; between: allreduce float32 64; compute)");
  // The second rank of the first host is in no lane, and the last rank is alone on its host.
  expect({0, 0, 1}, 1, {100, 156},
         "within: reduce float32 100 28; within: reduce float32 128; within: broadcast float32 100 28; "
         "within: broadcast float32 128");
  expect({0, 0, 1}, 2, {256}, "between: allreduce float32 128; between: allreduce float32 128");
  expect({0, 0, 1, 1}, 0, {255},
         "within: reducescatter float32 255; between: allreduce float32 127; within: allgather float32 127");
}

// Every member of a communicator must write the same collectives on it, in the same order.
void members_agree(const dataplane::HostMath& math) {
  const std::vector<std::vector<int32_t>> layouts = {{0, 0, 1, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}};
  const auto names = [](const std::string& steps, const std::string& comm) {
    std::string found;
    for (size_t at = 0; (at = steps.find(comm + ": ", at)) != std::string::npos;) {
      at += comm.size() + 2;
      found += steps.substr(at, steps.find_first_of(" ;", at) - at) + " ";
    }
    return found;
  };
  for (const auto& hosts : layouts) {
    const auto ranks = static_cast<uint64_t>(hosts.size());
    std::vector<int32_t> members;
    for (size_t r = 0; r < ranks; ++r) members.push_back(static_cast<int32_t>(r));
    const dataplane::Layout layout = dataplane::make_layout(members, hosts, 0);
    for (int32_t coll :
         {HVD_ALLREDUCE, HVD_REDUCE, HVD_BROADCAST, HVD_ALLGATHER, HVD_REDUCESCATTER, HVD_ALLTOALL, HVD_BARRIER}) {
      for (const auto& [single_lane, chunk] :
           {std::pair<uint64_t, uint64_t>{0, 0}, {0, 64}, {1 << 20, 0}, {1 << 20, 64}}) {
        std::map<std::string, std::string> written;  // by communicator
        for (size_t r = 0; r < ranks; ++r) {
          const Collective c = coll == HVD_BARRIER ? collective(coll, {})
                                                   : collective(coll, {12 * ranks}, HVD_FLOAT32, 0,
                                                                coll == HVD_ALLTOALL ? 1 : static_cast<int32_t>(ranks));
          const std::string steps = levels(hosts, static_cast<int32_t>(r), c, math, single_lane, chunk);
          std::vector<std::pair<std::string, std::string>> mine;
          mine.emplace_back("host " + std::to_string(layout.host_of[r]), names(steps, "within"));
          if (layout.local_of[r] < layout.lanes)
            mine.emplace_back("lane " + std::to_string(layout.local_of[r]), names(steps, "between"));
          for (const auto& [comm, collectives] : mine) {
            const auto [known, fresh] = written.try_emplace(comm, collectives);
            check(fresh || known->second == collectives,
                  comm + ", " + base::collective_name(coll) + ": " + known->second + "and " + collectives);
          }
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ running

void steps_of_a_computation_run_next() {
  RecordingComm comm("b", 0, 1, 0);
  const auto add = [&](Schedule& s, uint64_t n) { s.collective(comm.comm()) = collective(HVD_ALLREDUCE, {n}); };
  Schedule schedule;
  add(schedule, 1);
  schedule.compute([&](Schedule& s) {
    check(comm.started.size() == 1, "a computation runs when the steps before it are complete");
    add(s, 2);
    s.compute([&](Schedule& inner) { add(inner, 3); });
    add(s, 4);
  });
  add(schedule, 5);
  check(schedule.advance(), "all steps are complete");
  std::string order;
  for (const std::string& s : comm.started) order += s.substr(s.rfind(' '));
  check(order == " 1 2 3 4 5", "the order is" + order);
}

void waits_hold_the_schedule() {
  RecordingComm comm("b", 0, 1, 0);
  bool reached = false;
  Schedule schedule;
  schedule.poll([&] { return reached; }, [&](int64_t) { reached = true; });
  schedule.collective(comm.comm()) = collective(HVD_ALLREDUCE, {1});
  check(!schedule.advance() && schedule.in_flight() && comm.started.empty(), "the wait comes first");
  schedule.wait(0);
  check(schedule.advance() && comm.started.size() == 1, "the collective runs after it");
}

// A schedule with two strands: a collective on each communicator, and in the second strand one that waits for the first
// strand.
void write_strands(Schedule& schedule, RecordingComm& a, RecordingComm& b) {
  const auto [first, second] = schedule.strands();
  const auto reached = std::make_shared<bool>(false);
  Collective c = collective(HVD_ALLREDUCE, {1});
  c.overlapped = true;
  first->collective(a.comm()) = c;
  first->compute([reached](Schedule&) { *reached = true; });
  second->collective(b.comm()) = c;
  second->await_other_strand([reached] { return *reached; });
  second->collective(b.comm()) = c;
}

void strands_run_side_by_side() {
  RecordingComm a("a", 0, 2, 0), b("b", 0, 2, 0);
  Schedule schedule;
  for (int turn = 0; turn < 2; ++turn) {
    a.started.clear(), b.started.clear();
    a.waits = b.waits = 0;
    write_strands(schedule, a, b);
    schedule.collective(a.comm()) = collective(HVD_ALLREDUCE, {2});
    a.holds = b.holds = true;
    check(!schedule.advance() && schedule.in_flight(), "both are in flight");
    check(a.started.size() == 1 && b.started.size() == 1, "both have been started");
    check(a.overlapped && b.overlapped, "both are marked as overlapped");
    schedule.wait(HVD_NO_DEADLINE);
    check(a.waits == 1 && b.waits == 1, "a sleep goes to both backends");
    b.holds = false;
    check(!schedule.advance() && b.started.size() == 1, "the second strand waits for the first one");
    schedule.wait(HVD_NO_DEADLINE);
    check(a.waits == 2 && b.waits == 1, "a sleep goes to the backend that has something in flight");
    a.holds = false;
    check(schedule.advance(), "all are complete");
    check(a.started.size() == 2 && b.started.size() == 2, "and the step after them has run");
    check(!a.overlapped, "which is not overlapped");
    schedule.clear();
  }
}

// What one strand waits for happens within the same round: the driver may sleep after it.
void strands_wake_each_other() {
  for (const size_t waiting : {0, 1}) {
    RecordingComm comm("b", 0, 2, 0);
    Schedule schedule;
    const auto strands = schedule.strands();
    bool reached = false;
    strands[waiting]->await_other_strand([&] { return reached; });
    strands[waiting]->collective(comm.comm()) = collective(HVD_ALLREDUCE, {1});
    strands[1 - waiting]->compute([&](Schedule&) { reached = true; });
    strands[1 - waiting]->poll([] { return false; }, [](int64_t) {});
    check(!schedule.advance() && comm.started.size() == 1, "strand " + std::to_string(waiting) + " goes on at once");
  }
}

void a_strand_that_fails_leaves_the_other_to_settle() {
  RecordingComm a("a", 0, 2, 0), b("b", 0, 2, 0);
  a.holds = true;
  Schedule schedule;
  const auto [first, second] = schedule.strands();
  first->collective(a.comm()) = collective(HVD_ALLREDUCE, {1});
  second->compute([](Schedule&) { throw plugins::BackendError(HVD_E_INTERNAL, 0, 0, "as the test wants it"); });
  bool failed = false;
  try {
    schedule.advance();
  } catch (const plugins::BackendError&) {
    failed = true;
  }
  check(failed && schedule.lingers(), "the other strand is in flight");
  schedule.settle(0);
  check(a.waits == 1 && schedule.lingers(), "and still is after a wait");
  a.holds = false;
  schedule.settle(0);
  check(a.waits == 2, "settle() has waited for it");
  schedule.clear();
  check(!schedule.lingers() && schedule.size() == 0, "nothing is left");
}

void a_repeated_collective_allocates_nothing() {
  RecordingComm comm("b", 0, 2, HVD_CAP_VECTORED);
  comm.records = false;
  dataplane::DirectLowering direct(comm.comm());
  const Collective c = collective(HVD_ALLREDUCE, {3, 5});
  Schedule schedule;
  for (int turn = 0; turn < 3; ++turn) {
    const uint64_t before = allocations;
    direct.write_steps(schedule, c);
    const bool complete = schedule.advance();
    schedule.clear();
    const uint64_t used = allocations - before;
    check(complete, "complete");
    if (turn > 0) check(used == 0, std::to_string(used) + " allocations in a repeated run");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const dataplane::HostMath math(plugins::Backend::load_library(argv[1], "shm"));
  direct_lists();
  direct_pack_below();
  direct_groups();
  direct_limits();
  emulated_steps(math);
  hierarchical_steps(math);
  hierarchical_chunks(math);
  members_agree(math);
  steps_of_a_computation_run_next();
  waits_hold_the_schedule();
  strands_run_side_by_side();
  strands_wake_each_other();
  a_strand_that_fails_leaves_the_other_to_settle();
  a_repeated_collective_allocates_nothing();
  return test::verdict();
}
