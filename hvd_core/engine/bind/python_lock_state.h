// The state of Python's lock, read without the lock.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct hvd_python_lock {
  int known;               // 0: this version of Python does not show the state of its lock
  int kept;                // a thread has the lock, another one has asked for it, and it has not been given up yet
  unsigned long switches;  // how often the lock has passed from one thread to another
};

struct hvd_python_lock hvd_python_lock_of(const void* interpreter);

#ifdef __cplusplus
}
#endif
