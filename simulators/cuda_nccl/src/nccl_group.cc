// Groups and launches: operations of one communicator on one stream, given in one group, are one item of that stream.
#include <thread>
#include <vector>

#include "counters.h"
#include "nccl_comm.h"
#include "settings.h"

namespace cusim {
namespace {

struct Submitted {
  StreamRef stream;
  sim::Operation op;
};
struct OfComm {
  NcclRef nccl;
  std::vector<Submitted> operations;
  std::vector<std::function<ncclResult_t()>> jobs;
};
struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<OfComm> comms;  // in the order of their first call
};

thread_local Group group;
thread_local std::string text_of_thread;

OfComm& of(const NcclRef& nccl) {
  for (OfComm& one : group.comms) {
    if (one.nccl == nccl) return one;
  }
  group.comms.push_back({nccl, {}, {}});
  return group.comms.back();
}

// A kernel that faults takes its context along.
bool aligned(const sim::Operation& op) {
  const auto fits = [&](const sim::Span& span) {
    return reinterpret_cast<uintptr_t>(span.data) % sim::width_of(op.type) == 0;
  };
  return fits(op.send) && fits(op.recv);
}

CUresult execute(const sim::CommRef& comm, uint64_t place, const std::vector<sim::Operation>& batch) {
  CUresult result = CUDA_SUCCESS;
  comm->run(place, [&] {
    for (const sim::Operation& op : batch) {
      if (!aligned(op)) result = CUDA_ERROR_MISALIGNED_ADDRESS;
    }
    if (result != CUDA_SUCCESS) throw sim::Failure{ncclUnhandledCudaError, "misaligned address"};
    try {
      perform(*comm, batch);
    } catch (const sim::Failure& why) {
      // Without a network between them no rank hears of a peer's end; the kernel runs until it is aborted.
      while (settings().silent_death && why.code == ncclRemoteError && comm->state() == ncclSuccess) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      throw;
    }
  });
  return result;
}

ncclResult_t launch(const NcclRef& nccl, std::vector<Submitted> all) {
  const sim::CommRef comm = nccl->comm();
  while (!all.empty()) {
    const StreamRef stream = all.front().stream;
    std::vector<sim::Operation> batch;
    std::vector<Submitted> rest;
    for (Submitted& one : all) {
      if (one.stream == stream) {
        batch.push_back(std::move(one.op));
      } else {
        rest.push_back(std::move(one));
      }
    }
    CUresult error = CUDA_SUCCESS;
    comm->issue([&](uint64_t place) {
      error = give(*stream, [comm, place, batch = std::move(batch)] { return execute(comm, place, batch); });
    });
    if (error != CUDA_SUCCESS) return refuse(ncclUnhandledCudaError, "CUDA error " + std::to_string(error));
    all = std::move(rest);
  }
  return ncclSuccess;
}

// With peers that it has not spoken to before, a non-blocking communicator connects in the background first, and the
// operations come into their streams after that.
ncclResult_t start(const NcclRef& nccl, std::vector<Submitted> all) {
  bool connected = true;
  for (const Submitted& one : all) {
    const bool message = one.op.kind == sim::Operation::Kind::kMessage;
    if (!nccl->connect(message ? one.op.root : -1)) connected = false;
  }
  if (connected) return launch(nccl, std::move(all));
  return nccl->perform([nccl, all = std::move(all)] { return launch(nccl, all); });
}

// Jobs of several communicators wait for each other.
ncclResult_t run(std::vector<OfComm> comms) {
  std::vector<ncclResult_t> results(comms.size(), ncclSuccess);
  std::vector<std::string> texts(comms.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < comms.size(); ++i) {
    if (comms[i].jobs.empty()) continue;
    threads.emplace_back([&, i] {
      for (const auto& job : comms[i].jobs) {
        if (results[i] == ncclSuccess) results[i] = comms[i].nccl->perform(job);
      }
      texts[i] = text_of_thread;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < comms.size(); ++i) {
    if (!comms[i].operations.empty()) results[i] = start(comms[i].nccl, std::move(comms[i].operations));
  }
  ncclResult_t first = ncclSuccess;
  for (size_t i = 0; i < comms.size(); ++i) {
    if (results[i] == ncclSuccess || (first != ncclSuccess && first != ncclInProgress)) continue;
    first = results[i];
    if (!texts[i].empty()) text_of_thread = texts[i];
  }
  return first;
}

}  // namespace

ncclResult_t submit(const NcclRef& nccl, const StreamRef& stream, sim::Operation op) {
  static Counter& collectives = counter("collectives");
  ++collectives;
  if (group.depth == 0) {
    std::vector<Submitted> one;
    one.push_back({stream, std::move(op)});
    return start(nccl, std::move(one));
  }
  of(nccl).operations.push_back({stream, std::move(op)});
  return ncclSuccess;
}

ncclResult_t submit(const NcclRef& nccl, std::function<ncclResult_t()> job) {
  if (group.depth == 0) return nccl->perform(std::move(job));
  of(nccl).jobs.push_back(std::move(job));
  return ncclSuccess;
}

void group_start() { ++group.depth; }

ncclResult_t group_end() {
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0) return ncclSuccess;
  Group ended = std::move(group);
  group = Group();
  if (ended.failure != ncclSuccess) return ended.failure;
  return run(std::move(ended.comms));
}

ncclResult_t refuse(ncclResult_t code, const std::string& text) {
  text_of_thread = text;
  if (group.depth > 0 && group.failure == ncclSuccess) group.failure = code;
  return code;
}

const std::string& last_text() { return text_of_thread; }

}  // namespace cusim
