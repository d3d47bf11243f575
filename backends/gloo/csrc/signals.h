// Threads that are made while this lives take no signals: those are for the program's own.
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
