// What other threads see of a request while the driving thread completes it.
//
//   request_test          prints the names of the checks
//   request_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/calls/request.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "named_checks.h"

namespace {

using hvd::calls::Request;

constexpr int kRequests = 100'000;
constexpr std::chrono::seconds kLongest{2};  // on a busy machine fewer requests are made

// On a device: enqueued, and done a moment later. The other thread asks all the time, so that some of its questions
// fall into the change from one state to the next.
void an_enqueued_request_stays_ok_while_it_is_completed() {
  std::vector<Request> requests(kRequests);
  std::atomic<int> reached{-1};  // the request that the other thread asks
  std::atomic<bool> enough{false};
  int wrong = 0, asked = 0;
  std::thread other([&] {
    for (int i = 0; i < kRequests && !enough.load(); ++i) {
      const Request& request = requests[static_cast<size_t>(i)];
      reached.store(i);
      while (!request.settled() && !enough.load()) {
      }
      for (bool done = !request.settled(); !done; ++asked) {
        done = request.done();
        wrong += request.ok() ? 0 : 1;
      }
    }
  });
  const auto until = std::chrono::steady_clock::now() + kLongest;
  for (int i = 0; i < kRequests && std::chrono::steady_clock::now() < until; ++i) {
    while (reached.load() != i) {
    }
    requests[static_cast<size_t>(i)].enqueue(nullptr);
    for (int pause = i % 64; pause > 0; --pause) reached.load();
    requests[static_cast<size_t>(i)].complete();
  }
  enough.store(true);
  other.join();
  EXPECT(asked > 0);
  EXPECT(wrong == 0);
}

const named_checks::List kChecks = {
    CHECK(an_enqueued_request_stays_ok_while_it_is_completed),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
