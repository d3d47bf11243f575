// The threads of a rank: one per stream that submits, helpers that wait for its requests in an order of their own, and
// one that polls all requests in flight.
//
// run_stream is called on the stream's thread; Helpers' methods on any thread of the rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "plan.h"
#include "world.h"

namespace hvd::native {

// The state of a round, shared by all its threads.
struct Course {
  // From here on operations may fail, because a rank has been told to end the job.
  std::atomic<bool> may_end{false};
  std::atomic<uint64_t> done{0}, failed{0}, refused{0}, sets{0};
  // Streams that have reached this point, for an ending in the middle.
  std::atomic<int> steps{0};
};

class Helpers {
 public:
  Helpers(Engine& engine, uint64_t seed, int waiters);
  ~Helpers();
  void wait_for(calls::RequestRef request);  // some time soon, in some order
  void watch(calls::RequestRef request);     // polled now and then

 private:
  void waiter(uint64_t seed);
  void poller(uint64_t seed);

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<calls::RequestRef> handed_;
  std::deque<calls::RequestRef> watched_;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

// A process set as its members know it, and its number.
struct Set {
  const Members& members;
  int32_t number = 0;
};

void run_stream(Engine& engine, int rank, const Set& set, const Stream& stream, uint64_t seed, Helpers& helpers,
                Course& course);

// Adds a set that is not there yet, uses it where this rank is a member, and removes it, `times` times. On all ranks
// with the same seed.
void run_changes(Engine& engine, int rank, const std::vector<Members>& there, int times, uint64_t seed, Course& course);
// Adds a set for the round. -1 when the job has ended meanwhile.
int32_t add_set(Engine& engine, const Members& members, Course& course);

// `mine` steps of `all`, then join; `counts`: how many each rank does.
void run_uneven(Engine& engine, int rank, const std::vector<Step>& all, const std::vector<int>& counts, Course& course);

}  // namespace hvd::native
