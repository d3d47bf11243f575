// Looks at what the program's threads run, on two threads of its own that begin with the first look.
//
// One thread waits for the program's lock, because stacks can be read safely only while no thread of the program runs.
// The other one waits for the first for a moment. If the program does not give up its lock (code of an extension keeps
// it), the stacks are read from a copy of the process. Each look is two looks, a moment apart. The lines of the source
// are read by a third thread (sources.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/observe/program.h"
#include "engine/observe/snapshot.h"
#include "engine/observe/sources.h"

namespace hvd::observe {

class Looker {
 public:
  // `done` is called by the looker's thread after each look, with the result. It must be quick.
  Looker(std::shared_ptr<const Program> program, std::function<void(Threads)> done);
  // Ends the threads; leaves those behind that wait for the program's lock or for a file. The caller must not hold the
  // program's lock.
  ~Looker();

  // Looks once. Does nothing while a look is under way: its result serves both. The source lines of `wanted` are read
  // along. Throws std::exception without a thread or memory.
  void look(std::vector<Place> wanted = {});
  // For places of which the lines are needed: see sources.h. read_sources() waits for a moment, fill_in() does not.
  void read_sources(const std::vector<Place*>& places);
  void fill_in(Place& place) const { sources_.fill_in(place); }

 private:
  struct Text {
    std::string stacks;
    bool lock_held = false;
  };
  // What the threads share. The reader may wait for the program's lock for good: then it is left behind.
  struct State {
    std::shared_ptr<const Program> program;
    std::mutex mutex;
    std::condition_variable changed;
    bool wanted = false, reading = false, quit = false, reader_ended = false;
    std::optional<std::string> stacks;  // of the reader
    std::vector<Place> places;          // of which the source lines are wanted
  };
  static void read_with_lock(State& s);
  void answer();
  Text read();
  Threads look_twice();

  const std::shared_ptr<State> state_;
  const std::function<void(Threads)> done_;
  Sources sources_;
  std::thread reader_, answerer_;
};

}  // namespace hvd::observe
