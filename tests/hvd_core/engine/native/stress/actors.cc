// Submitting, waiting, polling. See actors.h.
#include "actors.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "check.h"
#include "hvd/backend_abi.h"
#include "messages.h"

namespace hvd::native {
namespace {

const char* const kPoison = "this call makes no sense here";

struct Live {
  const Op* op;
  std::unique_ptr<Op> own;  // what this rank asks for where that is not what the plan says
  std::unique_ptr<Buffers> buffers;
  calls::RequestRef request;
  bool handed = false;  // to a helper
};

void wait_here(Engine& engine, calls::Request& request, Rng& rng) {
  while (!engine.wait(request, rng.one_in(4) ? 20'000 : 5'000'000)) {
  }
}

void look_at(const Live& live, int rank, const Members& joined, Course& course) {
  const auto& request = *live.request;
  require(request.done(), "a request that was waited for is not done");
  const char* refusal = live.op->poisoned_by >= 0 ? kPoison : live.op->other_on >= 0 ? "Mismatched" : nullptr;
  const std::string what = "rank " + std::to_string(rank) + ", " + *request.item.name + ": ";
  if (request.ok()) {
    require(refusal == nullptr, what + "it worked although a rank made a mistake");
    live.buffers->check(request, joined);
    course.done.fetch_add(1);
  } else if (refusal && request.error().find(refusal) != std::string::npos) {
    course.refused.fetch_add(1);
  } else {
    require(course.may_end.load(), what + request.error());
    course.failed.fetch_add(1);
  }
}

// The requests of one step. Its memory stays until all of them are done, also after a failure.
class Flight {
 public:
  Flight(Engine& engine, int rank, const Set& set, Course& course)
      : engine_(engine), rank_(rank), set_(set), course_(course) {}
  Flight(Flight&&) = default;
  Flight& operator=(Flight&&) = delete;
  ~Flight() {
    for (auto& thread : beginners_) thread.join();
    for (auto& live : live_)
      while (live.request && !engine_.wait(*live.request, 5'000'000)) {
      }
  }

  void submit(const Op& op, bool soon) {
    if (op.poisoned_by == rank_) return engine_.poison(set_.number, op.kind, op.name, kPoison);
    live_.push_back({&op, nullptr, nullptr, nullptr});
    Live& l = live_.back();
    if (op.other_on == rank_) {
      l.own = std::make_unique<Op>(op);
      ++l.own->counts[0];
    }
    l.buffers = std::make_unique<Buffers>(l.own ? *l.own : op, rank_, set_.members);
    const bool deferred = !soon && ++submitted_ % 5 == 0;  // as a front end that copies from a device
    l.request = engine_.submit(l.buffers->signature(), {.name = op.name,
                                                        .process_set = set_.number,
                                                        .in = l.buffers->in(),
                                                        .out = l.buffers->out(),
                                                        .splits = l.buffers->splits(),
                                                        .waits = soon,
                                                        .deferred = deferred});
    if (deferred) beginners_.emplace_back([&engine = engine_, request = l.request] { engine.begin(request); });
  }
  std::vector<Live>& live() { return live_; }

  void land(Rng& rng) {
    for (auto& l : live_) {
      while (l.handed && !l.request->done() && rng.below(8) != 0) l.request->sleep(2'000'000);
      wait_here(engine_, *l.request, rng);
      look_at(l, rank_, {}, course_);
    }
    live_.clear();
  }

 private:
  Engine& engine_;
  const int rank_;
  const Set& set_;
  Course& course_;
  std::vector<Live> live_;
  std::vector<std::thread> beginners_;
  size_t submitted_ = 0;
};

// An order of submission: mostly the plan's. Unnamed ones keep their order among themselves.
std::vector<size_t> order_of(const Step& step, Rng& rng) {
  std::vector<size_t> order(step.ops.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const bool named = std::all_of(step.ops.begin(), step.ops.end(), [](const Op& op) { return op.name.has_value(); });
  if (named && rng.one_in(3)) rng.shuffle(order);
  return order;
}

}  // namespace

Helpers::Helpers(Engine& engine, uint64_t seed, int waiters) : engine_(engine) {
  for (int i = 0; i < waiters; ++i)
    threads_.emplace_back([this, seed, i] { waiter(seed + 17 * static_cast<uint64_t>(i + 1)); });
  threads_.emplace_back([this, seed] { poller(seed + 7); });
}

Helpers::~Helpers() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    more_.notify_all();
  }
  for (auto& t : threads_) t.join();
}

void Helpers::wait_for(calls::RequestRef request) {
  std::lock_guard lock(mutex_);
  handed_.push_back(std::move(request));
  more_.notify_one();
}

void Helpers::watch(calls::RequestRef request) {
  std::lock_guard lock(mutex_);
  watched_.push_back(std::move(request));
  if (watched_.size() > 16) watched_.pop_front();
}

void Helpers::waiter(uint64_t seed) {
  Rng rng(seed);
  for (;;) {
    calls::RequestRef request;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] { return over_ || !handed_.empty(); });
      if (handed_.empty()) return;
      std::swap(handed_[rng.below(handed_.size())], handed_.back());
      request = std::move(handed_.back());
      handed_.pop_back();
    }
    wait_here(engine_, *request, rng);
  }
}

