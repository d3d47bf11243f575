// Front ends without Python on whole engines in one process: calls from many threads by both ways of the table, done()s
// that call again, and every way to end. For sanitizers; prints "passed" and a summary.
//
//   frontend_stress [--seconds S] [--seed N] [--backends FOLDER]
//
// What is judged: the values, and that each call gets exactly one done(), at the latest when the end has come.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "check.h"
#include "engine/base/log.h"
#include "engine/frontend/c_table.h"
#include "rng.h"
#include "world.h"

using namespace hvd;
using namespace hvd::native;

namespace {

constexpr int kThreads = 3, kSteps = 30;
constexpr int64_t kSecond = 1'000'000'000;

struct Tally {
  std::atomic<uint64_t> calls{0}, right{0}, ended{0}, again{0};
};

// What one rank's threads share.
struct Rank {
  int rank, size;
  std::shared_ptr<frontend::Frontend> frontend;
  std::atomic<bool>& may_end;
  Tally& tally;
};

// One call with its memory; lives until its done().
class Asked {
 public:
  Asked(const Rank& rank, std::string name, int64_t count, bool gathers, bool again)
      : rank_(rank), name_(std::move(name)), shape_{count}, gathers_(gathers), again_(again) {
    in_.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = value(rank.rank, i);
    out_.assign(in_.size(), -1.0F);
  }

  void go(bool runs, bool urgent, int64_t stay_ns) {
    tally().calls.fetch_add(1);
    const auto tensor = [&](float* data) {
      return hvd_fe_tensor{data, shape_, 1, HVD_FLOAT32, nullptr, 0, 0, nullptr};
    };
    in_tensor_ = tensor(in_.data());
    out_tensor_ = tensor(out_.data());
    hvd_fe_call c{};
    c.struct_size = sizeof c;
    c.op = gathers_ ? HVD_FE_ALLGATHER : HVD_FE_ALLREDUCE;
    c.name = name_.c_str();
    c.n = 1;
    c.prescale = c.postscale = 1.0;
    c.in = &in_tensor_;
    c.out = gathers_ ? nullptr : &out_tensor_;
    c.urgent = urgent;
    c.stay_ns = stay_ns;
    c.arg = this;
    c.done = [](void* arg, const hvd_fe_result* result) { static_cast<Asked*>(arg)->done(*result); };
    if (runs)
      frontend::run_native(*rank_.frontend, c);
    else
      frontend::submit_native(rank_.frontend, c);
  }

  // Only ever looked at by who made it.
  void wait() const {
    const int64_t until = base::now_ns() + 60 * kSecond;
    while (!over_.load()) {
      require(base::now_ns() < until, "no done() for " + name_);
      ::usleep(20);
    }
  }
  bool is_over() const { return over_.load(); }
  bool failed() const { return failed_; }

 private:
  Tally& tally() const { return rank_.tally; }
  static float value(int rank, size_t i) { return static_cast<float>((static_cast<size_t>(rank) * 5 + i) % 7); }

  void done(const hvd_fe_result& r) {
    require(times_.fetch_add(1) == 0, name_ + " got a second done()");
    if (r.status == HVD_FE_OK) {
      check(r);
      tally().right.fetch_add(1);
    } else {
      require(rank_.may_end.load(), name_ + " failed: " + r.message);
      require(r.status == HVD_FE_UNKNOWN, name_ + " failed in a way of its own: " + r.message);
      tally().ended.fetch_add(1);
    }
    failed_ = r.status != HVD_FE_OK;
    if (again_ && !failed_) {  // a done() that calls the table
      tally().again.fetch_add(1);
      next_ = std::make_unique<Asked>(rank_, name_ + ".again", shape_[0], gathers_, false);
      next_->go(false, true, 20'000);
    }
    over_.store(true);
  }

  void check(const hvd_fe_result& r) {
    const size_t n = in_.size();
    if (!gathers_) {
      for (size_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int k = 0; k < rank_.size; ++k) sum += value(k, i);
        require(out_[i] == sum, name_ + ": a wrong sum");
      }
      return;
    }
    std::vector<float> all(n * static_cast<size_t>(rank_.size));
    const int64_t rows = static_cast<int64_t>(all.size());
    const hvd_fe_tensor target{all.data(), &rows, 1, HVD_FLOAT32, nullptr, 0, 0, nullptr};
    require(r.n_outputs == 1 && r.copy(&r, 0, &target) == HVD_FE_OK, name_ + ": no result");
    for (size_t i = 0; i < all.size(); ++i)
      require(all[i] == value(static_cast<int>(i / n), i % n), name_ + ": a wrong row");
  }

  const Rank& rank_;
  const std::string name_;
  const int64_t shape_[1];
  const bool gathers_, again_;
  std::vector<float> in_, out_;
  hvd_fe_tensor in_tensor_{}, out_tensor_{};
  std::atomic<int> times_{0};
  std::atomic<bool> over_{false};
  bool failed_ = false;

