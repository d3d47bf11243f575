// Descriptors and configurations of a job in one process. See world.h; the real ones are made by bootstrap/links.py.
#include "world.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "check.h"
#include "engine/base/log.h"
#include "engine/plugins/errors.h"

namespace hvd::native {

// The state outlives the store for an engine's thread that still cleans up its keys: the real store is another process.
struct SharedStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::map<std::string, int64_t> counters;
};

class SharedStore::Client final : public plugins::Store {
 public:
  explicit Client(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void set(const std::string& key, std::string_view value) override {
    std::lock_guard lock(state_->mutex);
    state_->values[key] = value;
    state_->changed.notify_all();
  }
  std::string get(const std::string& key, int64_t deadline_ns) override {
    std::unique_lock lock(state_->mutex);
    auto there = [&] { return state_->values.contains(key); };
    while (!there()) {
      if (cancelled_) throw plugins::BackendError(HVD_E_ABORTED, 0, 0, "the engine gives up");
      if (base::now_ns() >= deadline_ns)
        throw plugins::BackendError(HVD_E_TIMEOUT, 0, 0, "'" + key + "' did not come into the store in time");
      state_->changed.wait_for(lock, std::chrono::milliseconds(20));
    }
    return state_->values[key];
  }
  int64_t add(const std::string& key, int64_t delta) override {
    std::lock_guard lock(state_->mutex);
    return state_->counters[key] += delta;
  }
  void del(const std::string& key) override {
    std::lock_guard lock(state_->mutex);
    state_->values.erase(key);
  }
  void cancel() override {
    std::lock_guard lock(state_->mutex);
    cancelled_ = true;
    state_->changed.notify_all();
  }

 private:
  const std::shared_ptr<State> state_;
  bool cancelled_ = false;
};

SharedStore::SharedStore() : state_(std::make_shared<State>()) {}

std::shared_ptr<plugins::Store> SharedStore::client() { return std::make_shared<Client>(state_); }

const char* tree_name(Tree tree) {
  return tree == Tree::Segment ? "segment" : tree == Tree::Sockets ? "sockets" : "two hosts";
}

World::World(int ranks, Tree tree, const Ways& ways, const Knobs& knobs)
    : ways_(ways), knobs_(knobs), hosts_(static_cast<size_t>(ranks), 0) {
  ranks_.resize(static_cast<size_t>(ranks));
  sockets_.resize(static_cast<size_t>(ranks));
  engines_.resize(static_cast<size_t>(ranks));
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  if (tree == Tree::Segment) {
    join_host(all);
  } else if (tree == Tree::Sockets) {
    for (int r = 1; r < ranks; ++r) join_by_socket(0, r, {r});
  } else {
    // The larger half on the first host: 1 + 1, 2 + 1, 2 + 2.
    const int first = (ranks + 1) / 2;
    std::vector<int> here(all.begin(), all.begin() + first), there(all.begin() + first, all.end());
    join_by_socket(0, first, std::vector<int32_t>(there.begin(), there.end()));
    join_host(here);
    join_host(there);
    if (ways.several_hosts)
      for (int r : there) hosts_[static_cast<size_t>(r)] = 1;
  }
}

World::~World() {
  engines_.clear();
  for (int fd : fds_) ::close(fd);
}

int World::keep(int fd) {
  require(fd >= 0, "a descriptor cannot be made, errno " + std::to_string(errno));
  fds_.push_back(fd);
  return fd;
}

std::array<int, 2> World::socket_pair() {
  std::array<int, 2> ends;
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "no socket pair");
  for (int fd : ends) keep(fd);
  return ends;
}

