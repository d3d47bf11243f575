// Requests that wait for their data: a front end copies a device's tensors to host memory, and the call returns before
// the copy is made. Such a request has its name, its handle and, without a name, its number from the time of the call,
// so that ranks agree on them. The control node does not know it until begin().
//
// Commands that must not overtake it wait as well: a failure under its name, a join, and changes of process sets. A
// join also waits for messages that wait for the set of their pair (pairs.cc). Any thread.
#include <utility>

#include "engine/engine.h"
#include "engine/observe/observer.h"
#include "engine/types/operations.h"

namespace hvd {

using queue::RequestRef;
using types::Failure;

bool Engine::defer(const RequestRef& request, int32_t pair) {
  Command refused{Command::Poison, nullptr, request->set, *request->item.name, queue::kDuplicateText, pair};
  {
    std::lock_guard lock(inbox_mutex_);
    note(*request);
    const bool repeats = request->item.sig->fields().repeats;
    if (!(repeats && names_.contains(request->set, request->item.name)) &&
        deferred_.try_emplace(request->key(), Deferred{request, {}, pair}).second) {
      try {
        if (repeats) names_.insert(request->set, request->item.name);
        if (observer_->on()) observe_submission(*request);
      } catch (const std::bad_alloc&) {
        deferred_.erase(request->key());
        if (repeats) names_.erase(request->set, request->item.name);
        throw;
      }
      return true;
    }
  }
  push(std::move(refused), false);  // the refused call counts nevertheless, as in push()
  return false;
}

// Whether `c` was put aside until the requests that it must not overtake have begun. The caller holds inbox_mutex_.
bool Engine::comes_after_deferred(Command& c) {
  switch (c.type) {
    case Command::Poison:
    case Command::Wanted: {
      const auto at = deferred_.find(std::to_string(c.set) + ":" + c.name);
      if (at == deferred_.end()) return false;
      if (c.type == Command::Wanted)
        at->second.request->urgent = true;
      else
        at->second.after.push_back(std::move(c));
      return true;
    }
    case Command::Submit:
      if (!types::changes_sets(c.request->item.sig->fields().kind)) return false;
      after_deferred_.push_back(std::move(c));
      return true;
    case Command::Join:
      if (deferred_.empty() && !messages_wait()) return false;
      after_deferred_.push_back(std::move(c));
      return true;
    default:
      return false;
  }
}

// Puts `now` into the inbox in place of the request, then the commands that waited for it. Returns false if the request
// does not wait any more.
bool Engine::end_deferral(const RequestRef& request, Command now) {
  std::lock_guard lock(inbox_mutex_);
  const auto at = deferred_.find(request->key());
  if (at == deferred_.end() || at->second.request != request) return false;
  std::vector<Command> after = std::move(at->second.after);
  now.pair = at->second.pair;
  deferred_.erase(at);
  if (now.pair < 0 || !waits_for_pair(now)) inbox_.push_back(std::move(now));
  for (Command& c : after)
    if (c.pair < 0 || !waits_for_pair(c)) inbox_.push_back(std::move(c));
  release_after_deferred();
  inbox_filled_.store(true);
  return true;
}

// Puts the commands into the inbox that have nothing left to wait for. A change of process sets does not wait for
// messages, since it may be what they wait for. The caller holds inbox_mutex_.
void Engine::release_after_deferred() {
  if (!deferred_.empty() || after_deferred_.empty()) return;
  const bool keeps_joins = messages_wait();
  std::vector<Command> kept;
  for (Command& c : after_deferred_) (keeps_joins && c.type == Command::Join ? kept : inbox_).push_back(std::move(c));
  after_deferred_ = std::move(kept);
}

void Engine::begin(const RequestRef& request) {
  CallUnderWay under_way(*this);
  if (forked_) check_usable();
  if (end_deferral(request, {Command::Submit, request, request->set, {}, {}})) try_drive();
}

void Engine::give_up(const RequestRef& request, const std::string& text) {
  CallUnderWay under_way(*this);
  if (forked_) check_usable();
  if (!end_deferral(request, {Command::Poison, nullptr, request->set, *request->item.name, text})) return;
  end(request, Failure::Mistake, text);
  try_drive();
}

void Engine::fail_deferred(const std::string& text) {
  std::unordered_map<std::string, Deferred> deferred;
  std::vector<Command> after;
  {
    std::lock_guard lock(inbox_mutex_);
    deferred.swap(deferred_);
    after.swap(after_deferred_);
  }
  for (auto& [key, d] : deferred) end(d.request, Failure::JobEnded, text);
  for (const Command& c : after)
    if (c.request) end(c.request, Failure::JobEnded, text);
}

}  // namespace hvd
