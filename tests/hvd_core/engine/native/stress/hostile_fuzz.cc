// Whole engines with the embedded backends, one of which is a rank that follows the protocol and says wrong things:
// sizes, signatures, process sets, counts, and the rows and collectives of its data. The others may end the job, with a
// cause that names that rank; they may not write or read beyond a buffer, nor hang.
//
//   hostile_fuzz [--seconds S | --messages N] [--seed N] [--rounds N] [--backends FOLDER] [--ways shm|tcp]
//                [--causes 0]     do not look at the causes
//
// For sanitizers; prints "passed" and a summary. A failure names its seed: --seed N --rounds 1. Threads of several
// engines race, so that a seed may need some tries.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "check.h"
#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "hostile_relay.h"
#include "plan.h"
#include "spoiled_backend.h"
#include "world.h"

using namespace hvd;
using namespace hvd::native;

namespace {

constexpr int64_t kPatienceNs = 120'000'000'000;
bool g_causes = true;

constexpr int64_t kQuietNs = 400'000'000;  // after which the wrong rank is taken to have said too little, and ended

struct Tally {
  uint64_t rounds = 0, right = 0, refused = 0, ended = 0, quiet = 0;
};

// Whether a cause names this rank: "rank 2", or in a list, "ranks 0, 2".
bool names(const std::string& text, int rank) {
  for (size_t at = text.find("rank"); at != text.npos; at = text.find("rank", at + 1)) {
    size_t i = at + 4;
    if (i < text.size() && text[i] == 's') ++i;
    while (i < text.size() && (text[i] == ' ' || text[i] == ',' || text[i] == '-')) {
      ++i;
      const size_t digits = i;
      while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]))) ++i;
      if (i == digits) break;
      if (std::stoull(text.substr(digits, std::min<size_t>(i - digits, 9))) == static_cast<uint64_t>(rank)) return true;
    }
  }
  return false;
}

// Rank 0 may tell the others different things. They learn that from each other's data, and cannot tell which of them is
// wrong. And it may say that another rank has left.
bool can_be_a_lie_of_rank_0(const std::string& text) {
  for (const char* words :
       {"the ranks disagree", "which expects", "while this rank waits for its data", "was the first to leave"})
    if (text.find(words) != text.npos) return true;
  return false;
}

// One rank of a round: makes the calls of the plan until they are over, or the job is.
struct Actor {
  Engine& engine;
  const int rank, hostile;
  const Plan& plan;
  std::atomic<uint64_t>& settled;
  uint64_t right = 0, refused = 0, ended = 0;

  void work(Rng rng) {
    try {
      for (size_t k = 0; k < plan.streams[0].steps.size(); ++k) {
        if (k % 5 == 3) change_sets(k);
        if (!step(plan.streams[0].steps[k], rng)) return;
      }
      if (rng.one_in(2)) wait(engine.join({}));
    } catch (const RequestFailed& e) {
      over(e.what());
    } catch (const calls::InvalidRequest&) {  // a process set that was never added
    }
  }

  // Returns whether it succeeded.
  bool wait(const calls::RequestRef& request) {
    while (!engine.wait(*request, 50'000'000)) {
    }
    ++settled;
    if (!request->failed()) return ++right;
    if (request->failure() == base::Failure::JobEnded) throw RequestFailed(request->failure(), request->error());
    ++refused;
    return false;
  }
  void over(const std::string& cause) {
    ++ended;
    const bool named = names(cause, hostile) || (hostile == 0 && can_be_a_lie_of_rank_0(cause));
    if (g_causes && rank != hostile && !named)
      wrong("rank " + std::to_string(hostile) + " was wrong, and rank " + std::to_string(rank) + " is told: " + cause);
  }

  void change_sets(size_t k) {
    const auto added = engine.add_process_set({0, 1}, {});
    if (wait(added) && k % 2) wait(engine.remove_process_set(added->process_set, {}));
  }

