// The engine's part in stall reports: every rank makes its snapshot, rank 0 runs the check (stall_check.h).
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/process.h"
#include "engine/base/rank_list.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"
#include "engine/watch/doctor.h"
#include "engine/watch/snapshot.h"

namespace hvd {

using calls::RequestRef;
using watch::Submission;

namespace {
constexpr size_t kMostWaiting = 16;

// Messages to rank 0 go through the parent, which may be the rank that is stopped.
int32_t silent_rank(const EngineConfig& config) {
  for (const LinkConfig& link : config.links)
    if (link.is_parent && base::is_seen_to_stand(link.peer_pid)) return link.peer;
  return 0;
}

double age(int64_t since) { return std::max(0.0, static_cast<double>(base::now_ns() - since) / 1e9); }
}  // namespace

// Returns whether the node has something new to send.
bool Engine::check_stalls(int64_t now) {
  if (root_watch_ && !stopped()) {
    const bool asked = root_watch_->check(now, !live_.empty() || join_request_);
    if (!root_watch_->end().empty()) {
      note_stalled({silent_rank(config_)});
      lost(root_watch_->end());
    }
    return asked;
  }
  if (!stalls_ || stopped() || (now < stalls_->next() && !stalls_->wants_time())) return false;
  const bool any = stalls_->check(now);
  observer_->stall_reports(stalls_->reports());
  if (stalls_->end().empty()) return any;
  while (node_->step(now)) {  // the report goes out before the end
  }
  note_stalled(stalls_->missing());
  node_->abort(stalls_->end());
  return true;
}

void Engine::note_stalled(std::vector<agreement::Rank> ranks) {
  const std::lock_guard lock(report_mutex_);
  if (!stalled_ranks_ || !ranks.empty()) stalled_ranks_ = std::move(ranks);
}

std::optional<std::vector<agreement::Rank>> Engine::stalled_ranks() const {
  const std::lock_guard lock(report_mutex_);
  return stalled_ranks_;
}

void Engine::watch_root() {
  watch::RootWatch::Host host;
  host.waits_since = [this] {
    int64_t since = join_request_ ? join_request_->submitted_ns : agreement::kNever;
    for (const auto& [token, request] : live_)
      if (request != startup_) since = std::min(since, request->submitted_ns);
    return since;
  };
  host.root = [this] { return describe(0); };
  host.silent = [this] {
    const int32_t rank = silent_rank(config_);
    if (rank == 0) return describe(0) + ", which decides what the ranks carry out";
    return describe(rank) + ", which passes messages on to " + describe(0);
  };
  host.circumstance = [this] { return why_root_is_silent(); };
  root_watch_ = std::make_unique<watch::RootWatch>(
      watch::RootWatch::Settings{config_.stall_warn_ns, config_.stall_abort_ns}, *node_, std::move(host));
}

std::string Engine::process_state(int32_t rank) const {
  for (const LinkConfig& link : config_.links)
    if (link.peer == rank) return base::process_state(link.peer_pid);
  return "";
}

std::string Engine::why_root_is_silent() {
  std::string text = process_state(silent_rank(config_));
  if (text.empty())
    text =
        "its process or its host is stopped, or a thread of it is inside a call of a backend (its own log names that "
        "call)";
  const watch::Snapshot own = snapshot();
  if (own.waiting.empty()) return text;
  const Submission& first = own.waiting.front();
  text += ". " + describe(config_.rank) + " waits for " + first.name + " since " + watch::seconds(first.age_s);
  if (first.place.known()) text += " at " + watch::text_of(first.place);
  const size_t more = own.waiting.size() - 1;
  if (more > 0) text += ", and for " + std::to_string(more) + (more == 1 ? " more operation" : " more operations");
  return text;
}

// On the root: any entry of the log is a sign of life, and this one has no other effect.
bool Engine::answer_signs_of_life() {
  if (wants_sign_.empty()) return false;
  std::vector<agreement::Rank> ranks = std::exchange(wants_sign_, {});
  if (node_->is_aborted() || node_->is_closed()) return false;
  node_->look(watch::RootWatch::kSignOfLife, std::move(ranks));
  return true;
}

void Engine::told(agreement::Rank rank, uint32_t number, const std::string& text) {
  if (number == watch::RootWatch::kSignOfLife) return wants_sign_.push_back(rank);
  if (number >= watch::Doctor::kLooks) {
    told_for_doctor(rank, number, text);
  } else if (stalls_) {
    stalls_->told(rank, number, text);
  }
}

void Engine::reported(const std::string& text) { base::log(base::Level::Warning, text); }

// The stacks are read on other threads, which may take some tenths of a second.
void Engine::looked_at(uint32_t number) {
  if (number == watch::RootWatch::kSignOfLife) return;  // the entry itself was the sign
  looks_.push_back(number);
  try {
    if (program_ && !looker_) {
      looker_ = std::make_unique<watch::Looker>(program_, [this](watch::Threads seen) {
        CallUnderWay under_way(*this);
        {
          std::lock_guard lock(report_mutex_);
          seen_ = std::move(seen);
        }
        push({.type = Command::Looked}, false);
      });
    }
    if (looker_) {
      std::vector<watch::Place> places;
      for (watch::Submission& s : snapshot().waiting) places.push_back(std::move(s.place));
      return looker_->look(std::move(places));
    }
    watch::Threads nothing;
    nothing.note = "the engine runs without Python";
    answer_looks(std::move(nothing));
  } catch (const std::exception& e) {  // without a thread or memory
    watch::Threads nothing;
    nothing.note = e.what();
    answer_looks(std::move(nothing));
  }
}

void Engine::answer_looks(watch::Threads program) {
  if (looks_.empty()) return;
  watch::Snapshot s = snapshot();
  s.program = std::move(program);
  if (looker_)
    for (Submission& w : s.waiting) looker_->fill_in(w.place);
  std::string text = watch::encode(s);
  while (text.size() > agreement::kLongestReport) {  // many threads with deep stacks, long names and paths
    if (s.program.threads.size() > 1)
      s.program.threads.pop_back();
    else if (!s.last.empty())
      s.last.resize(s.last.size() / 2);
    else
      s.waiting.resize(s.waiting.size() / 2);
    text = watch::encode(s);
  }
  for (uint32_t number : std::exchange(looks_, {})) node_->tell(number, text);
}

Submission Engine::submission_of(const calls::Request& request, bool deferred) const {
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

// What this rank does, without the stacks of its threads and without source lines, which take reading. Called with
// driver_ held.
watch::Snapshot Engine::snapshot() {
  std::vector<std::pair<RequestRef, bool>> waiting;
  for (const auto& [token, request] : live_)
    if (request != startup_ && request->item.sig) waiting.emplace_back(request, false);
  watch::Snapshot s = snapshot_with(std::move(waiting));
  if (join_request_) {
    s.joined_s = age(join_request_->submitted_ns);
    s.waiting.push_back(submission_of(*join_request_, false));
  }
  return s;
}

// `waiting`: the requests that the driver knows, and whether each is deferred.
watch::Snapshot Engine::snapshot_with(std::vector<std::pair<RequestRef, bool>> waiting) {
  watch::Snapshot s;
  s.rank = config_.rank;
  if (static_cast<size_t>(config_.rank) < config_.host_names.size())
    s.host = config_.host_names[static_cast<size_t>(config_.rank)];
  s.pid = ::getpid();
  s.leaving = leaving_;
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
    std::lock_guard lock(report_mutex_);
    s.error = last_error_;
    s.error_age_s = age(last_error_ns_);
  }
  const auto older = [](const auto& a, const auto& b) { return a.first->submitted_ns < b.first->submitted_ns; };
  const size_t shown = std::min(waiting.size(), kMostWaiting);
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<int64_t>(shown), waiting.end(), older);
  for (size_t i = 0; i < shown; ++i) s.waiting.push_back(submission_of(*waiting[i].first, waiting[i].second));
  return s;
}

