// Cores that threads may run on. What the process was given (taskset, an MPI launcher's binding, a cpuset) is law: no
// function here lets a thread out of it. Any thread.
#pragma once

#include <pthread.h>

#include <string>
#include <vector>

namespace hvd::observe {

// A set of cores as the kernel sees it: bit i of the words is core i. Empty when the kernel does not tell.
using CoreMask = std::vector<unsigned long>;

// What the calling thread may run on, and what threads that it makes inherit.
CoreMask own_cores();

// Pins a thread that the calling one has just made to one of the caller's cores. Empty when that worked, else why not:
// then nothing has changed.
std::string pin_child(pthread_t thread, int core);

// Gives the calling thread the cores of the process, whatever the thread that made it was pinned to.
void use_all_of(const CoreMask& process);

// Called on a thread that a backend made: gives it the process's cores if it has others, because it set them itself, or
// was made by the engine's pinned thread (`pinned`, -1: there is none). Cores of the process that it chose are left to
// it.
void keep_within(const CoreMask& process, int pinned);

}  // namespace hvd::observe