 public:
  std::unique_ptr<Asked> next_;
};

// What a thread does is the same on all ranks; how, and when, is not.
void work(const Rank& rank, int thread, uint64_t plan_seed, uint64_t own_seed,
          std::vector<std::unique_ptr<Asked>>& all) {
  Rng plan(plan_seed), own(own_seed);
  for (int step = 0; step < kSteps; ++step) {
    const auto count = plan.between(1, 300);
    const bool gathers = plan.one_in(3), again = plan.one_in(4);
    all.push_back(
        std::make_unique<Asked>(rank, std::to_string(thread) + "." + std::to_string(step), count, gathers, again));
    const bool runs = own.one_in(4), urgent = own.one_in(2);
    all.back()->go(runs, urgent, own.one_in(2) ? static_cast<int64_t>(own.below(200'000)) : 0);
    if (own.one_in(5)) all.back()->wait();
    if (all.back()->is_over() && all.back()->failed()) return;
  }
}

void round(uint64_t seed, const Ways& ways, Tally& tally) {
  Rng rng(seed);
  const int size = 2 + static_cast<int>(rng.below(2));
  const uint64_t ending = rng.below(4);  // 0: all work is done first
  situation() =
      "seed " + std::to_string(seed) + ", " + std::to_string(size) + " ranks, ending " + std::to_string(ending);
  Knobs knobs;
  knobs.spin_ns = rng.one_in(2) ? 0 : 20'000;
  World world(size, static_cast<Tree>(rng.below(2)), ways, knobs);
  for (const auto& e : world.start()) require(e.empty(), "an engine did not start: " + e);

  std::atomic<bool> may_end{false};
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < size; ++r) {
    std::shared_ptr<Engine> engine(&world[r], [](Engine*) {});  // the world's
    ranks.push_back(
        std::make_unique<Rank>(Rank{r, size, std::make_shared<frontend::Frontend>(engine), may_end, tally}));
  }
  frontend::serve(ranks[0]->frontend);
  std::vector<std::vector<std::unique_ptr<Asked>>> asked(static_cast<size_t>(size) * kThreads);
  std::vector<std::thread> threads;
  const uint64_t plan_seed = rng.next();
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto r = i / kThreads;
    const auto thread = static_cast<int>(i % kThreads);
    threads.emplace_back([&, r, thread, own = rng.next(), i] {
      work(*ranks[r], thread, plan_seed + static_cast<uint64_t>(thread), own, asked[i]);
    });
  }
  std::atomic<bool> quit{false};
  std::thread asker([&] {  // the table's other questions, at any time
    const hvd_fe_table* table = frontend::frontend_table();
    while (!quit) {
      const int32_t said = table->size();
      require(said == size || (said == -1 && may_end), "the table does not know its engine");
      require(table->serves("cpu") == 1 || may_end, "the table does not know its engine");
    }
  });

  const auto until_all_told = [&] {
    for (const auto& list : asked)
      for (const auto& a : list)
        for (const Asked* x = a.get(); x; x = x->next_.get()) x->wait();
  };
  if (ending == 0) {
    for (auto& t : threads) t.join();
    until_all_told();
  } else {
    ::usleep(static_cast<useconds_t>(rng.below(8'000)));
  }
  may_end = true;
  frontend::withdraw(*ranks[0]->frontend);
  std::vector<std::thread> ends;
  for (int r = 0; r < size; ++r)
    ends.emplace_back([&, r] {
      if (ending == 1 && r == 0) world[r].abort("on purpose");
      if (ending == 2 && r == size - 1)
        while (!world[r].shutdown("the work is done", base::now_ns() + 30 * kSecond, kSecond)) {
        }
      world[r].close();
      ranks[static_cast<size_t>(r)]->frontend->finish();
    });
  for (auto& t : ends) t.join();
  if (ending != 0)
    for (auto& t : threads) t.join();
  quit = true;
  asker.join();
  for (const auto& list : asked)
    for (const auto& a : list)
      for (const Asked* x = a.get(); x; x = x->next_.get()) require(x->is_over(), "a call outlived its engine");
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  std::string folder = std::filesystem::path(argv[0]).parent_path();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string what = argv[i], value = argv[i + 1];
    if (what == "--seconds")
      seconds = std::stod(value);
    else if (what == "--seed")
      seed = std::stoull(value);
    else if (what == "--backends")
      folder = value;
    else
      wrong("unknown option " + what);
  }
  base::set_log(base::Level::Fatal, false, -1);
  const EngineConfig::Library shm{"shm", folder + "/libhvd_backend_shm.so"};
  const Ways ways{"shm", shm, {}, shm, false};
  Tally tally;
  uint64_t rounds = 0;
  for (const int64_t until = base::now_ns() + static_cast<int64_t>(seconds * 1e9); base::now_ns() < until; ++rounds)
    round(seed++, ways, tally);
  std::printf("passed: %llu rounds; calls: %llu, right %llu, ended %llu, called again from done() %llu\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(tally.calls.load()),
              static_cast<unsigned long long>(tally.right.load()), static_cast<unsigned long long>(tally.ended.load()),
              static_cast<unsigned long long>(tally.again.load()));
  return 0;
}
