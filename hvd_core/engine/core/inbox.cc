// See inbox.h.
#include "engine/core/inbox.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "engine/base/operations.h"

namespace hvd {

using calls::RequestRef;

namespace {

// Whether names_ has the name of a request in flight.
bool holds_name(const calls::Request& request) { return request.item.sig && request.item.sig->fields().repeats; }

bool is_question(const Command& command) {
  return command.type == Command::Asked || command.type == Command::AskedForAll;
}

void move_requests(std::vector<Command>& from, std::vector<RequestRef>& to) {
  for (Command& c : from)
    if (c.request) to.push_back(std::move(c.request));
  from.clear();
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- submission

Inbox::Pushed Inbox::push(Command& command) {
  std::lock_guard lock(mutex_);
  return add(command);
}

Inbox::Pushed Inbox::add(Command& command) {
  if (closed_ && !is_question(command)) return Pushed::Closed;
  if (command.request && command.type != Command::Observe) note(*command.request);
  Pushed pushed = Pushed::Taken;
  if (command.type == Command::Submit) {
    const calls::Request& request = *command.request;
    if (holds_name(request) && !names_.insert(request.set, request.item.name)) {
      pushed = Pushed::Duplicate;
      command = {Command::Poison, nullptr, command.set, *request.item.name, calls::kDuplicateText};
    } else {
      host_.observe_submission(*command.request);
    }
  }
  if (command.pair >= 0 && waits_for_pair(command)) return pushed;
  if ((!deferred_.empty() || command.type == Command::Join) && waits_for_deferred(command)) return pushed;
  put(std::move(command));
  return pushed;
}

void Inbox::note(calls::Request& request) {
  const auto kind = request.item.sig ? request.item.sig->fields().kind : base::OpKind::Join;
  request.submitted_ns = watch::coarse_now_ns();
  submissions_.add({request.item.name, request.call.site, request.submitted_ns, request.set, kind});
}

void Inbox::put(Command command) {
  commands_.push_back(std::move(command));
  filled_.store(true);
}

void Inbox::take(std::vector<Command>& to) {
  std::lock_guard lock(mutex_);
  to.swap(commands_);
  filled_.store(false);
}

void Inbox::free_name(const calls::Request& request) noexcept {
  if (!holds_name(request)) return;
  std::lock_guard lock(mutex_);
  names_.erase(request.set, request.item.name);
}

// A batch's front end may be waiting to submit the names again. The mutex is let go of in between, because a thread
// that submits should not have to sleep.
void Inbox::free_names(const std::vector<agreement::BatchItem>& items) noexcept {
  constexpr size_t kAtOnce = 32;
  for (size_t i = 0; i < items.size(); i += kAtOnce) {
    std::lock_guard lock(mutex_);
    for (size_t k = i; k < std::min(items.size(), i + kAtOnce); ++k)
      if (const auto& r = items[k].request; r && !r->enqueued() && holds_name(*r)) names_.erase(r->set, r->item.name);
  }
}

std::vector<RequestRef> Inbox::close() {
  std::vector<RequestRef> requests;
  std::lock_guard lock(mutex_);
  closed_ = true;
  move_requests(commands_, requests);
  for (auto& [key, deferred] : deferred_) {
    requests.push_back(std::move(deferred.request));
    move_requests(deferred.after, requests);
  }
  deferred_.clear();
  move_requests(after_deferred_, requests);
  for (auto& [other, pair] : pairs_) move_requests(pair.waiting, requests);
  pairs_.clear();
  filled_.store(false);
  return requests;
}

Inbox::Waiting Inbox::waiting() const {
  Waiting found;
  std::lock_guard lock(mutex_);
  for (const Command& c : commands_)
    if (c.type == Command::Submit) found.requests.emplace_back(c.request, false);
  for (const auto& [key, deferred] : deferred_) found.requests.emplace_back(deferred.request, true);
  for (const auto& [other, pair] : pairs_)
    for (const Command& c : pair.waiting)
      if (c.request) found.requests.emplace_back(c.request, false);
  found.submissions = submissions_;
  return found;
}

// ------------------------------------------------------------------------------------------------------- deferred

Inbox::Pushed Inbox::defer(const RequestRef& request, int32_t pair) {
  std::lock_guard lock(mutex_);
  if (closed_) return Pushed::Closed;
  note(*request);
  const bool repeats = holds_name(*request);
  if ((repeats && names_.contains(request->set, request->item.name)) ||
      !deferred_.try_emplace(request->key(), Deferred{request, {}, pair}).second) {
    Command refused{Command::Poison, nullptr, request->set, *request->item.name, calls::kDuplicateText, pair};
    add(refused);
    return Pushed::Duplicate;
  }
  if (repeats) names_.insert(request->set, request->item.name);
  host_.observe_submission(*request);
  return Pushed::Taken;
}

bool Inbox::waits_for_deferred(Command& command) {
  switch (command.type) {
    case Command::Poison:
    case Command::Wanted: {
      const auto at = deferred_.find(std::to_string(command.set) + ":" + command.name);
      if (at == deferred_.end()) return false;
      if (command.type == Command::Wanted)
        at->second.request->urgent = true;
      else
        at->second.after.push_back(std::move(command));
      return true;
    }
    case Command::Submit:
      if (!base::changes_sets(command.request->item.sig->fields().kind)) return false;
      after_deferred_.push_back(std::move(command));
      return true;
    case Command::Join:
      if (deferred_.empty() && !messages_wait()) return false;
      after_deferred_.push_back(std::move(command));
      return true;
    default:
      return false;
  }
}

bool Inbox::replace(const RequestRef& deferred, Command now) {
  std::lock_guard lock(mutex_);
  const auto at = deferred_.find(deferred->key());
  if (at == deferred_.end() || at->second.request != deferred) return false;
  std::vector<Command> after = std::move(at->second.after);
  now.pair = at->second.pair;
  deferred_.erase(at);
  if (now.pair < 0 || !waits_for_pair(now)) put(std::move(now));
  for (Command& c : after)
    if (c.pair < 0 || !waits_for_pair(c)) put(std::move(c));
  release();
  return true;
}

// Puts the commands into the inbox that have nothing left to wait for. A change of process sets does not wait for
// messages, since it may be what they wait for.
void Inbox::release() {
  if (!deferred_.empty() || after_deferred_.empty()) return;
  const bool keeps_joins = messages_wait();
  std::vector<Command> kept;
  for (Command& c : after_deferred_) {
    if (keeps_joins && c.type == Command::Join)
      kept.push_back(std::move(c));
    else
      put(std::move(c));
  }
  after_deferred_ = std::move(kept);
}

// ----------------------------------------------------------------------------------------------------------- pairs

// Gives a message the set of its pair. If the set does not exist yet, asks for it, keeps the message and returns true.
bool Inbox::waits_for_pair(Command& command) {
  Pair& pair = pairs_[command.pair];
  if (pair.set) {
    command.set = *pair.set;
    if (command.request) command.request->set = command.set;
    return false;
  }
  // Its own set has ended: the driver fails it.
  if (command.set != 0 && sets_.number_of(command.set) < 0) return false;
  if (!pair.asked || pair.asked->failed()) {
    agreement::SignatureFields f;
    f.kind = base::OpKind::AddProcessSet;
    f.ranks = {std::min(rank_, command.pair), std::max(rank_, command.pair)};
    f.repeats = false;
    RequestRef asked = host_.new_request(0, agreement::members_set_name(f.ranks, agreement::kPair), {});
    asked->item.sig = std::make_shared<const agreement::Signature>(std::move(f));
    asked->urgent = true;
    if (command.request) asked->call.site = command.request->call.site;
    Command ask{Command::Submit, asked};
    add(ask);
    pair.asked = std::move(asked);
  }
  pair.waiting.push_back(std::move(command));
  return true;
}

bool Inbox::messages_wait() const {
  return std::ranges::any_of(pairs_, [](const auto& pair) { return !pair.second.waiting.empty(); });
}

void Inbox::open_pair(int32_t other, agreement::SetId set) {
  std::lock_guard lock(mutex_);
  Pair& pair = pairs_[other];
  pair.set = set;
  pair.asked.reset();
  for (Command& c : pair.waiting) {
    c.set = set;
    if (c.request) {
      c.request->set = set;
      c.request->urgent = true;  // its caller may have asked while it waited here
    }
    put(std::move(c));
  }
  pair.waiting.clear();
  release();
}

std::vector<RequestRef> Inbox::refuse_pair(const RequestRef& asked) {
  std::vector<RequestRef> refused;
  std::lock_guard lock(mutex_);
  for (auto& [other, pair] : pairs_)
    if (pair.asked == asked) move_requests(pair.waiting, refused);
  release();
  return refused;
}

std::vector<RequestRef> Inbox::messages_of(agreement::SetId set) {
  std::vector<Command> ended;
  std::vector<RequestRef> requests;
  std::lock_guard lock(mutex_);
  for (auto& [other, pair] : pairs_) {
    const auto gone =
        std::stable_partition(pair.waiting.begin(), pair.waiting.end(), [&](const Command& c) { return c.set != set; });
    std::move(gone, pair.waiting.end(), std::back_inserter(ended));
    pair.waiting.erase(gone, pair.waiting.end());
  }
  if (!ended.empty()) release();
  move_requests(ended, requests);
  return requests;
}

}  // namespace hvd
