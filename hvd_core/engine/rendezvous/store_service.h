// The work of the store's thread: it accepts connections, reads requests and answers them. See store_server.h.
//
// run() is the thread; stop() and clients() may be called by any thread. The mutex is held whenever the state changes,
// so that a fork, which takes it, leaves the child a state that it can close.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/fd.h"
#include "engine/rendezvous/gather.h"
#include "engine/rendezvous/handshake.h"
#include "engine/rendezvous/seal.h"

namespace hvd::rendezvous {

class Service {
 public:
  // Throws std::system_error.
  Service(base::Fd listener, std::string secret, int64_t handshake_ns);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void run();
  void stop();
  // Closes every descriptor. After the end of run().
  void close_all();
  size_t clients() const { return proven_; }

  // Around fork(): all services of the process keep still, and the child closes its copies of their descriptors.
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

 private:
  enum Status : uint8_t { kOk = 0, kTimeout = 1, kError = 2 };
  // A client that does not read its answers gets no further ones.
  static constexpr size_t kMostUnsent = size_t{4} << 20;
  struct Connection;
  using Timers = std::multimap<int64_t, Connection*>;

  struct Connection {
    base::Fd fd;
    std::optional<Handshake> handshake;        // until the proof
    std::unique_ptr<rendezvous::Seals> seals;  // of an encrypted connection
    std::string received, unsent;
    size_t sent = 0;                   // of `unsent`
    std::vector<std::string> awaited;  // the keys of a GET or ANY that waits
    bool waits = false, waits_for_any = false;
    std::string will_key, will;  // what the store sets when this connection ends; an empty key: nothing
    uint32_t events = 0;         // what epoll looks for
    int64_t since = 0;           // of its acceptance
    std::optional<Timers::iterator> timer;
    std::list<std::unique_ptr<Connection>>::iterator place;  // in unproven_ or proven_list_
  };

  // store_service.cc: connections and timers.
  void close_descriptors();
  void turn(void* of, uint32_t events);
  void serve(Connection& c, uint32_t events);
  void accept_one();
  void pause_listener(int64_t until);
  void watch_listener();
  void place_is_free();
  // read, prove, flush, answer_all and answer return false if the connection must be dropped; *why_ says why.
  bool read(Connection& c);
  bool prove(Connection& c);
  bool flush(Connection& c);
  void go_on(Connection& c);
  void watch(Connection& c, uint32_t events);
  void set_timer(Connection& c, int64_t when);
  void clear_timer(Connection& c);
  void drop(Connection& c, const char* why);
  void run_timers();
  int wait_ms() const;
  // store_service.cc
  bool answer_all(Connection& c);
  bool answer(Connection& c, std::string_view request);
  void get(Connection& c, std::string key, int64_t timeout_ms);
  void any(Connection& c, std::vector<std::string> keys);
  void add(Connection& c, const std::string& key, int64_t delta);
  bool gather(Connection& c, const std::string& key, std::string_view payload);
  void absent(Connection& c, const std::string& key, uint32_t members);
  void clear(const std::string& prefix);
  void set(const std::string& key, std::string value);
  void reply(Connection& c, uint8_t status, std::string_view payload = {});
  void stop_waiting(Connection& c);
  void carry_out_will(Connection& c);

  const std::string secret_;
  const int64_t handshake_ns_;
  const bool encrypts_;  // HOROVOD_TLS in this process
  base::Fd listener_, epoll_, wake_;
  int64_t listen_again_ = 0;  // when the listener is watched again after a pause; 0: it is watched
  bool full_ = false;         // the pause is for lack of places in unproven_
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> proven_{0};
  std::mutex mutex_;
  std::list<std::unique_ptr<Connection>> unproven_, proven_list_;  // unproven: the oldest first
  std::list<std::unique_ptr<Connection>> dropped_;                 // events of this turn may still name them
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, Gather> gathers_;
  std::unordered_map<std::string, std::vector<Connection*>> waiting_;  // whose GET waits for the key, in order
  Timers timers_;
  const char* why_ = "";
};

}  // namespace hvd::rendezvous
