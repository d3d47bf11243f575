// See reports.h.
#include "engine/core/reports.h"

#include <unistd.h>

#include <algorithm>

#include "engine/base/log.h"
#include "engine/base/process.h"
#include "engine/core/engine.h"
#include "engine/core/inbox.h"

namespace hvd {

using calls::RequestRef;
using watch::Submission;

namespace {

constexpr size_t kMostWaiting = 16;
constexpr int64_t kSampleCheckNs = 20'000'000;

double age(int64_t since) { return std::max(0.0, static_cast<double>(base::now_ns() - since) / 1e9); }

}  // namespace

Reports::Reports(const EngineConfig& config, const calls::ProcessSets& sets, const Inbox& inbox,
                 std::shared_ptr<const watch::Program> program, Host& host)
    : config_(config), sets_(sets), inbox_(inbox), program_(std::move(program)), host_(host) {
  if (program_) sampler_ = std::make_unique<watch::StackSampler>(program_);
}

void Reports::begin(agreement::Node& node) {
  node_ = &node;
  if (config_.stall_warn_ns <= 0) return;
  if (!node.coordinator()) {
    root_watch_.reset(new watch::RootWatch(config_.stall_warn_ns, config_.stall_abort_ns, node, *this));
    return;
  }
  watch::StallCheck::Settings s;
  s.warn_ns = config_.stall_warn_ns;
  s.abort_ns = config_.stall_abort_ns;
  s.json_path = config_.stall_json_path;
  s.process_state = [this](agreement::Rank rank) { return process_state(rank); };
  stalls_ = std::make_unique<watch::StallCheck>(std::move(s), node, sets_);
}

void Reports::stop() {
  if (stalls_) stalls_->stop();
  stop_root_watch();
  requests_.clear();
  sample_check_ = agreement::kNever;
}

void Reports::close() {
  if (doctor_) doctor_->stop();
  sampler_.reset();
}

int64_t Reports::next() const {
  return std::min({sample_check_, stalls_ ? stalls_->next() : agreement::kNever,
                   root_watch_ ? root_watch_->next() : agreement::kNever});
}

bool Reports::check(int64_t now, bool waits) {
  if (host_.stopped()) return false;
  bool any = send_signs_of_life();
  if (now >= sample_check_) any |= answer_requests(now);
  if (root_watch_) {
    any |= root_watch_->check(now, waits);
    if (!root_watch_->end().empty()) {
      note_stalled({silent_rank()});
      host_.root_is_silent(root_watch_->end());
    }
    return any;
  }
  if (!stalls_ || (now < stalls_->next() && !stalls_->wants_time())) return any;
  any |= stalls_->check(now);
  host_.count_stall_reports(stalls_->reports());
  if (stalls_->end().empty()) return any;
  while (node_->step(now)) {  // the report goes out before the end
  }
  note_stalled(stalls_->missing());
  node_->abort(stalls_->end());
  return true;
}

// ----------------------------------------------------------------------------------- snapshots of this rank

void Reports::snapshot_requested(uint32_t id) {
  if (id == watch::RootWatch::kSignOfLife) return;  // the entry itself was the sign
  requests_.push_back(id);
  const int64_t now = base::now_ns();
  if (!sampler_) {
    answer_requests(now);
    return;
  }
  sampler_->start(snapshot().waiting);
  sample_ends_ = now + std::chrono::nanoseconds(watch::StackSampler::kPatience).count();
  sample_check_ = now + kSampleCheckNs;
}

// Once the sample is complete, or its time has passed. Returns whether it has answered.
bool Reports::answer_requests(int64_t now) {
  using std::chrono_literals::operator""ms;
  if (sampler_ && !sampler_->wait(0ms) && now < sample_ends_) {
    sample_check_ = now + kSampleCheckNs;
    return false;
  }
  sample_check_ = agreement::kNever;
  const auto requests = std::exchange(requests_, {});
  if (node_->is_aborted() || node_->is_closed()) return false;
  watch::Snapshot s = snapshot();
  if (sampler_)
    s.program = sampler_->take(s.waiting);
  else
    s.program.note = "the engine runs without Python";
  std::string text = watch::encode(s);
  while (text.size() > agreement::kLongestReport) {  // many threads with deep stacks, long names and paths
    if (s.program.threads.size() > 1)
      s.program.threads.pop_back();
    else
      s.last.clear(), s.waiting.resize(s.waiting.size() / 2);
    text = watch::encode(s);
  }
  for (uint32_t id : requests) node_->send_snapshot(id, text);
  return true;
}

Submission Reports::submission_of(const calls::Request& request, bool deferred) const {
  Submission s;
  if (request.item.sig) {
    const auto kind = request.item.sig->fields().kind;
    s.operation = base::op_name(kind);
    s.name = agreement::shown_name(kind, *request.item.name);
  } else {
    s.operation = s.name = base::op_name(base::OpKind::Join);
  }
  s.process_set = sets_.number_of(request.set);
  s.age_s = age(request.submitted_ns);
  s.deferred = deferred;
  if (program_) s.place = program_->place_of(request.call.site);
  return s;
}

// What this rank does, without the stacks of its threads and without source lines, which take reading.
watch::Snapshot Reports::snapshot() const {
  std::vector<std::pair<RequestRef, bool>> waiting;
  for (RequestRef& request : host_.live_requests())
    if (request->item.sig) waiting.emplace_back(std::move(request), false);
  watch::Snapshot s = snapshot_with(std::move(waiting));
  if (const RequestRef join = host_.join_request()) {
    s.joined_s = age(join->submitted_ns);
    s.waiting.push_back(submission_of(*join, false));
  }
  s.engine = host_.state_lines();
  return s;
}

watch::Snapshot Reports::snapshot_of_stuck_rank() const {
  watch::Snapshot s = snapshot_with({});
  s.stuck = true;
  if (std::string call = host_.call_under_way(); !call.empty()) s.engine.push_back(std::move(call));
  return s;
}

// `waiting`: the requests that the driver knows, and whether each is deferred.
watch::Snapshot Reports::snapshot_with(std::vector<std::pair<RequestRef, bool>> waiting) const {
  watch::Snapshot s;
  s.rank = config_.rank;
  if (static_cast<size_t>(config_.rank) < config_.host_names.size())
    s.host = config_.host_names[static_cast<size_t>(config_.rank)];
  s.pid = ::getpid();
  s.leaving = host_.is_leaving();
  const Inbox::Waiting here = inbox_.waiting();
  waiting.insert(waiting.end(), here.requests.begin(), here.requests.end());
  s.submissions = here.submissions.count();
  here.submissions.for_each([&](const watch::Submitted& x) {
    Submission one;
    one.operation = base::op_name(x.kind);
    one.name = x.kind == base::OpKind::Join ? one.operation : agreement::shown_name(x.kind, *x.name);
    one.process_set = sets_.number_of(x.set);
    one.age_s = age(x.at_ns);
    if (program_) one.place = program_->place_of(x.site);
    s.last.push_back(std::move(one));
  });
  {
    std::lock_guard lock(mutex_);
    s.error = last_error_;
    s.error_age_s = age(last_error_ns_);
  }
  const auto older = [](const auto& a, const auto& b) { return a.first->submitted_ns < b.first->submitted_ns; };
  const size_t shown = std::min(waiting.size(), kMostWaiting);
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<int64_t>(shown), waiting.end(), older);
  for (size_t i = 0; i < shown; ++i) s.waiting.push_back(submission_of(*waiting[i].first, waiting[i].second));
  return s;
}

