// Submission, waiting, and what the driver does with what threads have asked for.
#include <algorithm>
#include <functional>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using calls::RequestRef;
using State = Lifecycle::State;

namespace {

agreement::Hurry hurry_of(const calls::Request& request) {
  return request.urgent ? agreement::Hurry::Waits : request.call.soon ? agreement::Hurry::Soon : agreement::Hurry::None;
}

// Tells the observer that a caller waits: the beginning once, however many slices the wait has, and the end.
class WaitObserved {
 public:
  WaitObserved(recorder::Observer& observer, calls::Request& request, int64_t now)
      : observer_(observer), request_(request), on_(observer.on() && request.observed.name != 0 && !request.settled()) {
    if (!on_ || request.waited_since.load(std::memory_order_relaxed) != 0) return;
    request.waited_since.store(now, std::memory_order_relaxed);
    observer.waits(request.set, request.observed, now);
  }
  ~WaitObserved() {
    if (on_ && request_.settled())
      observer_.waited(request_.set, request_.observed, request_.waited_since.load(std::memory_order_relaxed));
  }
  WaitObserved(const WaitObserved&) = delete;

 private:
  recorder::Observer& observer_;
  calls::Request& request_;
  const bool on_;
};

}  // namespace

void Engine::check_usable() const {
  if (lifecycle_.state() == State::Forked) throw RequestFailed(Failure::Mistake, calls::kForkedText);
  if (!stopped()) return;
  note_needed_others();
  throw RequestFailed(Failure::JobEnded, lifecycle_.message());
}

RequestRef Engine::new_request(agreement::SetId set, std::string name, calls::Call&& call) {
  auto request = std::make_shared<calls::Request>(std::move(call));
  request->handle = next_handle_.fetch_add(1, std::memory_order_relaxed);
  request->set = set;
  request->item.name = std::make_shared<const std::string>(std::move(name));
  return request;
}

RequestRef Engine::submit(agreement::SigRef signature, calls::Call&& call) {
  CallUnderWay under_way(*this);
  check_usable();
  const base::OpKind kind = signature->fields().kind;
  const auto set = sets_.find(call.process_set, base::op_name(kind));
  if (!set->includes_me())
    throw InvalidRequest(std::string(base::op_name(kind)) + ": Rank " + std::to_string(config_.rank) +
                         " is not a member of the provided process set.");
  const bool message = kind == base::OpKind::Send;
  if (message)
    call.name = set->message_name(call.root, call.to, call.name);
  else if (!call.name)
    call.name = set->next_unnamed(kind);
  std::string name = std::move(*call.name);
  const RequestRef request = new_request(set->id, std::move(name), std::move(call));
  const calls::Call& made = request->call;
  if (announced_weights_.any()) {
    if (kind == base::OpKind::Broadcast) announced_weights_.forget();
    agreement::SignatureFields fields = signature->fields();
    if (announced_weights_.take(request->key(), fields))
      signature = std::make_shared<const agreement::Signature>(std::move(fields));
  }
  request->item.sig = std::move(signature);
  request->urgent = made.waits;
  if (made.listener) made.listener->request = request;
  const int32_t pair = message ? pair_of(*set, made.root, made.to) : -1;
  const bool soon = made.waits || made.stays || made.more_follow;
  Command command{Command::Submit, request, set->id, {}, {}, pair};
  const Inbox::Pushed pushed = made.deferred ? inbox_.defer(request, pair) : inbox_.push(command);
  if (!accepted(pushed, request, soon || (made.deferred && pushed == Inbox::Pushed::Taken)))
    throw InvalidRequest(std::string(calls::kDuplicateText) + " Name: '" + *request->item.name + "'.");
  return request;
}

// What follows from an attempt to put a command into the inbox. `soon`: the caller comes back, and drives then. Returns
// false for a submission whose name is in flight.
bool Engine::accepted(Inbox::Pushed pushed, const RequestRef& request, bool soon) {
  if (pushed == Inbox::Pushed::Closed) {
    if (request) end(request, Failure::JobEnded, lifecycle_.message());
    return true;
  }
  const bool fresh = pushed == Inbox::Pushed::Taken;
  if (!soon || !fresh) driver_.try_drive();
  return fresh;
}

