// The events that the observer records: kinds, and the record in memory and in the files of the flight recorder.
//
// hvd_core/flight_records.py reads the same records. The layout changes only together with kRingVersion.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd::recorder {

// X(id, number, name): what happened, and which fields of the record say more. `name` and `what` are ids of texts.
//   Started    a: nanoseconds since 1970 at `time`; b: what has to be added to `time` for the clock of rank 0's host
//   Submitted  a caller's request: detail: operation, set, name, what: types and shapes, a: bytes, b: number
//   Ready      on the root: detail: operation, set, name, b: number, a: which member of the set is ready
//   Entry      of the log: detail: operation, set, what: number of requests, name and b: of the first, a: batch
//   Members    the other requests of that batch: name, what and the halves of a and b are names, 0: no further request
//   Member     likewise, one request without a name of its own: name, b: number
//   Begin      the batch a is executed from now on
//   Step       a collective on a communicator, or a computation: detail 1: begins, 0: ends, name: phase, a: batch
//   Phase      the same, reported by a backend
//   Enqueued   all work of batch a is in the stream of a device
//   Done       batch a is complete
//   Waits      a caller begins to wait: set, name, b: number
//   Waited     this wait has ended: a: when it began
//   Failed     a request: detail: base/failure.h, name, b: number, what: the error
//   SetAdded, SetRemoved  of the process set `set`: a: its number of ranks
//   Joined     all ranks have joined: a: the last one
//   Closed     the orderly end: a: the rank that was the first to leave
//   Aborted    name: the cause
//   Cycle      a round of the driver that had work to do
#define HVD_EVENT_KINDS(X)       \
  X(Started, 1, started)         \
  X(Submitted, 2, submitted)     \
  X(Ready, 3, ready)             \
  X(Entry, 4, entry)             \
  X(Members, 5, members)         \
  X(Member, 6, member)           \
  X(Begin, 7, begin)             \
  X(Step, 8, step)               \
  X(Phase, 9, phase)             \
  X(Enqueued, 10, enqueued)      \
  X(Done, 11, done)              \
  X(Waits, 12, waits)            \
  X(Waited, 13, waited)          \
  X(Failed, 14, failed)          \
  X(SetAdded, 15, set_added)     \
  X(SetRemoved, 16, set_removed) \
  X(Joined, 17, joined)          \
  X(Closed, 18, closed)          \
  X(Aborted, 19, aborted)        \
  X(Cycle, 20, cycle)

enum class EventKind : uint8_t {
#define X(id, number, name) id = number,
  HVD_EVENT_KINDS(X)
#undef X
};

struct Event {
  int64_t time = 0;  // CLOCK_MONOTONIC in nanoseconds
  EventKind kind = EventKind::Started;
  uint8_t detail = 0;
  uint16_t set = 0;  // the log's number of the process set
  uint32_t name = 0, what = 0;
  uint64_t a = 0, b = 0;
};

// An event in a ring. `stamp` is the event's number plus one, 0 while the record is being written.
struct Record {
  std::atomic<uint32_t> stamp;
  std::atomic<uint32_t> head;  // from the lowest byte: kind, detail, set (two bytes)
  std::atomic<int64_t> time;
  std::atomic<uint32_t> name, what;
  std::atomic<uint64_t> a, b;
};
static_assert(sizeof(Record) == 40);

// The name of a request as the observer knows it. An operation that was submitted without a name has a number, and the
// name is what all of its kind have in common.
struct RequestName {
  uint32_t name = 0;
  uint64_t number = 0;
};

}  // namespace hvd::recorder
