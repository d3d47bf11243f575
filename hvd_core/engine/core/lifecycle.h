// The states of an engine, from its construction to its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace hvd {

// Any thread may read. The driver makes all transitions but those to Closed (the thread in close()), LeftBehind (the
// thread that finds the driver stuck) and Forked (a forked child).
class Lifecycle {
 public:
  enum class State : uint8_t {
    Running,
    Closing,     // all ranks have agreed on the end of the job (CLOSE); agreed batches are still executed
    Stopped,     // the job has ended in good order
    Aborted,     // the job has ended by a failure
    LeftBehind,  // as Aborted; the background thread never returns from a backend's call, and uses the engine
    Closed,      // no thread and no communicator is left
    Forked,      // this process is a forked child: the engine is its parent's
  };
  // Whose failure ended the job, as far as this rank knows. The launcher names the rank that failed first.
  enum class Blame : uint8_t { Unknown, Here, Elsewhere };

  static bool legal(State from, State to);
  static const char* name_of(State state);

  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  // No operation runs any more, and none can be submitted.
  bool over() const noexcept { return state() >= State::Stopped; }
  // Valid once over(): the job did not end in good order.
  bool aborted() const noexcept { return aborted_.load(std::memory_order_relaxed); }

  // Changes the state; the transition must be legal.
  void advance(State to) noexcept;
  // The job has ended, as Stopped, Aborted or LeftBehind: the message of everything that fails from now on.
  void end(State how, const std::string& message);
  std::string message() const;

  Blame blame() const noexcept { return blame_.load(std::memory_order_relaxed); }
  void blame(Blame whose) const noexcept { blame_.store(whose, std::memory_order_relaxed); }

 private:
  std::atomic<State> state_{State::Running};
  std::atomic<bool> aborted_{false};  // of the end; Closed does not tell
  mutable std::atomic<Blame> blame_{Blame::Unknown};
  mutable std::mutex mutex_;
  std::string message_;
};

}  // namespace hvd
