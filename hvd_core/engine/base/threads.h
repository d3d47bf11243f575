// Threads: starting one (the error of a start that fails names the limit), and the cores that it may run on.
#pragma once

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::base {

// Starts `work` on a thread of this name (a literal, at most 15 characters). Throws std::system_error.
template <typename F>
std::thread start_thread(const char* name, F&& work) {
  try {
    std::thread thread([name, work = std::forward<F>(work)]() mutable {
      ::pthread_setname_np(::pthread_self(), name);
      work();
    });
    // It has its name before its work begins, and before this function returns.
    ::pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& e) {
    throw std::system_error(e.code(), std::string("the thread ") + name +
                                          " cannot be started: this process or its user has as many threads as it may "
                                          "have (ulimit -u, or the pids limit of the container)");
  }
}

// Cores that threads may run on. The cores that the process was given (by taskset, an MPI launcher's binding, a cpuset)
// are the limit: no function here lets a thread run elsewhere. Any thread.

// A set of cores as the kernel has it: bit i of the words is core i. Empty if the kernel does not answer.
using CoreMask = std::vector<unsigned long>;

// The cores that the calling thread may run on. Threads that it makes inherit them.
CoreMask own_cores();

// Pins a thread that the calling thread has just made to one of the caller's cores. Returns an empty text, or the
// reason why the thread is not pinned.
std::string pin_child(pthread_t thread, int core);

// Gives the calling thread all cores of the process, also if the thread that made it was pinned.
void use_all_of(const CoreMask& process);

// Called on a thread that a backend made. Gives it the process's cores if it has other ones, or if the engine's pinned
// thread made it (`pinned` is that thread's core, or -1). A choice among the process's cores stays.
void keep_within(const CoreMask& process, int pinned);

}  // namespace hvd::base
