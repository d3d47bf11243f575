// Launching: with one ticket per communicator and stream, taken in the order of the calls.
#include "group.h"

#include <thread>
#include <vector>

#include "device.h"

namespace sim {
namespace {

struct Submitted {
  CommRef comm;
  StreamRef stream;
  Operation op;
};

struct Group {
  int depth = 0;
  ecclResult_t failure = ecclSuccess;
  std::vector<Submitted> operations;
  std::vector<std::function<ecclResult_t()>> creations;
};

thread_local Group group;
thread_local std::string text_of_thread;

// All operations of one communicator on one stream are one item of that stream.
void launch(std::vector<Submitted> all) {
  while (!all.empty()) {
    const CommRef comm = all.front().comm;
    const StreamRef stream = all.front().stream;
    std::vector<Operation> batch;
    std::vector<Submitted> rest;
    for (Submitted& one : all) {
      if (one.comm == comm && one.stream == stream) {
        batch.push_back(std::move(one.op));
      } else {
        rest.push_back(std::move(one));
      }
    }
    comm->issue([&](uint64_t place) {
      stream->work([comm, place, batch = std::move(batch)] {
        comm->run(place, [&] { perform(*comm, batch); });
        return topsSuccess;
      });
    });
    all = std::move(rest);
  }
}

ecclResult_t create_all(const std::vector<std::function<ecclResult_t()>>& creations) {
  if (creations.size() == 1) return creations.front()();
  // They wait for each other.
  std::vector<ecclResult_t> results(creations.size());
  std::vector<std::string> texts(creations.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < creations.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = creations[i]();
      texts[i] = text_of_thread;
    });
  }
  ecclResult_t first = ecclSuccess;
  for (size_t i = 0; i < creations.size(); ++i) {
    threads[i].join();
    if (first == ecclSuccess && results[i] != ecclSuccess) {
      first = results[i];
      text_of_thread = texts[i];
    }
  }
  return first;
}

}  // namespace

ecclResult_t submit(CommRef comm, StreamRef stream, Operation op) {
  if (group.depth == 0) {
    std::vector<Submitted> one;
    one.push_back({std::move(comm), std::move(stream), std::move(op)});
    launch(std::move(one));
    return ecclSuccess;
  }
  if (!group.operations.empty() && group.operations.front().op.kind != op.kind) {
    return refuse(ecclInvalidUsage, std::string("a group holds one kind of operation: ") + describe(op.kind) +
                                        " after " + describe(group.operations.front().op.kind));
  }
  if (!group.creations.empty()) {
    return refuse(ecclInvalidUsage, "a group that makes communicators holds nothing else");
  }
  group.operations.push_back({std::move(comm), std::move(stream), std::move(op)});
  return ecclSuccess;
}

ecclResult_t submit_creation(std::function<ecclResult_t()> create) {
  if (group.depth == 0) return create();
  if (!group.operations.empty()) {
    return refuse(ecclInvalidUsage, "a group of operations does not make communicators");
  }
  group.creations.push_back(std::move(create));
  return ecclSuccess;
}

void group_start() { ++group.depth; }

ecclResult_t group_end() {
  if (group.depth == 0) return refuse(ecclInvalidUsage, "ecclGroupEnd without ecclGroupStart");
  if (--group.depth > 0) return ecclSuccess;
  const Group ended = std::move(group);
  group = Group();
  if (ended.failure != ecclSuccess) return ended.failure;
  if (!ended.creations.empty()) return create_all(ended.creations);
  launch(ended.operations);
  return ecclSuccess;
}

ecclResult_t refuse(ecclResult_t code, const std::string& text) {
  text_of_thread = text;
  if (group.depth > 0 && group.failure == ecclSuccess) group.failure = code;
  return code;
}

const std::string& last_text() { return text_of_thread; }

}  // namespace sim
