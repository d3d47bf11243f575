// The engine of one process: requests in, completed requests out.
//
// It connects the control node (which decides on batches), the executor (which carries them out) and the threads that
// drive both. An object without mutable globals. Public functions may be called on any thread; they do not need
// Python's lock, and those that may wait must be called without it. docs/architecture.md says which thread drives when.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/agreement/node.h"
#include "engine/agreement/segment.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/call.h"
#include "engine/calls/process_sets.h"
#include "engine/calls/request.h"
#include "engine/core/driver.h"
#include "engine/core/inbox.h"
#include "engine/core/lifecycle.h"
#include "engine/core/reports.h"
#include "engine/dataplane/executor.h"
#include "engine/recorder/event.h"
#include "engine/recorder/observer.h"
#include "engine/rendezvous/store_client.h"
#include "engine/watch/call_watch.h"
#include "engine/watch/snapshot.h"

namespace hvd::recorder {
class Observer;
}

namespace hvd {

// One edge of the control tree, as the bootstrap made it. The bootstrap closes the descriptors.
struct LinkConfig {
  int32_t peer = 0;
  bool is_parent = false;
  std::vector<int32_t> subtree;
  int sock_fd = -1;  // TCP; otherwise shared memory:
  std::string key;   // of the TCP connection (rendezvous/seal.h); empty: its frames have no tags
  bool encrypted = false;
  uint32_t slot = 0;
  std::array<int, 2> peer_bells{-1, -1};
  int guard_fd = -1;
  int32_t peer_pid = 0;
};

struct EngineConfig {
  int32_t rank = 0, size = 1;
  std::vector<int32_t> hosts;           // host index by rank
  std::vector<std::string> host_names;  // by rank, for messages
  std::string job;                      // part of the keys in the store; differs between one init() and the next
  std::vector<LinkConfig> links;
  int segment_fd = -1;
  uint64_t segment_bytes = 0;
  std::array<int, 2> bells{-1, -1};  // this rank's eventfds
  uint32_t bell_slot = 0;            // this rank's slot in the segment
  bool leads_host = true;            // its bell is the leader's bell
  // The backends for host memory: `local_backend` within a host, `global_backend` between any ranks; one of them may be
  // empty. dataplane/set_comms.h says which collective uses which. `math_backend` has the device table for "cpu".
  struct Library {
    std::string name, path;
  };
  Library local_backend, global_backend, math_backend;
  bool local_alone = true;
  std::array<bool, HVD_COLL_COUNT> hierarchical{};
  bool overlap_levels = true, emulation = true;
  // For each device type: the backend with its device table, the device to open where no tensor names one, and by HVD_*
  // collective the backend whose communicators read its memory. An empty path: staged through host memory. `within`:
  // the backend that reduces on the device within hosts, if a large allreduce goes over two levels.
  struct DeviceConfig {
    std::string type;
    Library table, within;
    int32_t ordinal = 0;
    std::array<Library, HVD_COLL_COUNT> routes;
    std::string choice;  // see DeviceRoutes::choice()
  };
  std::vector<DeviceConfig> devices;
  // The backends of a device type that is not among `devices`, for its first tensor: nothing, and why, if no backend
  // serves it. May run the code of plugins. Null: no search.
  std::function<std::pair<std::optional<DeviceConfig>, std::string>(const std::string& type)> find_device;
  std::string devices_note;                         // why other device types are not served, for error messages
  std::array<Library, HVD_COLL_COUNT> host_routes;  // collectives on host memory that go over another backend
  uint64_t fusion_threshold = 128u << 20;
  int64_t coalesce_ns = 1'000'000;        // the coalescing delay, see agreement/fusion.h
  int64_t dissolve_after_ns = 1'000'000;  // how long this rank may hold part of a known batch
  agreement::AutotuneConfig autotune;
  std::string autotune_log;  // on rank 0: the file for the table of the settings that were tried; empty: no table
  uint32_t cache_capacity = 1024;
  int64_t stall_warn_ns = 60'000'000'000, stall_abort_ns = 0;  // 0: never
  std::string doctor_socket, doctor_facts;                     // see watch/doctor.h; empty: nobody can ask
  std::string stall_json_path;                                 // HOROVOD_STALL_REPORT_JSON
  int64_t operation_ns = 600'000'000'000;  // how long a backend may take for an operation; 0: for ever
  int64_t end_ns = 60'000'000'000;         // how long it may take to destroy its communicators
  int64_t start_ns = 30'000'000'000;       // how long ranks may take to come together for a communicator
  uint64_t first_handle = 1;               // greater than the handles of earlier engines of this process
  int64_t spin_ns = 50'000;                // how long a waiting caller looks before it sleeps
  bool check_consistency = false;          // front ends announce the weights that they train
  bool elastic = false;                    // the end of this engine's world is not the end of the job
  void* last_calls = nullptr;              // the launcher's memory for the records of calls, mapped for good, or null
  std::string secondary_failure_key;       // a counter in the store: this rank fails because of another one
  recorder::ObserverSettings observe;      // the flight recorder and the timeline
  int32_t engine_core = -1;                // the background thread's only core; -1: all cores of the process
};

using calls::InvalidRequest;
using calls::RequestFailed;

class Engine final : private agreement::Node::Host,
                     private dataplane::Executor::Events,
                     private watch::CallWatch::Host,
                     private Driver::Host,
                     private Inbox::Host,
                     private Reports::Host {
 public:
  // Starts the background thread, which makes the communicators of all ranks: wait for startup() first. `program`:
  // what stall reports ask about the program; null: they say less. Throws plugins::LoadError, plugins::BackendError,
  // std::system_error.
  Engine(EngineConfig config, std::shared_ptr<plugins::Store> store,
         std::shared_ptr<const watch::Program> program = nullptr);
  ~Engine();

  const calls::RequestRef& startup() const { return startup_; }

  // Makes a request of a call that was checked (see frontend::submit). Throws InvalidRequest, RequestFailed; then the
  // listener is not called.
  calls::RequestRef submit(agreement::SigRef signature, calls::Call&& call);
  // Announces requests of calls with Call::more_follow.
  void announce();
  // HOROVOD_CHECK_CONSISTENCY: the next request of this name reduces the gradients of these weights for the first time.
  // `remedy`: the line of the user's program that makes the weights equal. Throws InvalidRequest, RequestFailed.
  void announce_weights(int32_t process_set, const std::string& name, std::vector<agreement::WeightDigest> weights,
                        std::string remedy);
  // For a request of a call with Call::deferred, which waits for its data. begin(): the data are there; the request
  // takes part from now on. give_up(): there will be no data, for the reason `text`; the request fails, and so does the
  // matching call of the other ranks. Both do nothing if the job has ended meanwhile, or after each other.
  void begin(const calls::RequestRef& request);
  void give_up(const calls::RequestRef& request, const std::string& text);
  calls::RequestRef join(calls::Listener* listener = nullptr, base::CallSite site = {});
  // All ranks of the job add and remove the same sets in the same order. The request of an addition ends with the new
  // number in process_set. Here and below `process_set` is the number that users see.
  // `own`: the parts of a configuration that name the backends of this set; null: those of the job. `chosen`: the same
  // as a text, by which the ranks compare their choices.
  calls::RequestRef add_process_set(std::vector<int32_t> ranks, base::CallSite site = {},
                                    const EngineConfig* own = nullptr, std::string chosen = {});
  calls::RequestRef remove_process_set(int32_t process_set, base::CallSite site = {});
  // A set that its members alone add and end, without the other ranks (R15): members that give equal labels get one
  // set. `ranks`: ascending, this rank among them.
  calls::RequestRef add_members_set(std::vector<int32_t> ranks, const std::string& label, base::CallSite site = {});
  calls::RequestRef remove_members_set(int32_t process_set, base::CallSite site = {});
  calls::ProcessSets& process_sets() { return sets_; }
  // A call with this name failed on this rank before it reached the engine: the matching calls of the other ranks shall
  // fail too. Without a name the failed call is counted as the call would have been.
  void poison(int32_t process_set, base::OpKind kind, const std::optional<std::string>& name, const std::string& text);
  // The same for a send from one rank to another one, this rank among them.
  void poison_message(int32_t process_set, int32_t from, int32_t to, const std::optional<std::string>& name,
                      const std::string& text);

  bool poll(calls::Request& request);
  // Waits until the request is settled (true) or about `slice_ns` have passed (false).
  bool wait(calls::Request& request, int64_t slice_ns);
  // As wait(), for a caller that leaves soon in any case: it does not keep the request from being held in a known
  // batch. Also ends when `enough` becomes true, which a listener may set that this thread calls meanwhile.
  bool stay(calls::Request& request, int64_t slice_ns, const bool& enough) noexcept;

  // devices.cc. The device types whose tensors can be submitted, apart from host memory, as far as that is
  // known.
  std::vector<std::string> device_types() const;
  // Whether tensors of this type can be submitted. The first question about a type that no setting names runs the code
  // of plugins, and may take seconds.
  bool serves(const std::string& device_type) const;
  // The text of the error for tensors on a device of another type.
  std::string why_not_served(const std::string& device_type) const;
  // For reports: a front end has copied these tensors from a device without a backend (Tensor::staged_from).
  void note_copied(const agreement::SignatureFields& fields, const std::vector<calls::Tensor>& tensors);
  // The device of a tensor; opens the device at its first tensor. Throws InvalidRequest, plugins::BackendError.
  std::shared_ptr<plugins::Device> device_of(const calls::Tensor& tensor) const;
  // Marks the points in the callers' streams at which these tensors are ready; for Call::ready.
  std::vector<plugins::MarkRef> ready_marks(const std::vector<calls::Tensor>& in,
                                            const std::vector<calls::Tensor>& out) const;
  // For a settled request that has not failed: work that is given to the native stream from now on comes after the
  // request's work. Returns false if the device cannot do that; then call finish().
  bool order_after(calls::Request& request, void* stream);
  // Waits until the request is done (true) or about `slice_ns` have passed (false).
  bool finish(calls::Request& request, int64_t slice_ns);

  // recording.cc. On rank 0: switches the timeline on all ranks, at one point of the log. With an empty path: off. The
  // request is done when this rank has come to that point. On other ranks it has no effect and is done at once.
  calls::RequestRef switch_timeline(const std::string& path, bool mark_cycles, bool all_ranks);
  const std::shared_ptr<recorder::Observer>& observer() const { return observer_; }

  // Ends the job for all ranks in good order: batches that were agreed on are executed first. Aborts at the deadline.
  // Returns true if the job has ended, false after about `slice_ns`: then call it again.
  bool shutdown(const std::string& text, int64_t deadline_ns, int64_t slice_ns);
  // Ends the job for all ranks at once.
  void abort(const std::string& cause);
  // Ends the thread, the communicators and the use of the bootstrap's descriptors; aborts a job that runs. Waits for
  // calls under way in other threads, which end soon. Calls that come later throw RequestFailed.
  void close() noexcept;
  // Around a fork of this process; after_fork() in the parent.
  void before_fork() { backends_.devices->before_fork(); }
  void after_fork() noexcept { backends_.devices->after_fork(); }
  // In a forked child: this engine is the parent's. It closes nothing, ends nothing, and refuses all calls. It must not
  // be destroyed there, because a thread of the parent may have been changing any part of it during the fork.
  void in_forked_child() noexcept {
    lifecycle_.advance(Lifecycle::State::Forked);
    backends_.devices->abandon();
    backends_.devices->after_fork();
    reports_.close_in_child();
  }
  bool belongs_to_parent() const noexcept { return lifecycle_.state() == Lifecycle::State::Forked; }
  // A thread of the engine is in a backend's call for good, and uses this object: it must not be destroyed.
  bool left_behind() const noexcept { return lifecycle_.state() == Lifecycle::State::LeftBehind; }
  // The process has called exit(). If a backend did, or may have while it was active, reports that, notifies the
  // other ranks of this host, and terminates the process with a nonzero exit code. Otherwise ends the job unless it has
  // ended already, because the other ranks would wait for this one, and lets the process continue.
  void process_exits(int code) noexcept;

  // Also that of CallWatch::Host, Driver::Host and Reports::Host.
  bool stopped() const override { return lifecycle_.over(); }
  // The job did not end in good order. Valid once stopped().
  bool aborted() const { return lifecycle_.aborted(); }
  // If this rank has ended the job because of a limit on waiting (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, or a backend's
  // call): the ranks that the others waited for, as far as they are known. Any thread.
  std::optional<std::vector<agreement::Rank>> stalled_ranks() const { return reports_.stalled_ranks(); }
  const EngineConfig& config() const { return config_; }
  const dataplane::Backends& backends() const { return backends_; }
  // The backend of this name that moves data in this job or opens devices; null if there is no such backend.
  std::shared_ptr<plugins::Backend> backend(const std::string& name) const;

 private:
  // agreement::Node::Host
  void execute(agreement::SetId set, std::vector<agreement::BatchItem> items) override;
  void fail(const calls::RequestRef& request, base::Failure failure, const std::string& text) override;
  void joined(agreement::Rank last) override;
  void closed(agreement::Rank by, const std::string& text) override;
  void aborted(const std::string& cause) override;
  void set_added(agreement::SetId set, const std::vector<int32_t>& members, calls::RequestRef request,
                 const agreement::NameRef& name) override;
  void set_removed(agreement::SetId set, calls::RequestRef request) override;
  void link_lost(agreement::Rank peer, const std::string& why) override;
  void warn(const std::string& text) override;
  void snapshot_requested(uint32_t id) override { reports_.snapshot_requested(id); }
  void snapshot_received(agreement::Rank rank, uint32_t id, const std::string& text) override {
    reports_.received(rank, id, text);
  }
  void report_received(const std::string& text) override { base::log(base::Level::Warning, text); }
  void snapshot_for_doctor(agreement::Rank rank, const std::string& text) override {
    reports_.received_for_doctor(rank, text);
  }
  void observe(uint32_t flags, const std::string& path) override;
  // Ends the job because a neighbour is gone: Node::abort(), after a line of the log. ending.cc
  void lost(const std::string& cause);
  // dataplane::Executor::Events
  void completed(const calls::RequestRef& request) override;
  void completed(const std::vector<agreement::BatchItem>& items) override;
  void enqueued(const calls::RequestRef& request, const plugins::MarkRef& end) override;
  void refused(const calls::RequestRef& request, const std::string& why) override;
  void broken(int32_t code, const std::string& why) override;

  // CallWatch::Host, on the thread hvd-watch. ending.cc
  bool is_closing() const override { return lifecycle_.state() == Lifecycle::State::Closed; }
  void end_job(const std::string& cause) override;
  bool leave_driver_behind(uint64_t call, const std::string& cause) override;
  void end_process(const std::string& cause) override;
  void watch_calls();

  // Driver::Host. engine.cc
  bool round(bool execute) override;
  void broke_down(const char* why) noexcept override;
  void wait_for_data(int64_t until_ns) override { executor_->wait(until_ns); }
  void look() override { executor_->look(); }
  bool unfinished() const override;
  bool in_flight() const override { return executor_->in_flight(); }
  int64_t next_deadline() const override;
  bool has_input() override;
  bool has_commands() const override { return inbox_.filled(); }
  bool abort_raised() const;
  void check_neighbours();

  // Inbox::Host
  calls::RequestRef new_request(agreement::SetId set, std::string name, calls::Call&& call = {}) override;
  void observe_submission(calls::Request& request) override;

  // recording.cc
  void make_observer();
  void observe_entry(agreement::SetId set, const std::vector<agreement::BatchItem>& items);
  void save_ring_of(int32_t peer);
  void set_up();
  void load_backends();
  void plan_devices();
  std::shared_ptr<plugins::Backend> load(const EngineConfig::Library& library) const;
  void load_host_backends(dataplane::Backends& backends, const EngineConfig& config) const;
  std::shared_ptr<const dataplane::Backends> backends_like(const EngineConfig& config) const;
  void build_links();
  agreement::AutotuneConfig autotune() const;
  void watch(int fd, int32_t peer, bool is_death);
  void check_usable() const;
  void check_not_forked() const {
    if (belongs_to_parent()) check_usable();
  }
  // Counts the calls of other threads under way in the engine: close() waits until the count is 0.
  struct CallUnderWay {
    explicit CallUnderWay(Engine& e) : engine(e) { engine.calls_under_way_.fetch_add(1); }
    ~CallUnderWay() { engine.calls_under_way_.fetch_sub(1); }
    CallUnderWay(const CallUnderWay&) = delete;
    Engine& engine;
  };
  void push(Command command, bool soon);
  bool accepted(Inbox::Pushed pushed, const calls::RequestRef& request, bool soon);
  int64_t take_inbox();  // returns the time
  int32_t other_of(int32_t from, int32_t to) const { return from == config_.rank ? to : from; }
  // For Command::pair.
  int32_t pair_of(const calls::ProcessSet& given, int32_t from, int32_t to) const {
    return given.ranks.size() == 2 ? -1 : other_of(from, to);
  }
  void end(const calls::RequestRef& request);
  void end(const calls::RequestRef& request, base::Failure failure, const std::string& error) noexcept;
  void fail_in_flight(const std::string& message);
  // How long communicators have, after an abort, to let go of the tensors.
  static constexpr int64_t kSettleNs = 500'000'000;
  void tell_store_done();
  void report_secondary_failure() const;
  void note_needed_others() const;
  void tell_others_of_exit(const std::string& text);
  std::string what_ends() const;  // the end of a message about a failure that no rank survives in this engine
  void stop(Lifecycle::State how, const std::string& message);

  // Reports::Host. engine.cc
  std::vector<calls::RequestRef> live_requests() const override;
  calls::RequestRef join_request() const override { return join_request_; }
  std::string describe(int32_t rank) const override;
  std::vector<std::string> state_lines() const override;
  void root_is_silent(const std::string& cause) override { lost(cause); }
  void count_stall_reports(uint64_t reports) override;
  void request_doctor_answer(bool all_ranks) override;
  std::string call_under_way() const override { return call_watch_->under_way(base::now_ns()); }
  bool is_leaving() const override { return leaving_; }

  EngineConfig config_;
  dataplane::Backends backends_;
  std::shared_ptr<plugins::Store> store_;
  calls::ProcessSets sets_;
  Lifecycle lifecycle_;
  Inbox inbox_;
  Reports reports_;
  Driver driver_;
  calls::RequestRef startup_;
  std::shared_ptr<agreement::Segment> segment_;
  std::shared_ptr<recorder::Observer> observer_;
  agreement::BellWord own_bell_word_{0};
  // Descriptors made here; closed even if the constructor throws.
  struct OwnFds {
    std::vector<int> fds;
    OwnFds() = default;
    ~OwnFds();
    OwnFds(const OwnFds&) = delete;
    int add(int fd);
  };
  OwnFds own_fds_;
  int epoll_fd_ = -1;
  std::unordered_map<int, int32_t> watched_;  // descriptor -> the peer whose death makes it readable

  std::unique_ptr<agreement::Node> node_;
  std::unique_ptr<dataplane::Executor> executor_;

  calls::AnnouncedWeights announced_weights_;
  std::atomic<uint64_t> next_handle_{1};

  // From here on: by the driver. So are node_ and executor_.
  std::vector<Command> taking_;
  std::unordered_set<calls::RequestRef> live_;
  calls::RequestRef join_request_;
  uint64_t batches_ = 0;  // entries that the executor has got
  std::vector<recorder::RequestName> batch_names_;
  std::deque<calls::RequestRef> timeline_requests_;
  std::string closing_message_;
  int32_t left_first_ = -1;
  int64_t next_watch_ns_ = 0;
  // The backend reported an abort or a lost peer; the control plane should soon report the rank and the cause.
  int64_t cause_due_ = agreement::kNever;
  std::string cause_meanwhile_;
  // A neighbour has gone during the orderly end, while batches still run: it may have finished its part, or died.
  int64_t end_due_ = agreement::kNever;

  // By any thread.
  std::atomic<int32_t> calls_under_way_{0};
  std::atomic<bool> leaving_{false};  // this rank has asked for the end of the job
  std::mutex executor_mutex_;         // hvd-watch uses executor_, or close() takes it away
  std::unique_ptr<watch::CallWatch> call_watch_;
};

}  // namespace hvd
