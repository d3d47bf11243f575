// Reads the source lines of places of the program, on a thread of its own: a file system may hang, and the thread that
// makes a report must not hang with it. A line that does not come in time is left out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/observe/snapshot.h"

namespace hvd::observe {

class Sources {
 public:
  Sources() : state_(std::make_shared<State>()) {}
  // Leaves a thread behind that a file system keeps.
  ~Sources();
  Sources(const Sources&) = delete;

  // Fills in the lines of these places, and waits for `patience` at most. The lines stay known until the next read(). A
  // call while an earlier file is still being read fills in nothing. Throws std::exception without a thread or memory.
  void read(const std::vector<Place*>& places, std::chrono::milliseconds patience);
  // Fills in the line of a place from the last read(), if it was among those. Does not wait for a file.
  void fill_in(Place& place) const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool quit = false, wanted = false, reading = false, ended = false;
    std::vector<Place> places;  // that are to be read
    std::vector<Place> known;
  };
  static void serve(State& s) noexcept;

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hvd::observe