void Reports::note_error(const std::string& what, const std::string& message) {
  const std::lock_guard lock(mutex_);
  last_error_ = what + ": " + message;
  last_error_ns_ = base::now_ns();
}

void Reports::note_stalled(std::vector<agreement::Rank> ranks) {
  const std::lock_guard lock(mutex_);
  if (!stalled_ranks_ || !ranks.empty()) stalled_ranks_ = std::move(ranks);
}

std::optional<std::vector<agreement::Rank>> Reports::stalled_ranks() const {
  const std::lock_guard lock(mutex_);
  return stalled_ranks_;
}

// ------------------------------------------------------------------------------------------- the silence of rank 0

// Messages to rank 0 go through the parent, which may be the rank that is stopped.
int32_t Reports::silent_rank() const {
  for (const LinkConfig& link : config_.links)
    if (link.is_parent && base::is_seen_to_stand(link.peer_pid)) return link.peer;
  return 0;
}

int64_t Reports::waits_since() const {
  const RequestRef join = host_.join_request();
  int64_t since = join ? join->submitted_ns : agreement::kNever;
  for (const RequestRef& request : host_.live_requests()) since = std::min(since, request->submitted_ns);
  return since;
}

std::string Reports::process_state(int32_t rank) const {
  for (const LinkConfig& link : config_.links)
    if (link.peer == rank) return base::process_state(link.peer_pid);
  return "";
}