void Engine::note_error(const std::string& what, const std::string& text) noexcept {
  std::string error = what + ": " + text;
  std::lock_guard lock(report_mutex_);
  last_error_.swap(error);
  last_error_ns_ = base::now_ns();
}

// The engine's part in the answers to `hvd doctor` (doctor.h).

namespace {

std::string count_of(size_t n, const char* one, const char* more) {
  return std::to_string(n) + " " + (n == 1 ? one : more);
}

}  // namespace

void Engine::start_doctor() {
  if (config_.doctor_socket.empty()) return;
  watch::Doctor::Engine calls;
  calls.wake = [this](bool all_ranks) {
    CallUnderWay under_way(*this);
    push({.type = all_ranks ? Command::AskedForAll : Command::Asked}, false);
    driver_.ring_all();
  };
  calls.last = [this] { return snapshot_with({}); };
  calls.under_way = [this] { return call_watch_->under_way(base::now_ns()); };
  calls.size = config_.size;
  try {
    doctor_ = std::make_unique<watch::Doctor>(config_.doctor_facts, program_, std::move(calls));
    doctor_->serve(config_.doctor_socket);
  } catch (const std::exception& e) {  // the job runs without it
    doctor_.reset();
    base::log(base::Level::Info, std::string("hvd doctor cannot ask this process: ") + e.what());
  }
}

