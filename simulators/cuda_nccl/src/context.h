// What the driver knows of the process and of each thread: whether cuInit was called, primary contexts, and which
// context is current. Any thread.
#pragma once

#include <atomic>

#include "cuda_abi.h"

namespace cusim {

// One per device; the address stays the same for the life of the process.
struct Context {
  int device = 0;
  std::atomic<int> retained{0};
  std::atomic<int> broken{0};  // a CUresult that every later call answers; nothing but the end of the process mends it

  bool active() const { return retained > 0; }
  void destroy_with(CUresult why) {
    int fine = 0;
    broken.compare_exchange_strong(fine, why);
  }
};

// First line of functions that need no context: cuInit was called, this is no forked child, and no stream's thread.
CUresult enter();
// First line of all others: a context is current, and still works.
CUresult enter(Context** current);

CUresult initialise();
bool initialised();
Context& primary(int device);
bool is_device(int device);
CUresult retain(int device);
CUresult release(int device);

// Of the calling thread; null: none.
Context* current();
void set_current(Context* context);
void push(Context* context);
Context* pop();

}  // namespace cusim