void World::join_host(const std::vector<int>& members) {
  if (members.size() < 2) return;
  const uint64_t bytes = agreement::Segment::kHeaderBytes + agreement::Segment::kSlotBytes * members.size();
  const int segment = keep(::memfd_create("hvd-control", MFD_CLOEXEC));
  require(::ftruncate(segment, static_cast<off_t>(bytes)) == 0, "the control segment cannot be made");
  for (size_t i = 0; i < members.size(); ++i) {
    Rank& r = ranks_[static_cast<size_t>(members[i])];
    r.segment = segment;
    r.segment_bytes = bytes;
    r.slot = static_cast<uint32_t>(i);
    r.leads = i == 0;
    for (int& fd : r.bells) fd = keep(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  }
  Rank& leader = ranks_[static_cast<size_t>(members[0])];
  for (size_t i = 1; i < members.size(); ++i) {
    Rank& child = ranks_[static_cast<size_t>(members[i])];
    LinkConfig up, down;
    up.peer = members[0];
    up.is_parent = true;
    up.peer_bells = leader.bells;
    down.peer = members[i];
    down.subtree = {members[i]};
    down.peer_bells = child.bells;
    up.slot = down.slot = static_cast<uint32_t>(i);
    if (knobs_.pids) up.peer_pid = down.peer_pid = ::getpid();
    if (knobs_.guards) {
      const auto guard = socket_pair();
      down.guard_fd = guard[0];
      up.guard_fd = guard[1];
      sockets_[static_cast<size_t>(members[0])].push_back(guard[0]);
      sockets_[static_cast<size_t>(members[i])].push_back(guard[1]);
    }
    leader.links.push_back(down);
    child.links.push_back(up);
  }
}

void World::join_by_socket(int parent, int child, std::vector<int32_t> subtree) {
  const auto ends = knobs_.link_ends ? knobs_.link_ends(parent, child) : socket_pair();
  LinkConfig up, down;
  up.peer = parent;
  up.is_parent = true;
  up.sock_fd = ends[1];
  down.peer = child;
  down.subtree = std::move(subtree);
  down.sock_fd = ends[0];
  sockets_[static_cast<size_t>(parent)].push_back(ends[0]);
  sockets_[static_cast<size_t>(child)].push_back(ends[1]);
  ranks_[static_cast<size_t>(parent)].links.push_back(std::move(down));
  ranks_[static_cast<size_t>(child)].links.push_back(std::move(up));
}

EngineConfig World::config(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  EngineConfig c;
  c.rank = rank;
  c.size = static_cast<int32_t>(ranks_.size());
  c.hosts = hosts_;
  c.host_names.assign(ranks_.size(), "here");
  c.job = "engine/1";
  c.links = r.links;
  c.segment_fd = r.segment;
  c.segment_bytes = r.segment_bytes;
  c.bells = r.bells;
  c.bell_slot = r.slot;
  c.leads_host = r.leads;
  c.local_backend = ways_.local;
  c.global_backend = ways_.global;
  if (rank == knobs_.other_rank)
    for (EngineConfig::Library* library : {&c.local_backend, &c.global_backend})
      if (!library->path.empty()) *library = knobs_.other_library;
  c.math_backend = ways_.math;
  if (!ways_.local.path.empty() && !ways_.global.path.empty()) c.hierarchical = knobs_.hierarchical;
  c.devices = knobs_.devices;
  c.fusion_threshold = knobs_.fusion_threshold;
  c.coalesce_ns = c.dissolve_after_ns = knobs_.dissolve_after_ns;
  c.cache_capacity = knobs_.cache_capacity;
  c.stall_warn_ns = knobs_.stall_warn_ns;
  c.spin_ns = knobs_.spin_ns;
  c.start_ns = static_cast<int64_t>(knobs_.start_seconds * 1e9);
  return c;
}

std::vector<std::string> World::start(int absent) {
  std::vector<std::string> errors(ranks_.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size(); ++r) {
    if (r == absent) continue;
    threads.emplace_back([this, r, &errors] {
      try {
        auto& engine = engines_[static_cast<size_t>(r)];
        engine = std::make_unique<Engine>(config(r), store_.client());
        const auto startup = engine->startup();
        while (!engine->wait(*startup, 100'000'000)) {
        }
        if (!startup->ok()) errors[static_cast<size_t>(r)] = startup->error();
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  return errors;
}

bool World::cut(int rank) {
  for (int fd : sockets_[static_cast<size_t>(rank)]) ::shutdown(fd, SHUT_RDWR);
  return !sockets_[static_cast<size_t>(rank)].empty();
}

}  // namespace hvd::native
