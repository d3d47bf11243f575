// What becomes of a thread of the engine that is started when the address space is used up. A library, as the engine is
// one: the C library allocates its thread-local memory when a thread first uses it.
#include <sys/resource.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <typeinfo>

#include "engine/base/threads.h"

// "started", or the error's class. "-": not tried.
extern "C" const char* start_a_thread_without_memory() {
  hvd::base::prepare_to_throw();
  std::barrier turn(2);
  std::thread heir([&] {
    turn.arrive_and_wait();
    void* const volatile some = std::malloc(1);
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    std::free(some);
  });
  // The C library keeps the stack of a thread that has ended for the next one, and its heap for the next that
  // allocates.
  hvd::base::start_thread("ended", [] {}).join();
  turn.arrive_and_wait();
  turn.arrive_and_wait();
  const char* result = "-";
  long pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  const bool known = file && std::fscanf(file, "%ld", &pages) == 1;
  if (file) std::fclose(file);
  rlimit before{};
  if (known && ::getrlimit(RLIMIT_AS, &before) == 0) {
    const rlimit used_up{static_cast<rlim_t>(pages) * 4096, before.rlim_max};
    ::setrlimit(RLIMIT_AS, &used_up);
    try {
      hvd::base::start_thread("late", [] {}).join();
      result = "started";
    } catch (const std::exception& e) {
      result = typeid(e).name();
    }
    ::setrlimit(RLIMIT_AS, &before);
  }
  turn.arrive_and_wait();
  heir.join();
  return result;
}
