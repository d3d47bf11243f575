// What this rank reports about waiting: its answers to requests for snapshots, the checks that find stalls and silent
// ranks, and its answers to `hvd doctor`.
//
// Called by the driver, except where a function is marked.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/node.h"
#include "engine/calls/process_sets.h"
#include "engine/calls/request.h"
#include "engine/watch/doctor.h"
#include "engine/watch/root_watch.h"
#include "engine/watch/snapshot.h"
#include "engine/watch/stack_sampler.h"
#include "engine/watch/stall_check.h"

namespace hvd {

struct EngineConfig;
class Inbox;

class Reports final : private watch::RootWatch::Host, private watch::Doctor::Host {
 public:
  // The engine.
  class Host {
   public:
    // The requests that the driver knows, without that of the start; and the one of join(), or null.
    virtual std::vector<calls::RequestRef> live_requests() const = 0;
    virtual calls::RequestRef join_request() const = 0;
    virtual std::string describe(int32_t rank) const = 0;  // "rank 3 (host a, pid 17)"
    virtual std::vector<std::string> state_lines() const = 0;
    virtual bool stopped() const = 0;
    // The job has to end, because rank 0 has been silent for too long.
    virtual void root_is_silent(const std::string& cause) = 0;
    virtual void count_stall_reports(uint64_t reports) = 0;
    // Any thread: the driver shall call answer_doctor(); the backend's call that runs, or an empty text; whether this
    // rank has asked for the end of the job.
    virtual void request_doctor_answer(bool all_ranks) = 0;
    virtual std::string call_under_way() const = 0;
    virtual bool is_leaving() const = 0;

   protected:
    ~Host() = default;
  };

  // `program`: null if the engine runs without Python.
  Reports(const EngineConfig& config, const calls::ProcessSets& sets, const Inbox& inbox,
          std::shared_ptr<const watch::Program> program, Host& host);

  void begin(agreement::Node& node);
  void start_doctor();
  // In each round. `waits`: whether any request waits here. Returns whether the node has something new to send.
  bool check(int64_t now, bool waits);
  // When check() has to be called at the latest.
  int64_t next() const;
  // The job ends, or rank 0 leaves it: no more is checked.
  void stop();
  void stop_root_watch() {
    if (root_watch_) root_watch_->stop();
  }
  // Ends the threads. Not with the GIL.
  void close();
  void close_in_child() noexcept {
    if (doctor_) doctor_->close_socket();
  }

  // From the node: rank 0, or hvd doctor by way of it, wants this rank's snapshot; a snapshot that this rank wanted.
  void snapshot_requested(uint32_t id);
  void received(agreement::Rank rank, uint32_t id, const std::string& text);
  void received_for_doctor(agreement::Rank rank, const std::string& text);
  void answer_doctor(bool all_ranks);

  // Any thread.
  void note_error(const std::string& what, const std::string& message);
  // This rank ends the job because of a limit on waiting, for these ranks, as far as they are known.
  void note_stalled(std::vector<agreement::Rank> ranks);
  std::optional<std::vector<agreement::Rank>> stalled_ranks() const;

 private:
  bool answer_requests(int64_t now);
  bool send_signs_of_life();
  int32_t silent_rank() const;
  std::string process_state(int32_t rank) const;
  // watch::RootWatch::Host
  int64_t waits_since() const override;
  std::string root() const override { return host_.describe(0); }
  std::string silence(int64_t silent_ns) const override;
  // watch::Doctor::Host
  void wake_for_doctor(bool all_ranks) override { host_.request_doctor_answer(all_ranks); }
  watch::Snapshot snapshot_of_stuck_rank() const override;
  void request_snapshots(agreement::Rank asker, uint32_t id);
  watch::Snapshot snapshot() const;
  watch::Snapshot snapshot_with(std::vector<std::pair<calls::RequestRef, bool>> waiting) const;  // any thread
  watch::Submission submission_of(const calls::Request& request, bool deferred) const;

  const EngineConfig& config_;
  const calls::ProcessSets& sets_;
  const Inbox& inbox_;
  const std::shared_ptr<const watch::Program> program_;
  Host& host_;
  agreement::Node* node_ = nullptr;
  std::unique_ptr<watch::StallCheck> stalls_;     // on the root
  std::unique_ptr<watch::RootWatch> root_watch_;  // on the other ranks
  std::vector<agreement::Rank> wants_sign_;       // on the root: ranks that want a sign of life
  std::unique_ptr<watch::StackSampler> sampler_;
  std::vector<uint32_t> requests_;  // for this rank's snapshot, while the stacks are sampled
  int64_t sample_ends_ = 0, sample_check_ = agreement::kNever;
  std::unique_ptr<watch::Doctor> doctor_;

  mutable std::mutex mutex_;  // protects the following members
  std::string last_error_;    // the last operation that failed on this rank
  int64_t last_error_ns_ = 0;
  std::optional<std::vector<agreement::Rank>> stalled_ranks_;
};

}  // namespace hvd
