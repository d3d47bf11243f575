// See store_server.h.
#include "engine/rendezvous/store_server.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"
#include "engine/rendezvous/store_service.h"

namespace hvd::rendezvous {
namespace {
constexpr std::chrono::seconds kEndTime{3};
}

StoreServer::StoreServer(int listener, std::string secret, int64_t handshake_ns) : owner_(::getpid()) {
  static const int hooks =
      ::pthread_atfork(&Service::before_fork, &Service::after_fork_in_parent, &Service::after_fork_in_child);
  (void)hooks;
  service_ = std::make_unique<Service>(base::Fd(listener), std::move(secret), handshake_ns);
  // The program's signals are for its other threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::promise<void> ended;
    ended_ = ended.get_future();
    thread_ = std::make_unique<std::thread>(
        base::start_thread("hvd-store", [service = service_.get(), ended = std::move(ended)]() mutable {
          service->run();
          ended.set_value();
        }));
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  close();
  if (::getpid() == owner_) return;
  // The thread is the parent's, and its state may have changed half way at the fork.
  (void)service_.release();
  (void)thread_.release();
}

size_t StoreServer::clients() const { return closed_ ? 0 : service_->clients(); }

void StoreServer::close() {
  if (::getpid() != owner_ || closed_.exchange(true)) return;
  service_->stop();
  if (ended_.wait_for(kEndTime) == std::future_status::ready) {
    thread_->join();
    return service_->close_all();
  }
  base::log(base::Level::Warning,
            "store: the thread of the job's store cannot be ended, because the program has closed its descriptors; "
            "it stays until this process ends");
  thread_->detach();
  (void)service_.release();
}

}  // namespace hvd::rendezvous
