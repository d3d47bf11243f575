// Drives the sample backend through the loader and the wrappers the way the engine does, with threads for ranks:
//   loopback_driver LIBRARY SECOND_LIBRARY     (the second is the same sample under the name loopback2)
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "engine/plugins/host_api.h"
#include "support.h"

using hvd::plugins::Backend;
using hvd::plugins::Collective;
using hvd::plugins::Communicator;
using test::check;
using test::contains;
using test::in_seconds;

namespace {

void finish(Communicator& comm, const Collective& c) {
  if (!comm.start(c)) {
    while (!comm.wait(in_seconds(5))) {
    }
  }
}

void basics(Backend& b) {
  check(b.name() == "loopback" && b.tag() == "LOOPBACK" && b.version() == "1.0" && b.vendor_lib().empty(), "texts");
  check(b.has_comm() && !b.has_device() && b.device_type().empty() && b.abi_minor() == HVD_ABI_MINOR, "tables");
  check(b.serves_device_type("cpu") && !b.serves_device_type("gpu"), "device types");
  check((b.comm_caps() & HVD_CAP_ABORT) != 0, "abort is declared because the class has it");
  check(b.options().size() == 2 && b.options()[1].name == "patience" && b.options()[1].type == "int", "options");
  check(Backend::load_library(b.path(), "loopback").get() == &b, "a library is loaded once");
}

void queries(Backend& b) {
  Collective c;
  c.coll = HVD_ALLREDUCE;
  c.dtype = HVD_FLOAT32;
  check(b.query(c.args()).support == HVD_NATIVE, "float32 sum is served");
  c.op = HVD_MIN;
  check(b.query(c.args()).support == HVD_UNSERVED, "min is not in the class's set");
  c.op = HVD_SUM;
  c.dtype = HVD_BOOL;
  check(b.query(c.args()).support == HVD_UNSERVED, "bool is refused by the class's query");
  c.coll = HVD_ALLTOALL;
  check(b.query(c.args()).support == HVD_UNSERVED, "alltoall has no method");
}

void collectives(Backend& b, int size) {
  test::MapStore store;
  test::on_ranks(size, [&](int rank) {
    auto comm = test::join_comm(b, store, "job/0/" + std::to_string(size), rank, size);
    std::vector<float> x(1000), y(3);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(rank + 1) * static_cast<float>(i);
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(rank);
    Collective c;
    c.coll = HVD_ALLREDUCE;
    c.dtype = HVD_FLOAT32;
    c.in = c.out = {test::buffer(x), test::buffer(y)};
    c.counts = {x.size(), y.size()};
    finish(*comm, c);
    const float ranks_plus = static_cast<float>(size * (size + 1) / 2);
    check(x[7] == ranks_plus * 7 && x[999] == ranks_plus * 999, "allreduce, first buffer");
    check(y[2] == ranks_plus - static_cast<float>(size), "allreduce, second buffer");

    std::vector<int64_t> v(5, rank);
    Collective bc;
    bc.coll = HVD_BROADCAST;
    bc.dtype = HVD_INT64;
    bc.root = size - 1;
    bc.in = bc.out = {test::buffer(v)};
    bc.counts = {v.size()};
    finish(*comm, bc);
    check(v == std::vector<int64_t>(5, size - 1), "broadcast");

    Collective barrier;
    barrier.coll = HVD_BARRIER;
    finish(*comm, barrier);

    // Rank r brings r elements.
    std::vector<uint8_t> mine(static_cast<size_t>(rank), static_cast<uint8_t>(rank)), all(size * (size - 1) / 2 + 1);
    Collective g;
    g.coll = HVD_ALLGATHER;
    g.dtype = HVD_UINT8;
    g.in = {test::buffer(mine)};
    g.out = {test::buffer(all)};
    g.counts = {mine.size()};
    for (int r = 0; r < size; ++r) g.out_counts.push_back(static_cast<uint64_t>(r));
    finish(*comm, g);
    size_t at = 0;
    for (int r = 0; r < size; ++r) {
      for (int k = 0; k < r; ++k) check(all[at++] == r, "allgather with a count per rank");
    }
    check(all[at] == 0, "nothing is written beyond the end");
    comm->finalize(in_seconds(5));
    check(comm->async_error() == HVD_E_UNSUPPORTED, "async_error is absent, and says so");
  });
  check(store.left() == 0, "no key is left in the store");
}

void failures_are_errors(Backend& b) {
  test::MapStore store;
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "fail", rank, 2);
    std::vector<float> x(4);
    Collective c;
    c.coll = HVD_ALLREDUCE;
    c.dtype = HVD_FLOAT32;
    c.in = c.out = {test::buffer(x)};
    c.counts = {static_cast<uint64_t>(rank + 1)};
    std::string error = test::thrown([&] { finish(*comm, c); });
    check(contains(error, "INVALID loopback: allreduce: the ranks ask for different collectives (INVALID)"), error);
    check(!comm->in_flight(), "a failed operation is not in flight");

