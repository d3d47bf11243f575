// Threads that are made while this object lives take no signals: signals are for the program's own threads.
#pragma once

#include <signal.h>

namespace hvd::gloo_backend {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace hvd::gloo_backend
