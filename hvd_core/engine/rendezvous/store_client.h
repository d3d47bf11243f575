// The job's key-value store, over a connection that the bootstrap has opened and authenticated.
//
// The wire format is described in the server's module (hvd_core/_bootstrap/store/__init__.py). Any thread; one request
// at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/fd.h"
#include "engine/plugins/host_api.h"
#include "engine/rendezvous/seal.h"

namespace hvd::rendezvous {

class StoreClient final : public plugins::Store {
 public:
  // `fd` is connected and authenticated. The caller closes it; this object has a duplicate, because a thread that makes
  // a communicator may still wait here after that. `key`: of the connection if it is encrypted. Throws
  // std::system_error, and std::runtime_error if the system has no library for the encryption.
  explicit StoreClient(int fd, const std::string& key = {});
  StoreClient(const StoreClient&) = delete;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, int64_t deadline_ns) override;
  int64_t add(const std::string& key, int64_t delta) override;
  void del(const std::string& key) override;

  void count(const std::string& key) noexcept override;

  void cancel() override;

 private:
  enum Op : uint8_t { kSet = 1, kGet = 2, kAdd = 3, kDel = 4 };
  // Writes the answer's payload; returns false for "timeout". Throws plugins::BackendError for all other failures.
  bool call(Op op, const std::string& key, std::string_view payload, std::string* answer);
  std::string read_answer();
  std::string request_text(Op op, const std::string& key, std::string_view payload);
  void send_all(std::string_view bytes);
  void recv_all(char* into, size_t n);

  base::Fd fd_, cancel_fd_;  // cancel_fd_ is readable after cancel()
  std::mutex mutex_;
  std::unique_ptr<rendezvous::Seals> seals_;  // of an encrypted connection; with the mutex held
  int unread_ = 0;                            // answers to count() that are still to come
  std::atomic<bool> cancelled_{false};
};

}  // namespace hvd::rendezvous