    c.counts = {4};
    finish(*comm, c);

    c.counts = {4, 4};
    check(contains(test::thrown([&] { comm->start(c); }), "differ in length"), "lengths are checked");
    c.counts = {4};
    c.out_counts = {1};
    check(contains(test::thrown([&] { comm->start(c); }), "one element per rank"), "per-rank counts are checked");
    c.out_counts.clear();
    c.op = HVD_MAX;
    check(contains(test::thrown([&] { comm->start(c); }), "(UNSUPPORTED)"), "what is not served is refused");
  });
}

// Counts that other ranks have named do not fit into the buffers, or their sum wraps.
void sizes_are_checked(Backend& b) {
  test::MapStore store;
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "sizes", rank, 2);
    std::vector<float> mine(4), all(6);
    Collective c;
    c.coll = HVD_ALLGATHER;
    c.dtype = HVD_FLOAT32;
    c.in = {test::buffer(mine)};
    c.out = {test::buffer(all)};
    c.counts = {4};
    const auto refused = [&](uint64_t own, uint64_t other, const std::string& why) {
      c.out_counts = {rank == 0 ? own : other, rank == 0 ? other : own};
      const std::string error = test::thrown([&] { comm->start(c); });
      check(contains(error, "INVALID") && contains(error, why.c_str()), error);
    };
    refused(4, 3, "do not fit");
    refused(4, UINT64_MAX - 1, "part of rank " + std::to_string(1 - rank));  // -2: the sum would be 2
    refused(4, (uint64_t{1} << 62) - 2, "do not fit");                       // the bytes would wrap
    refused(3, 3, "another number");
    c.coll = HVD_ALLREDUCE;
    c.out_counts.clear();
    c.out = c.in;
    c.counts = {5};
    check(contains(test::thrown([&] { comm->start(c); }), "do not fit"), "an allreduce beyond its buffer");
  });
}

void waits_and_deadlines(Backend& b) {
  test::MapStore store;
  std::atomic<bool> go{false};
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "wait", rank, 2);
    Collective barrier;
    barrier.coll = HVD_BARRIER;
    if (rank == 0) {
      check(!comm->start(barrier), "alone at a barrier");
      check(!comm->test() && !comm->wait(in_seconds(0.05)) && comm->in_flight(), "a wait may end before the operation");
      check(contains(test::thrown([&] { comm->start(barrier); }), "still in flight"), "one operation at a time");
      go = true;
      check(comm->wait(in_seconds(10)), "the other came");
    } else {
      while (!go) std::this_thread::yield();
      finish(*comm, barrier);
    }
  });
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "late", rank, 2);
    if (rank == 1) return;
    Collective barrier;
    barrier.coll = HVD_BARRIER;
    barrier.deadline_ns = in_seconds(0.1);
    const std::string error = test::thrown([&] {
      if (!comm->start(barrier)) comm->wait(HVD_NO_DEADLINE);
    });
    check(contains(error, "TIMEOUT loopback: barrier:"), "deadline of the operation: " + error);
  });
  const std::string error = test::thrown([&] { test::join_comm(b, store, "alone", 1, 2, 0.1); });
  check(contains(error, "TIMEOUT loopback: create: no rank set 'alone/hub' in time"),
        "creation has a deadline: " + error);
}

void aborts(Backend& b) {
  test::MapStore store;
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "abort", rank, 2);
    Collective barrier;
    barrier.coll = HVD_BARRIER;
    if (rank == 1) {
      comm->abort();
      comm->abort();
    } else {
      const std::string error = test::thrown([&] {
        if (!comm->start(barrier)) comm->wait(in_seconds(20));
      });
      check(contains(error, "ABORTED"), "a peer's abort reaches a sleeper: " + error);
      comm->abort();
    }
    check(contains(test::thrown([&] { comm->start(barrier); }), "ABORTED"), "later calls answer ABORTED");
  });
  // Destroyed with an operation in flight: abort, free, destroy, nothing leaks and nothing hangs.
  test::on_ranks(2, [&](int rank) {
    auto comm = test::join_comm(b, store, "drop", rank, 2);
    Collective barrier;
    barrier.coll = HVD_BARRIER;
    if (rank == 0) comm->start(barrier);
  });
}