void Helpers::poller(uint64_t seed) {
  Rng rng(seed);
  for (;;) {
    calls::RequestRef request;
    {
      std::unique_lock lock(mutex_);
      if (more_.wait_for(lock, std::chrono::microseconds(rng.between(50, 3'000)), [&] { return over_; })) return;
      if (!watched_.empty()) request = watched_[rng.below(watched_.size())];
    }
    if (request && engine_.poll(*request)) require(request->done(), "poll said done");
  }
}

void run_stream(Engine& engine, int rank, const Set& set, const Stream& stream, uint64_t seed, Helpers& helpers,
                Course& course) {
  Rng rng(seed);
  std::deque<Flight> flights;
  try {
    for (const Step& step : stream.steps) {
      course.steps.fetch_add(1);
      if (flights.size() == static_cast<size_t>(stream.depth)) {
        flights.front().land(rng);
        flights.pop_front();
      }
      flights.emplace_back(engine, rank, set, course);
      Flight& flight = flights.back();
      for (size_t i : order_of(step, rng)) {
        flight.submit(step.ops[i], step.at_once);
        if (rng.one_in(40)) ::usleep(static_cast<useconds_t>(rng.below(1'500)));
      }
      if (step.at_once) {
        flight.land(rng);
        continue;
      }
      rng.shuffle(flight.live());
      for (auto& l : flight.live()) {
        if (rng.one_in(4)) helpers.watch(l.request);
        if (rng.one_in(3)) {
          l.handed = true;
          helpers.wait_for(l.request);
        }
      }
      if (rng.one_in(30)) ::usleep(static_cast<useconds_t>(rng.below(2'000)));
    }
    for (auto& flight : flights) flight.land(rng);
  } catch (const RequestFailed& e) {
    require(course.may_end.load(), "rank " + std::to_string(rank) + " was told: " + e.what());
  }
}

int32_t add_set(Engine& engine, const Members& members, Course& course) {
  Rng rng(1);
  auto request = engine.add_process_set(members);
  wait_here(engine, *request, rng);
  if (!request->ok()) require(course.may_end.load(), "adding a process set: " + request->error());
  return request->ok() ? request->process_set : -1;
}

void run_changes(Engine& engine, int rank, const std::vector<Members>& there, int times, uint64_t seed,
                 Course& course) {
  try {
    for (int k = 0; k < times; ++k) {
      // Anew each time, as waiting draws too, differently on each rank.
      Rng rng(seed + static_cast<uint64_t>(k));
      const Members members = draw_members(rng, static_cast<int>(there[0].size()));
      if (std::find(there.begin(), there.end(), members) != there.end()) continue;
      Op op;
      op.dtype = HVD_INT32;
      op.reduce_op = HVD_SUM;
      op.counts = {rng.between(1, 400)};
      if (rng.one_in(2)) op.name = "on a new set";
      const Set set{members, add_set(engine, members, course)};
      if (set.number < 0) return;
      if (std::find(members.begin(), members.end(), rank) != members.end()) {
        Flight flight(engine, rank, set, course);
        flight.submit(op, false);
        flight.land(rng);
      }
      const LostMessage lost(engine, rank, set);
      auto request = engine.remove_process_set(set.number);
      wait_here(engine, *request, rng);
      if (!request->ok()) return require(course.may_end.load(), "removing a process set: " + request->error());
      lost.check(course);
      course.sets.fetch_add(1);
    }
  } catch (const RequestFailed& e) {
    require(course.may_end.load(), "rank " + std::to_string(rank) + " was told: " + e.what());
  } catch (const InvalidRequest& e) {
    wrong(std::string("a change of process sets was refused: ") + e.what());
  }
}

void run_uneven(Engine& engine, int rank, const std::vector<Step>& all, const std::vector<int>& counts,
                Course& course) {
  Members all_ranks;
  for (size_t r = 0; r < counts.size(); ++r) all_ranks.push_back(static_cast<int32_t>(r));
  Rng rng(static_cast<uint64_t>(rank));
  try {
    for (int k = 0; k < counts[static_cast<size_t>(rank)]; ++k) {
      const Op& op = all[static_cast<size_t>(k)].ops[0];
      Members joined;
      for (int32_t r : all_ranks)
        if (counts[static_cast<size_t>(r)] <= k) joined.push_back(r);
      Live live{&op, nullptr, std::make_unique<Buffers>(op, rank, all_ranks), nullptr};
      live.request =
          engine.submit(live.buffers->signature(),
                        {.name = op.name, .in = live.buffers->in(), .out = live.buffers->out(), .waits = true});
      wait_here(engine, *live.request, rng);
      look_at(live, rank, joined, course);
    }
    auto request = engine.join();
    wait_here(engine, *request, rng);
    if (!request->ok()) return require(course.may_end.load(), "join: " + request->error());
    // A rank with more steps needs the other ranks' JOIN for them, and so joins after them.
    const auto last = static_cast<size_t>(request->last_joined);
    require(last < counts.size() && counts[last] == *std::max_element(counts.begin(), counts.end()),
            "join: rank " + std::to_string(request->last_joined) + " cannot have been the last");
  } catch (const RequestFailed& e) {
    require(course.may_end.load(), "rank " + std::to_string(rank) + " was told: " + e.what());
  }
}

}  // namespace hvd::native