  bool step(const Step& step, Rng& rng) {
    std::vector<std::pair<std::unique_ptr<Buffers>, calls::RequestRef>> live;
    const Members& all = plan.sets[0];
    for (const Op& op : step.ops) {
      auto buffers = std::make_unique<Buffers>(op, rank, all);
      try {
        live.emplace_back(std::move(buffers), nullptr);
        live.back().second = engine.submit(live.back().first->signature(), {.name = op.name,
                                                                            .in = live.back().first->in(),
                                                                            .out = live.back().first->out(),
                                                                            .splits = live.back().first->splits()});
      } catch (const calls::InvalidRequest&) {  // the name is still in flight
        live.pop_back();
      } catch (const RequestFailed&) {
        live.pop_back();
        if (live.empty()) throw;
        break;
      }
    }
    if (rng.one_in(2)) rng.shuffle(live);
    std::string cause;
    for (auto& [buffers, request] : live) {
      try {
        if (wait(request)) look_at(*request);
      } catch (const RequestFailed& e) {
        cause = e.what();
      }
    }
    if (cause.empty()) return true;
    over(cause);
    // What an aborted backend may still use must stay.
    for (auto& [buffers, request] : live)
      if (request->lingers) static_cast<void>(buffers.release());
    return false;
  }

  // Every byte that a result claims to have is there.
  static void look_at(const calls::Request& request) {
    uint64_t sum = 0;
    for (const calls::Output& o : request.outputs) {
      uint64_t bytes = base::dtype_bytes(o.dtype);
      for (const int64_t d : o.shape) {
        require(d >= 0, "a result with a negative size");
        bytes *= static_cast<uint64_t>(d);
      }
      for (uint64_t i = 0; i < bytes; ++i) sum += static_cast<unsigned char>(static_cast<char*>(o.data.get())[i]);
    }
    static std::atomic<uint64_t> sink;
    sink += sum;
  }
};

void round(Rng& rng, const std::vector<Ways>& all_ways, Tally& tally) {
  const int ranks = 2 + static_cast<int>(rng.below(2));
  const int hostile = static_cast<int>(rng.below(static_cast<uint64_t>(ranks)));
  const Ways& ways = rng.pick(all_ways);
  const bool spoils_control = !rng.one_in(3), spoils_data = !spoils_control || rng.one_in(3);
  situation() += ": " + std::to_string(ranks) + " ranks, " + std::to_string(hostile) + " is wrong, " + ways.name +
                 (spoils_control ? ", control" : "") + (spoils_data ? ", data" : "");
  const Plan plan = make_plan(rng, {.ranks = ranks, .streams = 1, .steps = 12, .sets = 0, .mistakes = false});

  std::vector<std::unique_ptr<HostileRelay>> relays;
  std::vector<std::array<int, 2>> plain;
  Knobs knobs;
  knobs.guards = knobs.pids = false;
  knobs.spin_ns = 0;
  knobs.cache_capacity = rng.pick(std::vector<uint32_t>{0, 3, 1024});
  knobs.fusion_threshold = rng.pick(std::vector<uint64_t>{0, 4096, 128u << 20});
  knobs.other_rank = hostile;
  const auto& library = ways.local.path.empty() ? ways.global : ways.local;
  knobs.other_library = {library.name, SpoiledBackend::before(library.path, library.name)};
  knobs.link_ends = [&](int parent, int child) -> std::array<int, 2> {
    if (parent != hostile && child != hostile) {
      auto& ends = plain.emplace_back();
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "no sockets");
      return ends;
    }
    const int other = parent == hostile ? child : parent;
    relays.push_back(std::make_unique<HostileRelay>(
        HostileRelay::Settings{rng.next(), hostile, other, ranks, knobs.cache_capacity}));
    const auto [wrong_end, right_end] = relays.back()->ends();
    if (parent == hostile) return {wrong_end, right_end};
    return {right_end, wrong_end};
  };
  {
    World world(ranks, Tree::Sockets, ways, knobs);
    for (const auto& e : world.start()) require(e.empty(), "an engine did not start: " + e);
    if (spoils_control)
      for (auto& relay : relays) relay->begin(4 + rng.below(12));
    if (spoils_data) SpoiledBackend::begin(rng.next(), 2 + rng.below(6));

    std::atomic<uint64_t> settled{0};
    std::atomic<int> working{ranks};
    std::vector<std::unique_ptr<Actor>> actors;  // complete before the first thread reads it
    for (int r = 0; r < ranks; ++r) actors.emplace_back(new Actor{world[r], r, hostile, plan, settled});
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r, seed = rng.next()] {
        actors[static_cast<size_t>(r)]->work(Rng(seed));
        --working;
      });
    }
    // A rank that has said too little keeps the others waiting, as one that hangs would: it ends then.
    uint64_t before = 0;
    for (int64_t since = base::now_ns(); working > 0; ::usleep(500)) {
      if (const uint64_t now = settled; now != before) {
        before = now;
        since = base::now_ns();
      } else if (base::now_ns() - since > kQuietNs) {
        ++tally.quiet;
        for (auto& relay : relays) relay->mute();
        for (auto& relay : relays) relay->cut();
        since = INT64_MAX - 1 - kQuietNs;
      }
    }
    for (auto& t : threads) t.join();
    for (const auto& a : actors) tally.right += a->right, tally.refused += a->refused, tally.ended += a->ended;
    SpoiledBackend::begin(0, 0);
    std::vector<std::thread> drops;
    for (int r = 0; r < ranks; ++r) drops.emplace_back([&world, r] { world.slot(r).reset(); });
    for (auto& t : drops) t.join();
  }
  relays.clear();
  SpoiledBackend::begin(0, 0);
  for (const auto& ends : plain)
    for (int fd : ends) ::close(fd);
  ++tally.rounds;
}

