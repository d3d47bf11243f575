// Putting a round together. See round.h.
#include "round.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "actors.h"
#include "check.h"
#include "engine/base/log.h"
#include "messages.h"

namespace hvd::native {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

Knobs draw_knobs(Rng& rng) {
  Knobs k;
  k.spin_ns = rng.pick(std::vector<int64_t>{0, 2'000, 50'000});
  k.dissolve_after_ns = rng.pick(std::vector<int64_t>{0, 50'000, 300'000, 1'000'000});
  k.cache_capacity = rng.pick(std::vector<uint32_t>{0, 3, 1024});
  k.fusion_threshold = rng.pick(std::vector<uint64_t>{0, 4096, 128u << 20});
  k.stall_warn_ns = rng.one_in(3) ? 3'000'000 : 0;  // the report itself is below the log's threshold
  k.guards = !rng.one_in(4);
  k.pids = !rng.one_in(4);
  for (bool& h : k.hierarchical) h = rng.one_in(2);
  return k;
}

void start(World& world) {
  const auto errors = world.start();
  for (const auto& e : errors) require(e.empty(), "an engine did not start: " + e);
}

// Several things at once, each in a thread of its own.
void at_once(const std::vector<std::function<void()>>& things) {
  std::vector<std::thread> threads;
  for (const auto& f : things) threads.emplace_back(f);
  for (auto& t : threads) t.join();
}

void shut_down(Engine& engine, Rng rng) {
  const int64_t deadline = base::now_ns() + 60 * kSecond;
  while (!engine.shutdown("the work is done", deadline, rng.one_in(2) ? 300'000 : 100'000'000)) {
  }
  require(engine.stopped(), "shutdown() came back, but the engine has not stopped");
}

// Destroys the engines, all at once and in any order; no thread may still use them.
void drop_all(World& world) {
  std::vector<std::function<void()>> drops;
  for (int r = 0; r < world.size(); ++r) drops.push_back([&world, r] { world.slot(r).reset(); });
  at_once(drops);
}

void finish_in_order(World& world, Rng& rng) {
  const auto first = static_cast<int>(rng.below(static_cast<uint64_t>(world.size())));
  std::vector<std::function<void()>> ends;
  for (int r = 0; r < world.size(); ++r)
    if (r == first || rng.one_in(2)) ends.push_back([&world, r, seed = rng.next()] { shut_down(world[r], Rng(seed)); });
  at_once(ends);
}

[[maybe_unused]] bool refuses(Engine& engine) {
  Op op;
  op.name = "in the child";
  op.counts = {5};
  op.dtype = HVD_FLOAT32;
  const Members alone{0};
  Buffers buffers(op, 0, alone);
  int refused = 0;
  try {
    engine.submit(buffers.signature(), {.name = op.name, .in = buffers.in(), .out = buffers.out(), .waits = true});
  } catch (const RequestFailed&) {
    ++refused;
  }
  calls::Request pending;
  try {
    engine.wait(pending, 1'000'000);
  } catch (const RequestFailed&) {
    ++refused;
  }
  return refused == 2;
}

// Everything the engine offers, in a child that forked off while its threads were in the middle of it.
[[noreturn]] void be_the_child(World& world) {
  for (int r = 0; r < world.size(); ++r) world[r].in_forked_child();
  for (int r = 0; r < world.size(); ++r) {
    Engine& engine = world[r];
#if !defined(__SANITIZE_ADDRESS__)
    // That sanitizer's allocator does not survive a fork of several threads, so nothing may be allocated, or thrown.
    if (!refuses(engine)) ::_exit(3);
#endif
    engine.abort({});
    if (!engine.shutdown({}, 0, 0)) ::_exit(4);
    engine.close();
  }
  ::_exit(0);
}

void fork_and_look(World& world) {
  const pid_t child = ::fork();
  require(child >= 0, "fork failed");
  if (child == 0) be_the_child(world);
  int status = 0;
  const int64_t until = base::now_ns() + 60 * kSecond;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (base::now_ns() > until) {
      ::kill(child, SIGKILL);  // it holds our output open
      wrong("the forked child hangs");
    }
    ::usleep(2'000);
  }
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the forked child found something wrong: status " + std::to_string(status));
}

void absent_rank(int ranks, Tree tree, const Ways& ways, Knobs knobs, Rng& rng) {
  knobs.start_seconds = 0.3;
  World world(ranks, tree, ways, knobs);
  const auto absent = static_cast<int>(rng.below(static_cast<uint64_t>(ranks)));
  const auto errors = world.start(absent);
  for (int r = 0; r < ranks; ++r)
    require(r == absent || !errors[static_cast<size_t>(r)].empty(),
            "rank " + std::to_string(r) + " came up without rank " + std::to_string(absent));
}

// The streams of all ranks, with their helpers, and `meanwhile` in a thread of its own.
void work(World& world, const Plan& plan, int changes, Rng& rng, Course& course,
          const std::function<void()>& meanwhile) {
  std::vector<std::unique_ptr<Helpers>> helpers;
  for (int r = 0; r < world.size(); ++r)
    helpers.push_back(std::make_unique<Helpers>(world[r], rng.next(), static_cast<int>(rng.below(3)) + 1));
  std::vector<Set> sets;
  for (const Members& members : plan.sets) sets.push_back({members, 0});
  std::vector<std::function<void()>> additions;
  std::vector<std::vector<int32_t>> numbers(static_cast<size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r)
    additions.push_back([&, r] {
      for (size_t s = 1; s < sets.size(); ++s)
        numbers[static_cast<size_t>(r)].push_back(add_set(world[r], sets[s].members, course));
    });
  at_once(additions);
  for (const auto& n : numbers) require(n == numbers[0], "ranks know a process set by different numbers");
  for (size_t s = 1; s < sets.size(); ++s) sets[s].number = numbers[0][s - 1];

  std::vector<std::function<void()>> things;
  for (int r = 0; r < world.size(); ++r)
    for (const Stream& stream : plan.streams) {
      const Set& set = sets[stream.set];
      if (std::find(set.members.begin(), set.members.end(), r) == set.members.end()) continue;
      things.push_back([&, r, seed = rng.next(), h = helpers[static_cast<size_t>(r)].get()] {
        run_stream(world[r], r, set, stream, seed, *h, course);
      });
    }
  const uint64_t seed = rng.next();
  for (int r = 0; changes > 0 && r < world.size(); ++r)
    things.push_back([&, r] { run_changes(world[r], r, plan.sets, changes, seed, course); });
  const uint64_t talk = rng.next();
  const int messages = world.size() > 1 && rng.one_in(2) ? 5 + static_cast<int>(rng.below(60)) : 0;
  for (int r = 0; messages > 0 && r < world.size(); ++r)
    things.push_back([&, r] { run_messages(world[r], r, world.size(), messages, talk, course); });
  if (meanwhile) things.push_back(meanwhile);
  at_once(things);
  helpers.clear();
}

// Submissions meet the end at every possible point: all accepted requests must be done when close() returns.
void flood(World& world, Rng& rng, Course& course) {
  course.may_end = true;
  const Members alone{0};
  Op op;
  op.counts = {4};
  op.dtype = HVD_FLOAT32;
  constexpr size_t kThreads = 3;
  struct Flooder {
    std::unique_ptr<Buffers> buffers;
    std::vector<calls::RequestRef> requests;
  };
  std::vector<Flooder> flooders(static_cast<size_t>(world.size()) * kThreads);
  std::vector<std::function<void()>> things;
  for (size_t i = 0; i < flooders.size(); ++i) {
    flooders[i].buffers = std::make_unique<Buffers>(op, 0, alone);
    things.push_back([&, i] {
      Flooder& f = flooders[i];
      try {
        for (int k = 0;; ++k)
          f.requests.push_back(world[static_cast<int>(i / kThreads)].submit(
              f.buffers->signature(), {.name = std::to_string(i % kThreads) + "." + std::to_string(k),
                                       .in = f.buffers->in(),
                                       .out = f.buffers->out(),
                                       .waits = true}));
      } catch (const RequestFailed&) {
      }
    });
  }
  for (int r = 0; r < world.size(); ++r)
    things.push_back([&world, r, pause = rng.below(4'000)] {
      ::usleep(static_cast<useconds_t>(pause));
      world[r].close();
    });
  at_once(things);
  for (const Flooder& f : flooders)
    for (const auto& request : f.requests) {
      require(request->done(), "a request outlived close()");
      course.failed.fetch_add(1);
    }
}

void uneven(World& world, Rng& rng, Course& course) {
  const auto steps = make_uneven(rng, 12);
  std::vector<int> counts;
  for (int r = 0; r < world.size(); ++r) counts.push_back(static_cast<int>(rng.below(steps.size() + 1)));
  std::vector<std::function<void()>> things;
  for (int r = 0; r < world.size(); ++r) things.push_back([&, r] { run_uneven(world[r], r, steps, counts, course); });
  at_once(things);
}

void end_it(World& world, Ending ending, Rng rng, Course& course, int total_steps) {
  // Somewhere in the middle: after some share of the steps, and a moment.
  const auto share = static_cast<int>(rng.below(static_cast<uint64_t>(total_steps)));
  const int64_t until = base::now_ns() + 20 * kSecond;
  while (course.steps.load() < share && base::now_ns() < until) ::usleep(200);
  ::usleep(static_cast<useconds_t>(rng.below(3'000)));
  if (ending == Ending::Fork) return fork_and_look(world);
  course.may_end = true;
  std::vector<int> order;
  for (int r = 0; r < world.size(); ++r) order.push_back(r);
  rng.shuffle(order);
  std::vector<std::function<void()>> things;
  if (ending == Ending::Cut && !world.cut(order[0])) ending = Ending::Abort;
  const size_t several = 1 + rng.below(2);
  for (size_t i = 0; i < several; ++i) {
    Engine& engine = world[order[i]];
    if (ending == Ending::Shutdown) things.push_back([&engine, seed = rng.next()] { shut_down(engine, Rng(seed)); });
    if (ending == Ending::Abort) things.push_back([&engine] { engine.abort("on purpose"); });
    if (ending == Ending::Close) things.push_back([&engine] { engine.close(); });
  }
  at_once(things);
}

}  // namespace

const char* ending_name(Ending ending) {
  static constexpr const char* kNames[] = {"finish", "join", "shutdown", "abort", "close",
                                           "cut",    "fork", "absent",   "flood"};
  return kNames[static_cast<size_t>(ending)];
}

const std::vector<Ending>& all_endings() {
  static const std::vector<Ending> all{Ending::Finish, Ending::Join, Ending::Shutdown, Ending::Abort, Ending::Close,
                                       Ending::Cut,    Ending::Fork, Ending::Absent,   Ending::Flood};
  return all;
}

void run_round(const RoundOptions& options, Tally& tally) {
  Rng rng(options.seed);
  const int ranks = rng.pick(options.ranks);
  const auto tree = static_cast<Tree>(rng.below(3));
  const Ways& ways = rng.pick(options.ways);
  Ending ending = rng.pick(options.endings);
  // To wait for an absent rank takes long; a few times are enough.
  if (ending == Ending::Absent && options.endings.size() > 1 && !rng.one_in(4)) ending = Ending::Finish;
  const Knobs knobs = draw_knobs(rng);
  situation() = "seed " + std::to_string(options.seed) + ", " + std::to_string(ranks) + " ranks, tree " +
                tree_name(tree) + ", moved by " + ways.name + ", ending " + ending_name(ending);
  ++tally.rounds;
  ++tally.of[ending_name(ending)];
  if (ending == Ending::Absent) return absent_rank(ranks, tree, ways, knobs, rng);

  World world(ranks, tree, ways, knobs);
  start(world);
  Course course;
  PlanOptions p;
  p.ranks = ranks;
  p.streams = 1 + static_cast<int>(rng.below(3));
  p.steps = 10 + static_cast<int>(rng.below(40));
  p.sets = static_cast<int>(rng.below(3));
  p.mistakes = rng.one_in(2);
  const Plan plan = make_plan(rng, p);
  const int changes = rng.one_in(3) ? 1 + static_cast<int>(rng.below(4)) : 0;
  int total = 0;
  for (const Stream& s : plan.streams) total += p.steps * static_cast<int>(plan.sets[s.set].size());

  switch (ending) {
    case Ending::Finish:
      work(world, plan, changes, rng, course, nullptr);
      break;
    case Ending::Join:
      work(world, plan, changes, rng, course, nullptr);
      uneven(world, rng, course);
      uneven(world, rng, course);
      break;
    case Ending::Flood:
      flood(world, rng, course);
      break;
    default:
      work(world, plan, changes, rng, course, [&, r = Rng(rng.next())] { end_it(world, ending, r, course, total); });
  }
  if (!course.may_end) {
    course.may_end = true;
    if (!rng.one_in(4)) finish_in_order(world, rng);
  }
  drop_all(world);
  tally.done += course.done;
  tally.failed += course.failed;
  tally.refused += course.refused;
  tally.sets += course.sets;
}

}  // namespace hvd::native