// Called with driver_ held.
void Engine::tell_doctor(bool all_ranks) {
  if (!doctor_) return;
  std::vector<std::string> lines;
  if (stopped()) {
    lines.push_back("the job has ended here: " + lifecycle_.message());
  } else if (lifecycle_.state() == Lifecycle::State::Closing) {
    lines.push_back("the job ends in good order: " + closing_message_);
  } else {
    lines.push_back(count_of(live_.size(), "operation is", "operations are") + " under way");
  }
  if (executor_->in_flight()) lines.push_back("a backend carries out a batch now");
  if (const std::string text = call_watch_->under_way(base::now_ns()); !text.empty()) lines.push_back(text);
  if (executor_->creating()) lines.push_back("communicators are being made");
  if (executor_->outstanding()) lines.push_back("a device has work that is not complete");
  lines.push_back(count_of(node_->entries(), "entry", "entries") + " of the log replayed, " +
                  count_of(node_->messages_up(), "message", "messages") + " sent to the coordinator");
  doctor_->told({snapshot(), std::move(lines), sets_.all()});
  if (!all_ranks || node_->is_aborted() || node_->is_closed()) return;
  const uint32_t number = watch::Doctor::kLooks + static_cast<uint32_t>(config_.rank);
  if (node_->coordinator())
    look_for(config_.rank, number);
  else
    node_->tell(number, "");  // rank 0 asks
}

void Engine::look_for(agreement::Rank asker, uint32_t number) {
  std::vector<agreement::Rank> others;
  for (agreement::Rank r = 0; r < config_.size; ++r)
    if (r != asker) others.push_back(r);
  node_->look(number, std::move(others));
}

// On the root: a question of another rank, or the answer to a question.
void Engine::told_for_doctor(agreement::Rank rank, uint32_t number, const std::string& text) {
  const auto asker = static_cast<agreement::Rank>(number - watch::Doctor::kLooks);
  if (asker == config_.rank) {
    if (doctor_) doctor_->told(rank, text);
  } else if (asker < config_.size && !node_->is_aborted() && !node_->is_closed()) {
    text.empty() ? look_for(asker, number) : node_->show(asker, rank, text);
  }
}

void Engine::shown(agreement::Rank rank, const std::string& text) {
  if (doctor_ && rank >= 0 && rank < config_.size) doctor_->told(rank, text);
}

}  // namespace hvd