std::vector<Ways> ways_in(const std::string& folder, const std::string& only) {
  const auto library = [&](const std::string& name) -> EngineConfig::Library {
    const std::string path = folder + "/libhvd_backend_" + name + ".so";
    require(std::filesystem::exists(path), "there is no " + path);
    return {name, path};
  };
  const auto shm = library("shm"), tcp = library("tcp");
  std::vector<Ways> found;
  for (const Ways& w : {Ways{"shm", shm, {}, shm, false}, Ways{"tcp", {}, tcp, shm, true}})
    if (only.empty() || only == w.name) found.push_back(w);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  uint64_t seed = 1, rounds = 0, messages = 0;
  std::string only, folder = std::filesystem::path(argv[0]).parent_path();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string what = argv[i], value = argv[i + 1];
    if (what == "--seconds")
      seconds = std::stod(value);
    else if (what == "--seed")
      seed = std::stoull(value);
    else if (what == "--messages")
      messages = std::stoull(value);
    else if (what == "--rounds")
      rounds = std::stoull(value);
    else if (what == "--backends")
      folder = value;
    else if (what == "--ways")
      only = value;
    else if (what == "--causes")
      g_causes = value != "0";
    else
      wrong("unknown option " + what);
  }
  for (const auto& [name, value] : {std::pair{"SHM_CHUNK_KIB", "4"},
                                    {"SHM_SMALL_KIB", "1"},
                                    {"TCP_CHUNK_KIB", "16"},
                                    {"TCP_SMALL_KIB", "2"},
                                    {"TCP_IFACE", "lo"},
                                    {"TCP_RING_RANKS", "3"}})
    ::setenv((std::string("HOROVOD_BACKEND_") + name).c_str(), value, 0);
  base::set_log(base::Level::Fatal, false, -1);
  const auto ways = ways_in(folder, only);

  std::atomic<int64_t> began{base::now_ns()};
  std::atomic<bool> over{false};
  std::thread watchdog([&] {
    for (; !over; ::usleep(100'000))
      if (base::now_ns() - began > kPatienceNs) wrong("the round hangs");
  });
  Tally tally;
  const int64_t until = base::now_ns() + static_cast<int64_t>(seconds * 1e9);
  const auto said = [] { return HostileRelay::messages + SpoiledBackend::calls; };
  const auto goes_on = [&] {
    if (rounds > 0) return tally.rounds < rounds;
    return messages > 0 ? said() < messages : base::now_ns() < until;
  };
  for (; goes_on(); ++seed) {
    situation() = "seed " + std::to_string(seed);
    began = base::now_ns();
    Rng rng(seed);
    round(rng, ways, tally);
  }
  over = true;
  watchdog.join();
  const auto n = [](uint64_t v) { return static_cast<unsigned long long>(v); };
  std::printf(
      "passed: %llu rounds, %llu messages and calls of the wrong rank, %llu of them wrong; operations: %llu "
      "right, %llu refused, %llu ended by the job's end; %llu rounds ended for silence\n",
      n(tally.rounds), n(said()), n(HostileRelay::changed + SpoiledBackend::spoiled), n(tally.right), n(tally.refused),
      n(tally.ended), n(tally.quiet));
  return 0;
}
