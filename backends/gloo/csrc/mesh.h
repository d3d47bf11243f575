// The connections of one communicator: a Gloo context whose ranks found each other through the job's store.
//
// connect() is for the thread that creates the communicator, interrupt() for any, the rest for the communicator's
// worker.
#pragma once

#include <gloo/context.h>

#include <chrono>
#include <cstdint>
#include <hvd/backend.hpp>
#include <memory>
#include <string>
#include <vector>

#include "transport.h"

namespace hvd::gloo_backend {

// The options in force on this rank.
struct Settings {
  std::string iface, iface_source;
  int32_t timeout_s = 0;  // that a message may be waited for; 0: as long as the operation has
  std::string algorithm;  // rank 0's counts
};
Settings settings();

class Mesh : public ::gloo::Context {
 public:
  // Connects to every other rank, by the deadline; the settings become those of the communicator.
  static std::shared_ptr<Mesh> connect(const CommInit& init, Settings* settings);

  // For all waits from now on.
  void set_limits(Transport::Clock::time_point deadline, std::chrono::milliseconds patience) {
    transport_->set_limits(deadline, patience);
  }
  // A thread that waits for a peer fails at once. Never blocks.
  void interrupt() { transport_->interrupt(); }
  // A thread that waits for a peer that has closed its connection fails now; Gloo would not tell it. For one thread.
  void look_after_peers() { transport_->look_after_peers(); }
  // Ends the connections, by which the peers learn that this rank takes no more part. Call it when no collective runs.
  void close() { closeConnections(); }

  using ::gloo::Context::Context;

 private:
  std::string create_pairs(const std::string& address, std::chrono::milliseconds left);
  void connect_pairs(const CommInit& init, const std::vector<std::string>& theirs, const std::string& address);

  std::shared_ptr<Transport> transport_;
};

}  // namespace hvd::gloo_backend
