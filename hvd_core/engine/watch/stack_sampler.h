// Samples what the program's threads run, for reports, on a thread that may be left behind ("hvd-stacks").
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/watch/snapshot.h"

namespace hvd::watch {

// The threads of a report, the main thread first, of all threads with all their frames: at most 8 threads of 12 frames
// each, shortened() paths, without the engine's own frames at the inner end.
std::vector<Thread> shown_threads(std::vector<Thread> all, const Program& program);

// The path relative to the working directory, where it is below.
std::string shortened(const std::string& path);

// Samples the stacks twice, a moment apart, and reads the source lines of the places that a report shows. Each sample
// has a thread of its own, because both may take indefinitely: code of an extension may keep the GIL, and a file system
// may hang. The sample then lacks what did not come, and the thread is left behind.
//
// One thread at a time, without the GIL.
class StackSampler {
 public:
  // How long a sample may take: a program that runs Python releases the GIL every 5 ms if it is asked, and a hundred
  // threads may ask for it.
  static constexpr std::chrono::milliseconds kPatience{1500};

  explicit StackSampler(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  ~StackSampler();
  StackSampler(const StackSampler&) = delete;

  // Begins a sample, with the source lines of these submissions. A sample that is not complete yet serves again.
  void start(const std::vector<Submission>& submissions);
  // Whether the sample is complete, after `patience` at most.
  bool wait(std::chrono::milliseconds patience);
  // What the sample has so far. Fills in the source lines of these submissions.
  Threads take(std::vector<Submission>& submissions);

 private:
  // Shared with the sample's thread, which may outlive this object.
  struct Sample {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Threads> threads;  // none: the thread waits for the GIL
    std::vector<Place> sources;      // places with their source lines, which are read one by one
    bool complete = false;
  };
  static void run(const Program& program, Sample& sample, std::vector<Place> places);

  const std::shared_ptr<const Program> program_;
  std::shared_ptr<Sample> sample_;
  int64_t started_at_ = 0, busy_at_start_ = 0;
};

}  // namespace hvd::watch
