// Reads the text that Python's faulthandler writes about the threads of a process. Plain functions; any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/watch/snapshot.h"

namespace hvd::watch {

// The threads of `text`, the main thread first, the one that wrote it left out. At most `most_threads` threads of
// `most_frames` frames each.
std::vector<Thread> parse_stacks(std::string_view text, const Program& program, size_t most_threads = 8,
                                 size_t most_frames = 12);

// Fills in the source line of a place. Reads the file, which may take long (stack_sampler.h). Leaves it out if it
// cannot be found.
void add_source(Place& place);

// The path relative to the working directory, where it is below.
std::string shortened(const std::string& path);

// Reads the source lines of places of the program, on a thread of its own: a file system may hang, and the thread that
// makes a report must not hang with it. A line that does not come in time is left out.

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

// Runs a function in a copy of this process (fork), for memory that other threads change meanwhile: if the function
// crashes or never ends, only the copy does.

// What `write` writes to the descriptor that it gets. nullopt if it crashes, does not return within `patience`, or if
// there can be no copy: a process with pinned memory (as far as VmPin tells), or with very much memory, is not copied.
// `write` may call async-signal-safe functions only: another thread may have held any lock when the copy was made.
//
// The program does not notice the copy: no fork handler and no signal handler runs in it, it leaves no core file, and
// its end is no SIGCHLD and no result of wait(). Any thread.
std::optional<std::string> written_by_copy(const std::function<void(int fd)>& write,
                                           std::chrono::milliseconds patience);

// The same without a copy: in this process, which waits until `write` returns.
std::string written(const std::function<void(int fd)>& write);

// Looks at what the program's threads run, on two threads of its own that begin with the first look.
//
// One thread waits for the program's lock, because stacks can be read safely only while no thread of the program runs.
// The other one waits for the first for a moment. If the program does not give up its lock (code of an extension keeps
// it), the stacks are read from a copy of the process. Each look is two looks, a moment apart. The lines of the source
// are read by a third thread (stack_sampler.h).

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
  // For places of which the lines are needed: see stack_sampler.h. read_sources() waits for a moment, fill_in() does
  // not.
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

}  // namespace hvd::watch