void Engine::push(Command command, bool soon) {
  const RequestRef request = command.request;
  accepted(inbox_.push(command), request, soon);
}

void Engine::begin(const RequestRef& request) {
  CallUnderWay under_way(*this);
  check_not_forked();
  if (inbox_.replace(request, {Command::Submit, request, request->set})) driver_.try_drive();
}

void Engine::give_up(const RequestRef& request, const std::string& text) {
  CallUnderWay under_way(*this);
  check_not_forked();
  if (!inbox_.replace(request, {Command::Poison, nullptr, request->set, *request->item.name, text})) return;
  end(request, Failure::Mistake, text);
  driver_.try_drive();
}

void Engine::announce() {
  CallUnderWay under_way(*this);
  if (!belongs_to_parent()) driver_.try_drive();
}

void Engine::announce_weights(int32_t process_set, const std::string& name,
                              std::vector<agreement::WeightDigest> weights, std::string remedy) {
  check_usable();
  const auto set = sets_.find(process_set, "announce_weights");
  announced_weights_.announce(std::to_string(set->id) + ":" + name, std::move(weights), std::move(remedy));
}

RequestRef Engine::join(calls::Listener* listener, base::CallSite site) {
  CallUnderWay under_way(*this);
  check_usable();
  auto request = new_request(0, "join.noname");
  request->call.site = site;
  if ((request->call.listener = listener)) listener->request = request;
  push({Command::Join, request, 0, {}, {}}, false);
  return request;
}

RequestRef Engine::add_process_set(std::vector<int32_t> ranks, base::CallSite site, const EngineConfig* own,
                                   std::string chosen) {
  agreement::SignatureFields f;
  f.kind = base::OpKind::AddProcessSet;
  f.ranks = std::move(ranks);
  f.backends = std::move(chosen);
  return submit(std::make_shared<const agreement::Signature>(std::move(f)),
                {.name = agreement::kSetsName, .site = site, .backends = own ? backends_like(*own) : nullptr});
}

RequestRef Engine::add_members_set(std::vector<int32_t> ranks, const std::string& label, base::CallSite site) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascending || ranks.empty() || ranks[0] < 0 || ranks.back() >= config_.size ||
      !std::binary_search(ranks.begin(), ranks.end(), config_.rank))
    throw InvalidRequest(
        "A process set that its members alone ask for needs distinct ranks of the job, in ascending "
        "order, this rank among them.");
  agreement::SignatureFields f;
  f.kind = base::OpKind::AddProcessSet;
  f.ranks = std::move(ranks);
  std::string name = agreement::members_set_name(f.ranks, label);
  f.repeats = false;
  return submit(std::make_shared<const agreement::Signature>(std::move(f)), {.name = std::move(name), .site = site});
}

RequestRef Engine::remove_members_set(int32_t process_set, base::CallSite site) {
  const auto set = sets_.find(process_set, "remove_process_set");
  agreement::SignatureFields f;
  f.kind = base::OpKind::RemoveProcessSet;
  f.root = static_cast<int32_t>(set->id);
  std::string name = agreement::members_set_name(set->ranks, "end of " + std::to_string(set->id));
  f.repeats = false;
  return submit(std::make_shared<const agreement::Signature>(std::move(f)), {.name = std::move(name), .site = site});
}

RequestRef Engine::remove_process_set(int32_t process_set, base::CallSite site) {
  agreement::SignatureFields f;
  f.kind = base::OpKind::RemoveProcessSet;
  try {
    f.root = static_cast<int32_t>(sets_.find(process_set, "remove_process_set")->id);
  } catch (const InvalidRequest& e) {
    poison(0, f.kind, agreement::kSetsName, e.what());
    throw;
  }
  return submit(std::make_shared<const agreement::Signature>(std::move(f)),
                {.name = agreement::kSetsName, .site = site});
}

