// Requests that wait for their data: a front end copies a device's tensors to host memory, and the call returns before
// the copy is made. Such a request has its name, its handle and, without a name, its number from the time of the call,
// so that ranks agree on them. The control node does not know it until begin().
//
// Commands that must not overtake it wait as well: a failure under its name, a join, and changes of process sets. A
// join also waits for messages that wait for the set of their pair (inbox.cc). Any thread.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/operations.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using calls::RequestRef;

bool Engine::defer(const RequestRef& request, int32_t pair) {
  Command refused{Command::Poison, nullptr, request->set, *request->item.name, calls::kDuplicateText, pair};
  {
    std::lock_guard lock(inbox_mutex_);
    note(*request);
    const bool repeats = request->item.sig->fields().repeats;
    if (!(repeats && names_.contains(request->set, request->item.name)) &&
        deferred_.try_emplace(request->key(), Deferred{request, {}, pair}).second) {
      if (repeats) names_.insert(request->set, request->item.name);
      if (observer_->on()) observe_submission(*request);
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
      if (!base::changes_sets(c.request->item.sig->fields().kind)) return false;
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

// Messages between two ranks (R17). All messages of two ranks go through one process set of these two, which they add
// by themselves at their first message; a process set of two ranks carries its own. So the rules for process sets hold
// for messages, and no other rank takes part.
//
// Until the set exists, a message waits here. It has its name and its handle from the time of the call on, so that no
// caller is held up: each of three ranks may send to the next one before it receives. A join waits until no message
// waits (inbox.cc), because a rank that has joined announces nothing.

using base::Failure;
using calls::RequestRef;

// For Command::pair.
int32_t Engine::pair_of(const calls::ProcessSet& given, int32_t from, int32_t to) const {
  return given.ranks.size() == 2 ? -1 : other_of(from, to);
}

// Gives a message the set of its pair. If the set is not there yet, asks for it, puts the message aside and returns
// true. The caller holds inbox_mutex_.
bool Engine::waits_for_pair(Command& c) {
  Pair& pair = pairs_[c.pair];
  if (pair.set) {
    c.set = *pair.set;
    if (c.request) c.request->set = c.set;
    return false;
  }
  // It fails in the inbox, like every submission that comes too late.
  if (stopped() || (c.set != 0 && sets_.number_of(c.set) < 0)) return false;
  if (!pair.asked || pair.asked->failed()) {
    agreement::SignatureFields f;
    f.kind = base::OpKind::AddProcessSet;
    f.ranks = {std::min(config_.rank, c.pair), std::max(config_.rank, c.pair)};
    f.repeats = false;
    RequestRef asked = new_request(0, agreement::members_set_name(f.ranks, agreement::kPair));
    asked->item.sig = std::make_shared<const agreement::Signature>(std::move(f));
    asked->urgent = true;
    if (c.request) asked->site = c.request->site;
    Command ask{Command::Submit, asked, 0, {}, {}};
    enqueue(ask);
    pair.asked = std::move(asked);
  }
  pair.waiting.push_back(std::move(c));
  return true;
}

// The caller holds inbox_mutex_.
bool Engine::messages_wait() const {
  return std::ranges::any_of(pairs_, [](const auto& pair) { return !pair.second.waiting.empty(); });
}

// The set for the messages with `other` begins at this point of the log. By the driver.
void Engine::open_pair(int32_t other, agreement::SetId set) {
  std::lock_guard lock(inbox_mutex_);
  Pair& pair = pairs_[other];
  inbox_.reserve(inbox_.size() + pair.waiting.size());  // so that no message is lost on the way
  pair.set = set;
  pair.asked.reset();
  for (Command& c : pair.waiting) {
    c.set = set;
    if (c.request) {
      c.request->set = set;
      c.request->urgent = true;  // its caller may have said so in vain
    }
    inbox_.push_back(std::move(c));
  }
  pair.waiting.clear();
  release_after_deferred();
  inbox_filled_.store(true);
}

// The request for a pair's set was refused on this rank, which had joined before. The next message asks again.
void Engine::refuse_messages(const RequestRef& asked, const std::string& text) {
  std::vector<Command> refused;
  {
    std::lock_guard lock(inbox_mutex_);
    for (auto& [other, pair] : pairs_)
      if (pair.asked == asked) refused.swap(pair.waiting);
    release_after_deferred();
    if (!inbox_.empty()) inbox_filled_.store(true);
  }
  for (const Command& c : refused)
    if (c.request) end(c.request, Failure::Disagreement, text);
}

// The set that these messages were given to has ended, and the set that would carry them is not there yet.
void Engine::fail_messages_of(agreement::SetId set) {
  std::vector<Command> ended;
  {
    std::lock_guard lock(inbox_mutex_);
    for (auto& [other, pair] : pairs_) {
      const auto gone = std::stable_partition(pair.waiting.begin(), pair.waiting.end(),
                                              [&](const Command& c) { return c.set != set; });
      std::move(gone, pair.waiting.end(), std::back_inserter(ended));
      pair.waiting.erase(gone, pair.waiting.end());
    }
    if (ended.empty()) return;
    release_after_deferred();
    if (!inbox_.empty()) inbox_filled_.store(true);
  }
  for (const Command& c : ended)
    if (c.request) end(c.request, Failure::SetRemoved, agreement::kSetRemoved);
}

void Engine::poison_message(int32_t process_set, int32_t from, int32_t to, const std::optional<std::string>& name,
                            const std::string& text) {
  CallUnderWay under_way(*this);
  check_usable();
  calls::ProcessSetRef set;
  try {
    set = sets_.find(process_set, "poison");
  } catch (const InvalidRequest&) {
    return;  // no rank can wait in a set that does not exist
  }
  // A rank that is not there waits for no message.
  if (from == to || !set->includes(from) || !set->includes(to) || (from != config_.rank && to != config_.rank)) return;
  const std::string full = set->message_name(from, to, name);
  note_error("send of '" + full + "'", text);
  push({Command::Poison, nullptr, set->id, full, text, pair_of(*set, from, to)}, false);
}

void Engine::fail_messages(const std::string& text) {
  std::map<int32_t, Pair> pairs;
  {
    std::lock_guard lock(inbox_mutex_);
    pairs.swap(pairs_);
  }
  for (const auto& [other, pair] : pairs)
    for (const Command& c : pair.waiting)
      if (c.request) end(c.request, Failure::JobEnded, text);
}

}  // namespace hvd
