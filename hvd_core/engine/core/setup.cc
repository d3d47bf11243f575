// Construction of an engine: backends, links to the neighbours, the observer, the background thread.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "engine/agreement/channel.h"
#include "engine/base/log.h"
#include "engine/base/threads.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Level;

Engine::Engine(EngineConfig config, std::shared_ptr<plugins::Store> store,
               std::shared_ptr<const watch::Program> program)
    : config_(std::move(config)),
      store_(std::move(store)),
      sets_(config_.rank),
      inbox_(config_.rank, sets_, *this),
      reports_(config_, sets_, inbox_, std::move(program), *this),
      driver_(*this, config_.spin_ns, config_.coalesce_ns) {
  watch_calls();
  load_backends();
  next_handle_ = config_.first_handle;
  if (config_.segment_fd >= 0)
    segment_ = std::make_shared<agreement::Segment>(config_.segment_fd, config_.segment_bytes);
  make_observer();
  set_up();
}

void Engine::watch_calls() {
  constexpr int64_t kLongestStopNs = int64_t{24} * 3600 * 1'000'000'000;
  constexpr int64_t kCreateGraceNs = 1'000'000'000;  // a backend that keeps its deadline reports by itself
  watch::CallWatch::Limits limits;
  limits.warn_ns = config_.stall_warn_ns;
  limits.operation_ns = config_.operation_ns;
  limits.create_ns = config_.start_ns + kCreateGraceNs;
  limits.end_ns = config_.end_ns;
  // The stall check sees operations until all ranks have submitted them. From then on they wait for the backend.
  if (config_.stall_abort_ns > 0 && (config_.operation_ns <= 0 || config_.stall_abort_ns < config_.operation_ns)) {
    limits.operation_ns = config_.stall_abort_ns;
    limits.operation_setting = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
  }
  if (config_.last_calls) plugins::CallMemory::keep_in(config_.last_calls);
  backends_.driver = std::make_shared<plugins::DriverRecord>();
  if (config_.operation_ns > 0)
    // The engine ends the job at the limit. A backend's own deadline comes much later, because a backend also counts
    // the time in which the whole job was stopped.
    backends_.driver->deadline_after = config_.operation_ns + std::max(config_.operation_ns, kLongestStopNs);
  call_watch_.reset(new watch::CallWatch(*backends_.driver, limits, *this));
  call_watch_->wake();  // backends are about to be loaded
}

void Engine::set_up() {
  epoll_fd_ = own_fds_.add(::epoll_create1(EPOLL_CLOEXEC));
  if (config_.bells[0] < 0) {
    for (int& fd : config_.bells) fd = own_fds_.add(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  }
  agreement::BellWord* word = !segment_            ? &own_bell_word_
                              : config_.leads_host ? segment_->leader_bell()
                                                   : segment_->bell(config_.bell_slot);
  driver_.set_bell(word, config_.bells, epoll_fd_);
  build_links();
  executor_.reset(
      new dataplane::Executor(config_.rank, config_.hosts, config_.job, config_.start_ns, backends_, store_, *this));
  executor_->limit_outstanding(config_.stall_warn_ns, config_.stall_abort_ns);
  executor_->observe(*observer_);
  std::vector<int32_t> all;
  for (int32_t r = 0; r < config_.size; ++r) all.push_back(r);
  sets_.add(0, all);
  startup_ = new_request(0, "startup");
  live_.insert(startup_);
  executor_->create(0, all, startup_, false);
  call_watch_->wake();  // the first communicators are about to be made
  reports_.start_doctor();
  driver_.start(config_.engine_core);
}

std::shared_ptr<plugins::Backend> Engine::load(const EngineConfig::Library& l) const {
  if (l.path.empty()) return nullptr;
  return plugins::Backend::load_library(l.path, l.name);
}

void Engine::load_host_backends(dataplane::Backends& backends, const EngineConfig& config) const {
  backends.local = load(config.local_backend);
  backends.global = load(config.global_backend);
  backends.local_alone = config.local_alone;
  backends.hierarchical = config.hierarchical;
  backends.overlap_levels = config.overlap_levels;
  for (size_t coll = 0; coll < backends.host_routes.size(); ++coll)
    backends.host_routes[coll] = load(config.host_routes[coll]);
}

void Engine::load_backends() {
  load_host_backends(backends_, config_);
  backends_.emulation.allowed = config_.emulation;
  backends_.math = std::make_shared<dataplane::HostMath>(load(config_.math_backend));
  plan_devices();
}

int Engine::OwnFds::add(int fd) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "the engine cannot make a descriptor");
  fds.push_back(fd);
  return fd;
}