std::string Reports::silence(int64_t silent_ns) const {
  const int32_t rank = silent_rank();
  const std::string state = process_state(rank);
  std::string text =
      host_.describe(rank) +
      (rank == 0 ? ", which decides what the ranks carry out" : ", which passes messages on to " + host_.describe(0)) +
      ", has not answered for " + watch::seconds_of(silent_ns) + ": " +
      (!state.empty() ? state
                      : "its process or its host is stopped, or a thread of it is inside a call of a "
                        "backend (its own log names that call)");
  const watch::Snapshot own = snapshot();
  if (own.waiting.empty()) return text;
  const Submission& first = own.waiting.front();
  text += ". " + host_.describe(config_.rank) + " waits for " + first.name + " since " + watch::seconds(first.age_s);
  if (first.place.known()) text += " at " + watch::text_of(first.place);
  const size_t more = own.waiting.size() - 1;
  if (more > 0) text += ", and for " + std::to_string(more) + (more == 1 ? " more operation" : " more operations");
  return text;
}

// On the root: any entry of the log is a sign of life, and this one has no other effect.
bool Reports::send_signs_of_life() {
  if (wants_sign_.empty() || node_->is_aborted() || node_->is_closed()) return false;
  node_->request_snapshots(watch::RootWatch::kSignOfLife, std::exchange(wants_sign_, {}));
  return true;
}

// ------------------------------------------------------------------------------ messages of others, and hvd doctor

// On the root: a request of another rank, or the answer to a request.
void Reports::received(agreement::Rank rank, uint32_t id, const std::string& text) {
  if (id == watch::RootWatch::kSignOfLife) return wants_sign_.push_back(rank);
  if (id < watch::Doctor::kRequests) {
    if (stalls_) stalls_->received(rank, id, text);
    return;
  }
  const auto asker = static_cast<agreement::Rank>(id - watch::Doctor::kRequests);
  if (asker == config_.rank) {
    received_for_doctor(rank, text);
  } else if (asker < config_.size && !node_->is_aborted() && !node_->is_closed()) {
    text.empty() ? request_snapshots(asker, id) : node_->forward_snapshot(asker, rank, text);
  }
}

void Reports::received_for_doctor(agreement::Rank rank, const std::string& text) {
  if (doctor_ && rank >= 0 && rank < config_.size) doctor_->add_snapshot(rank, text);
}

void Reports::request_snapshots(agreement::Rank asker, uint32_t id) {
  std::vector<agreement::Rank> others;
  for (agreement::Rank r = 0; r < config_.size; ++r)
    if (r != asker) others.push_back(r);
  node_->request_snapshots(id, std::move(others));
}

void Reports::start_doctor() {
  if (config_.doctor_socket.empty()) return;
  try {
    doctor_.reset(new watch::Doctor(config_.doctor_facts, config_.size, program_, *this));
    doctor_->serve(config_.doctor_socket);
  } catch (const std::exception& e) {  // the job runs without it
    doctor_.reset();
    base::log(base::Level::Info, std::string("hvd doctor cannot ask this process: ") + e.what());
  }
}

void Reports::answer_doctor(bool all_ranks) {
  if (!doctor_) return;
  doctor_->set_own(snapshot(), sets_.all());
  if (!all_ranks || node_->is_aborted() || node_->is_closed()) return;
  const uint32_t id = watch::Doctor::kRequests + static_cast<uint32_t>(config_.rank);
  if (node_->coordinator())
    request_snapshots(config_.rank, id);
  else
    node_->send_snapshot(id, "");  // rank 0 requests them
}

}  // namespace hvd
