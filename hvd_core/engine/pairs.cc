// Messages between two ranks (R17). All messages of two ranks go through one process set of these two, which they add
// by themselves at their first message; a process set of two ranks carries its own. So the rules for process sets hold
// for messages, and no other rank takes part.
//
// Until the set exists, a message waits here. It has its name and its handle from the time of the call on, so that no
// caller is held up: each of three ranks may send to the next one before it receives. A join waits until no message
// waits (deferred.cc), because a rank that has joined announces nothing.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace hvd {

using queue::RequestRef;
using types::Failure;

// For Command::pair.
int32_t Engine::pair_of(const queue::ProcessSet& given, int32_t from, int32_t to) const {
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
    control::SignatureFields f;
    f.kind = types::OpKind::AddProcessSet;
    f.ranks = {std::min(config_.rank, c.pair), std::max(config_.rank, c.pair)};
    f.repeats = false;
    RequestRef asked = new_request(0, control::members_set_name(f.ranks, control::kPair));
    asked->item.sig = std::make_shared<const control::Signature>(std::move(f));
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
void Engine::open_pair(int32_t other, control::SetId set) {
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
void Engine::fail_messages_of(control::SetId set) {
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
    if (c.request) end(c.request, Failure::SetRemoved, control::kSetRemoved);
}

void Engine::poison_message(int32_t process_set, int32_t from, int32_t to, const std::optional<std::string>& name,
                            const std::string& text) {
  CallUnderWay under_way(*this);
  check_usable();
  queue::ProcessSetRef set;
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