void bad_creations(Backend& b) {
  test::MapStore store;
  const auto create = [&](std::vector<int32_t> ranks, std::vector<int32_t> hosts, int me) {
    return test::thrown([&] { b.create_comm("bad", store, ranks, hosts, me, in_seconds(1)); });
  };
  check(contains(create({0, 1}, {0, 1}, 0), "UNSUPPORTED loopback: create: this backend works within one host"),
        "hosts");
  check(contains(create({0, 1}, {0}, 0), "(INVALID)"), "hosts and ranks differ in length");
  check(contains(create({0, 1}, {0, 0}, 2), "(INVALID)"), "rank outside");
  check(contains(create({}, {}, 0), "(INVALID)"), "no ranks");
}

// The thunks' own checks, called as another host would call them.
void raw_calls(Backend& b) {
  const hvd_comm_api* api = b.comm_api();
  struct Longer {
    hvd_coll_args args;
    uint64_t tail[2];
  } longer{};
  longer.args.hdr = {sizeof(longer), 1, 0, nullptr};
  longer.args.coll = HVD_BARRIER;
  struct Guarded {
    hvd_coll_caps caps;
    uint64_t canary;
  } out{};
  out.canary = 0xC0FFEE;
  out.caps.hdr.struct_size = sizeof(hvd_coll_caps);
  hvd_error error = hvd::plugins::empty_error();
  check(api->query(nullptr, &longer.args, &out.caps, &error) == HVD_OK && out.caps.support == HVD_NATIVE, "zero tail");
  longer.tail[1] = 1;
  check(api->query(nullptr, &longer.args, &out.caps, &error) == HVD_E_UNSUPPORTED, "a tail with something in it");
  check(contains(error.text, "newer than this backend"), error.text);
  longer.tail[1] = 0;
  longer.args.hdr.struct_size = sizeof(hvd_coll_args) - 8;
  check(api->query(nullptr, &longer.args, &out.caps, &error) == HVD_E_ABI, "args shorter than 1.0");
  check(api->query(nullptr, nullptr, &out.caps, &error) == HVD_E_ABI, "no args");
  check(api->query(nullptr, nullptr, &out.caps, nullptr) == HVD_E_ABI, "no error struct either");

  longer.args.hdr.struct_size = sizeof(hvd_coll_args);
  std::memset(&out.caps, 0x55, sizeof(out.caps));
  out.caps.hdr.struct_size = offsetof(hvd_coll_caps, score);
  api->query(nullptr, &longer.args, &out.caps, &error);
  check(out.caps.support == HVD_NATIVE && out.caps.score == 0x55555555,
        "an out-struct is filled as far as it is known");
  std::memset(&error, 0x55, sizeof(error));
  error.hdr.struct_size = offsetof(hvd_error, text) + 8;
  api->query(nullptr, nullptr, &out.caps, &error);
  check(error.code == HVD_E_ABI && error.text[8] == 0x55 && out.canary == 0xC0FFEE, "likewise the error struct");

  hvd_comm comm = nullptr;
  check(api->create(nullptr, &comm, &error) == HVD_E_ABI, "create without args");
}

void two_libraries(Backend& one, Backend& two) {
  std::mutex mutex;
  std::vector<std::string> lines;
  hvd::plugins::set_log_sink([&](int32_t level, const std::string& who, const char*, int32_t, const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(std::to_string(level) + " " + who + ": " + text);
  });
  setenv("HOROVOD_BACKEND_LOOPBACK_GREETING", "hello from one", 1);
  setenv("HOROVOD_BACKEND_LOOPBACK2_GREETING", std::string(700, 'x').c_str(), 1);
  test::MapStore store;
  test::join_comm(one, store, "one", 0, 1);
  test::join_comm(two, store, "two", 0, 1);
  hvd::plugins::set_log_sink(nullptr);
  check(lines.size() == 2, "two greetings");
  check(lines.size() == 2 && lines[0] == "2 loopback: hello from one", "each library has its own host table");
  check(lines.size() == 2 && lines[1] == "2 loopback2: " + std::string(700, 'x'), "options of any length");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto b = Backend::load_library(argv[1], "loopback");
  auto second = Backend::load_library(argv[2], "loopback2");
  basics(*b);
  queries(*b);
  for (int size : {1, 2, 4}) collectives(*b, size);
  failures_are_errors(*b);
  sizes_are_checked(*b);
  waits_and_deadlines(*b);
  aborts(*b);
  bad_creations(*b);
  raw_calls(*b);
  two_libraries(*b, *second);
  return test::verdict();
}
