// A job in one process: N whole engines, joined by real links (control segments with eventfds, socket pairs), as the
// bootstrap would have joined N processes.
//
// Used by the thread that runs a round; engines may then be used from any thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/engine.h"

namespace hvd::native {

// The job's key-value store, shared by all ranks.
class SharedStore {
 public:
  SharedStore();
  std::shared_ptr<plugins::Store> client();

 private:
  struct State;
  class Client;
  const std::shared_ptr<State> state_;
};

enum class Tree { Segment, Sockets, TwoHosts };
const char* tree_name(Tree tree);

// What moves the data: one backend for all, or one within hosts and one between them.
struct Ways {
  std::string name;
  EngineConfig::Library local, global, math;
  bool several_hosts = false;  // otherwise it only serves ranks of one host
};

// Settings that change how the engine goes about its work, never what it does.
struct Knobs {
  int64_t spin_ns = 2'000, dissolve_after_ns = 300'000, stall_warn_ns = 0;
  uint32_t cache_capacity = 1024;
  uint64_t fusion_threshold = 128u << 20;
  bool guards = true, pids = true;
  std::array<bool, HVD_COLL_COUNT> hierarchical{};
  double start_seconds = 30;
  std::vector<EngineConfig::DeviceConfig> devices;
  // One rank has another library than the others, in the place of each that moves data; -1: none.
  int other_rank = -1;
  EngineConfig::Library other_library;
  // Makes the two ends of a link of Tree::Sockets, for a test that stands between parent and child. World does not
  // close them.
  std::function<std::array<int, 2>(int parent, int child)> link_ends;
};

class World {
 public:
  World(int ranks, Tree tree, const Ways& ways, const Knobs& knobs);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Makes the engines of all ranks but `absent`, each in a thread of its own, and waits until they have come up.
  // Returns why not, by rank.
  std::vector<std::string> start(int absent = -1);

  int size() const { return static_cast<int>(ranks_.size()); }
  Engine& operator[](int rank) { return *engines_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Engine>& slot(int rank) { return engines_[static_cast<size_t>(rank)]; }

  // Ends the sockets of this rank, as the death of its process would. Returns false if it has no sockets.
  bool cut(int rank);

 private:
  struct Rank {
    std::vector<LinkConfig> links;
    int segment = -1;
    uint64_t segment_bytes = 0;
    std::array<int, 2> bells{-1, -1};
    uint32_t slot = 0;
    bool leads = true;
  };

  int keep(int fd);
  std::array<int, 2> socket_pair();
  void join_host(const std::vector<int>& members);
  void join_by_socket(int parent, int child, std::vector<int32_t> subtree);
  EngineConfig config(int rank) const;

  Ways ways_;
  Knobs knobs_;
  SharedStore store_;
  std::vector<int> fds_;
  std::vector<int32_t> hosts_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<int>> sockets_;  // by rank: its ends
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace hvd::native