void Engine::poison(int32_t process_set, base::OpKind kind, const std::optional<std::string>& name,
                    const std::string& text) {
  CallUnderWay under_way(*this);
  check_usable();
  calls::ProcessSetRef set;
  try {
    set = sets_.find(process_set, "poison");
  } catch (const InvalidRequest&) {
    return;  // no rank can wait in a set that does not exist
  }
  if (!set->includes_me()) return;
  reports_.note_error(std::string(base::op_name(kind)) + (name ? " of '" + *name + "'" : ""), text);
  push({Command::Poison, nullptr, set->id, name ? *name : set->next_unnamed(kind), text}, false);
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
  reports_.note_error("send of '" + full + "'", text);
  push({Command::Poison, nullptr, set->id, full, text, pair_of(*set, from, to)}, false);
}

bool Engine::wait(calls::Request& request, int64_t slice_ns) {
  CallUnderWay under_way(*this);
  check_not_forked();
  const int64_t now = base::now_ns();
  WaitObserved observed(*observer_, request, now);
  // The request must not be held in a known batch that is incomplete here, nor be coalesced.
  if (!request.settled() && request.item.sig && !request.urgent)
    push({Command::Wanted, nullptr, request.set, *request.item.name}, true);
  return driver_.await(request, now + slice_ns, nullptr);
}

bool Engine::stay(calls::Request& request, int64_t slice_ns, const bool& enough) noexcept {
  CallUnderWay under_way(*this);
  return driver_.await(request, base::now_ns() + slice_ns, &enough);
}

bool Engine::poll(calls::Request& request) {
  CallUnderWay under_way(*this);
  if (request.done()) return true;
  check_not_forked();
  if (!request.settled())
    push({Command::Wanted, nullptr, request.set, *request.item.name}, false);
  else
    driver_.try_look();  // and nothing more: the caller may hold the GIL
  return request.done();
}

int64_t Engine::take_inbox() {
  backends_.driver->note_driver();
  if (!inbox_.filled()) return base::now_ns();
  inbox_.take(taking_);
  const int64_t now = base::now_ns();  // not earlier than any submission of these
  for (Command& c : taking_) {
    if (c.type == Command::Asked || c.type == Command::AskedForAll) {
      reports_.answer_doctor(c.type == Command::AskedForAll);
      continue;
    }
    if (node_->is_aborted() || node_->is_closed()) {
      // In an orderly end, an abort stops the batches that still run.
      if (c.type == Command::Abort && !stopped()) {
        executor_->abort();
        executor_->clear();
        stop(State::Stopped, closing_message_);
      }
      if (c.request && !c.request->done())
        end(c.request, Failure::JobEnded, stopped() ? lifecycle_.message() : closing_message_);
      continue;
    }
    if (node_->has_joined() && (c.type == Command::Submit || c.type == Command::Join || c.type == Command::Poison)) {
      // R9: after its JOIN a rank submits nothing until all have joined.
      const std::string text = "this rank has joined and waits for the others: it cannot submit operations now";
      if (c.request) end(c.request, Failure::Disagreement, text);
      if (c.request)
        for (const RequestRef& message : inbox_.refuse_pair(c.request)) end(message, Failure::Disagreement, text);
      continue;
    }
    switch (c.type) {
      case Command::Submit:
        live_.insert(c.request);  // first, because submit() may report a failure
        if (!node_->submit(c.set, c.request->item, c.request, hurry_of(*c.request), now)) {
          // An unnamed operation and a named one have got the same name.
          live_.erase(c.request);
          node_->poison(c.set, *c.request->item.name, calls::kDuplicateText);
          const std::string text = std::string(calls::kDuplicateText) + " Name: '" + *c.request->item.name + "'.";
          end(c.request, Failure::Mistake, text);
        }
        break;
      case Command::Poison:
        node_->poison(c.set, c.name, c.text);
        break;
      case Command::Wanted:
        node_->wanted(c.set, c.name);
        break;
      case Command::Join:
        join_request_ = c.request;
        node_->join();
        break;
      case Command::Observe:
        timeline_requests_.push_back(c.request);
        live_.insert(c.request);
        node_->coordinator()->observe(c.set, c.text, now);
        break;
      case Command::Leave:
        node_->leave(c.text);
        break;
      case Command::Abort:
        node_->abort(c.text);
        break;
      case Command::Asked:
      case Command::AskedForAll:
        break;  // above
    }
  }
  taking_.clear();
  return now;
}

}  // namespace hvd
