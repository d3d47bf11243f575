// What the program's threads run, for reports.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/watch/snapshot.h"

namespace hvd::watch {

// The threads of a report, the main thread first, of all threads with all their frames: at most 8 threads of 12 frames
// each, shortened() paths, without the engine's own frames at the inner end.
std::vector<Thread> shown_threads(std::vector<Thread> all, const Program& program);

// The path relative to the working directory, where it is below.
std::string shortened(const std::string& path);

// Samples the stacks twice, a moment apart, and reads the source lines of the places that a report shows. It does so on
// a thread of its own, because both may take for ever: code of an extension may keep the GIL, and a file system may
// hang. The sample then lacks what did not come, and the thread is left behind.
//
// One sample at a time; any thread, without the GIL.
class StackSampler {
 public:
  // How long a sample may take: a program that runs Python releases the GIL every 5 ms if it is asked, and a hundred
  // threads may ask for it.
  static constexpr std::chrono::milliseconds kPatience{1500};

  explicit StackSampler(std::shared_ptr<const Program> program);
  ~StackSampler();
  StackSampler(const StackSampler&) = delete;

  // Begins a sample, with the source lines of these submissions. While the thread is still at the sample before, that
  // one serves both.
  void start(const std::vector<Submission>& submissions);
  // Whether the sample is complete, after `patience` at most.
  bool wait(std::chrono::milliseconds patience);
  // What the sample has so far. Fills in the source lines of these submissions.
  Threads take(std::vector<Submission>& submissions);

 private:
  // Shared with the thread, which may outlive this object.
  struct State {
    std::shared_ptr<const Program> program;
    std::mutex mutex;
    std::condition_variable changed;
    bool wanted = false, complete = false, quit = false, ended = false;
    std::vector<Place> places;  // of which the source lines are wanted
    // The sample. Without stacks the thread waits for the GIL.
    bool has_stacks = false;
    Threads threads;
    std::vector<Place> sources;  // places with their source lines
  };
  static void run(State& s);

  const std::shared_ptr<State> state_;
  int64_t started_at_ = 0, busy_at_start_ = 0;
  std::thread thread_;
};

}  // namespace hvd::watch
