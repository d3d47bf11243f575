// Messages between two ranks (R17). All messages of two ranks go through one process set of these two, which they add
// by themselves at their first message; a process set of two ranks carries its own. So the rules for process sets hold
// for messages, and no other rank takes part.
//
// Until the set exists, a message waits here. It has its name and its handle from the time of the call on, so that no
// caller is held up: each of three ranks may send to the next one before it receives.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/observe/observer.h"

namespace hvd {

using queue::RequestRef;
using types::Failure;

bool Engine::push_message(Command c, const queue::ProcessSet& given, int32_t other, bool soon) {
  if (given.ranks.size() == 2) return push(std::move(c), soon);
  bool asks;
  {
    std::lock_guard lock(inbox_mutex_);
    asks = !std::exchange(pairs_[other].asked, true);
  }
  if (asks) {
    try {
      add_members_set({std::min(config_.rank, other), std::max(config_.rank, other)}, std::string(control::kPair),
                      c.request ? c.request->site : types::CallSite{});
    } catch (...) {
      std::lock_guard lock(inbox_mutex_);
      pairs_[other].asked = false;
      throw;
    }
  }
  {
    std::unique_lock lock(inbox_mutex_);
    Pair& pair = pairs_[other];
    if (pair.set) {
      c.set = *pair.set;
      if (c.request) c.request->set = c.set;
    } else if (stopped()) {  // fail_messages() has been here
      lock.unlock();
      check_usable();
    } else {
      if (c.request) c.request->submitted_ns = observe::coarse_now_ns();
      pair.waiting.push_back(std::move(c));
      return true;
    }
  }
  return push(std::move(c), soon);
}

// The set for the messages with `other` begins at this point of the log.
void Engine::open_pair(int32_t other, control::SetId set) {
  std::vector<RequestRef> refused;
  {
    std::lock_guard lock(inbox_mutex_);
    Pair& pair = pairs_[other];
    pair.asked = true;
    pair.set = set;
    for (Command& c : std::exchange(pair.waiting, {})) {
      c.set = set;
      const RequestRef request = c.request;
      if (request) {
        request->set = set;
        request->urgent = true;  // its caller may have said so in vain
      }
      if (!enqueue(c) && request) refused.push_back(request);
    }
  }
  for (const RequestRef& request : refused)
    request->fail(Failure::Mistake, std::string(queue::kDuplicateText) + " Name: '" + *request->item.name + "'.");
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
  push_message({Command::Poison, nullptr, set->id, full, text}, *set, other_of(from, to), false);
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