Engine::OwnFds::~OwnFds() {
  for (int fd : fds) ::close(fd);
}

void Engine::build_links() {
  std::unique_ptr<agreement::Link> parent;
  std::vector<std::unique_ptr<agreement::Link>> children;
  for (const LinkConfig& l : config_.links) {
    std::unique_ptr<agreement::Channel> channel;
    if (l.sock_fd >= 0) {
      channel = std::make_unique<agreement::TcpChannel>(l.sock_fd);
      watch(l.sock_fd, l.peer, false);
    } else {
      // The bell is the neighbour's: the leader's own, or the one in the child's slot.
      agreement::BellWord* word = l.is_parent ? segment_->leader_bell() : segment_->bell(l.slot);
      agreement::Doorbell peer(word, l.peer_bells);
      auto up = segment_->up(l.slot), down = segment_->down(l.slot);
      channel = l.is_parent ? std::make_unique<agreement::ShmChannel>(up, down, peer)
                            : std::make_unique<agreement::ShmChannel>(down, up, peer);
      // A pidfd reports a neighbour's death also if a child that it forked still holds its sockets.
      int pidfd = l.peer_pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, l.peer_pid, 0)) : -1;
      if (pidfd >= 0) {
        watch(own_fds_.add(pidfd), l.peer, true);
      }
      // The socket reports that the neighbour has closed its links although its process lives on.
      if (l.guard_fd >= 0) watch(l.guard_fd, l.peer, true);
    }
    std::unique_ptr<rendezvous::Seals> seals;
    if (!l.key.empty()) {
      const auto kind = l.encrypted ? rendezvous::FrameSeal::Kind::kEncrypted : rendezvous::FrameSeal::Kind::kSigned;
      const char *const out = l.is_parent ? "up" : "down", *const in = l.is_parent ? "down" : "up";
      seals.reset(
          new rendezvous::Seals{rendezvous::FrameSeal(l.key, out, kind), rendezvous::FrameSeal(l.key, in, kind)});
    }
    auto link = std::make_unique<agreement::Link>(std::move(channel), l.peer, l.subtree, std::move(seals));
    if (l.is_parent)
      parent = std::move(link);
    else
      children.push_back(std::move(link));
  }
  agreement::NodeConfig n;
  n.rank = config_.rank;
  n.world = config_.size;
  n.cache_capacity = config_.cache_capacity;
  n.fusion = {config_.fusion_threshold, config_.coalesce_ns};
  if (config_.autotune.on && config_.rank == 0) n.autotune = autotune();
  n.dissolve_after_ns = config_.dissolve_after_ns;
  n.observer = &*observer_;
  node_.reset(new agreement::Node(n, std::move(parent), std::move(children), *this));
  reports_.begin(*node_);
}

// A line is written as soon as it is there, so that the file is of use while the job runs, and after its death.
agreement::AutotuneConfig Engine::autotune() const {
  agreement::AutotuneConfig c = config_.autotune;
  std::shared_ptr<std::FILE> file;
  if (const std::string& path = config_.autotune_log; !path.empty()) {
    if (std::FILE* f = std::fopen(path.c_str(), "we"))
      file.reset(f, std::fclose);
    else
      base::log(Level::Warning, "HOROVOD_AUTOTUNE_LOG=" + path + " cannot be written: " + std::strerror(errno) +
                                    ". Autotuning goes on without it");
  }
  c.log = [file](const std::string& line) {
    if (file) std::fprintf(file.get(), "%s\n", line.c_str()), std::fflush(file.get());
    base::log(Level::Debug, "autotune: " + line);
  };
  return c;
}

void Engine::watch(int fd, int32_t peer, bool is_death) {
  epoll_event ev{};
  ev.events = EPOLLIN | EPOLLRDHUP;
  ev.data.fd = fd;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &ev) != 0)
    throw std::system_error(errno, std::generic_category(), "watching a neighbour");
  if (is_death) watched_[fd] = peer;
}

}  // namespace hvd
