// Starting a thread. The error of a start that fails names the limit.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::base {

inline constexpr size_t kFirstSteps = 64 << 10;

// Prepares the calling thread to throw when memory has run out, once. Its first throw allocates the thread's state of
// the C++ runtime, and this library's first thread_local variable its memory of the thread: the C library ends the
// process where one of them fails.
inline void prepare_to_throw() {
  static thread_local bool prepared = false;
  if (std::exchange(prepared, true)) return;
  try {
    throw 0;
  } catch (int) {
  }
}

struct Unmap {
  void operator()(void* room) const noexcept { ::munmap(room, kFirstSteps); }
};

// A thread that finds no memory for its own first steps would end the process (see above): it is not started then. The
// room for them is address space that the thread itself gives back. What the heap of the caller has free is of no use
// to it: without address space for a heap of its own, the C library gives it pages. The thread must catch its
// exceptions. `name`: a literal, at most 15 characters. Throws std::system_error, std::bad_alloc.
template <typename F>
std::thread start_thread(const char* name, F&& work) {
  try {
    void* const mapped = ::mmap(nullptr, kFirstSteps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    std::unique_ptr<void, Unmap> room(mapped);
    std::thread thread([name, room = std::move(room), work = std::forward<F>(work)]() mutable {
      room.reset();
      ::pthread_setname_np(::pthread_self(), name);
      prepare_to_throw();
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
