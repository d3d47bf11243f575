// Ranks as threads of one process against libeccl_sim.so, for the sanitizers: random operations on two streams,
// checked, then a random ending (destroy, abort while operations are in flight, a rank that stays away). Arguments:
// ranks, rounds, seed. Prints "passed".
#include <eccl.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

#define MUST(call)                                                                \
  do {                                                                            \
    const int result_ = (call);                                                   \
    if (result_ != 0) {                                                           \
      fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, result_); \
      _Exit(1);                                                                   \
    }                                                                             \
  } while (0)

constexpr size_t kMost = 40000;  // elements

struct Round {
  ecclUniqueId id;
  unsigned seed;
  int ranks, ending, loner;
};

// Every rank draws the same operations from the round's seed.
class Rank {
 public:
  Rank(const Round& round, int rank) : round_(round), rank_(rank), random_(round.seed) {
    MUST(topsSetDevice(rank));
    MUST(ecclCommInitRank(&comm_, round.ranks, round.id, rank));
    for (auto& stream : streams_) MUST(topsStreamCreate(&stream));
    MUST(topsEventCreateWithFlags(&event_, topsEventDisableTiming));
    MUST(topsMalloc(&in_, kMost * sizeof(float)));
    MUST(topsMalloc(&out_, kMost * sizeof(float) * static_cast<size_t>(round.ranks)));
    host_.resize(kMost * static_cast<size_t>(round.ranks));
  }

  ~Rank() {
    for (auto& stream : streams_) {
      MUST(topsStreamSynchronize(stream));
      MUST(topsStreamDestroy(stream));
    }
    MUST(topsEventDestroy(event_));
    MUST(topsFree(in_));
    MUST(topsFree(out_));
  }

  void run() {
    for (int i = 0; i < 20; ++i) operation();
    end();
  }

 private:
  void operation() {
    const size_t count = random_() % (random_() % 2 ? 100 : kMost);
    const auto kind = random_() % 3;
    topsStream_t stream = streams_[random_() % 2], reader = streams_[random_() % 2];
    std::vector<float> mine(count, static_cast<float>(rank_ + 1));
    MUST(topsMemcpyAsync(in_, mine.data(), count * sizeof(float), topsMemcpyHostToDevice, stream));
    size_t got = count;
    float want = static_cast<float>(round_.ranks * (round_.ranks + 1)) / 2;
    if (kind == 0) {
      MUST(ecclAllReduce(in_, out_, count, ecclFloat32, ecclSum, comm_, stream));
    } else if (kind == 1) {
      const int root = static_cast<int>(random_() % static_cast<unsigned>(round_.ranks));
      MUST(ecclBroadcast(in_, out_, count, ecclFloat32, root, comm_, stream));
      want = static_cast<float>(root + 1);
    } else {
      MUST(ecclAllGather(in_, out_, count, ecclFloat32, comm_, stream));
      got = count * static_cast<size_t>(round_.ranks);
      want = 0;
    }
    MUST(topsEventRecord(event_, stream));
    MUST(topsStreamWaitEvent(reader, event_, 0));
    MUST(topsMemcpyAsync(host_.data(), out_, got * sizeof(float), topsMemcpyDeviceToHost, reader));
    MUST(topsStreamSynchronize(reader));
    for (size_t k = 0; k < got; ++k) {
      if (host_[k] != (want != 0 ? want : static_cast<float>(k / count + 1))) {
        fprintf(stderr, "rank %d: element %zu of kind %u is %g\n", rank_, k, static_cast<unsigned>(kind), host_[k]);
        _Exit(1);
      }
    }
  }

  // 0: in good order. 1: one rank aborts, the others see it. 2: the same while one's own operations wait.
  void end() {
    if (round_.ending == 0) {
      MUST(ecclCommDestroy(comm_));
      return;
    }
    const bool loner = rank_ == round_.loner;
    if (!loner || round_.ending == 2) {
      for (int i = 0; i < 3; ++i) {
        const ecclResult_t result =
            ecclAllReduce(in_, out_, loner ? 7 : 8, ecclFloat32, ecclSum, comm_, streams_[i % 2]);
        if (result != ecclSuccess && result != ecclRemoteError) MUST(result);
      }
    }
    ecclResult_t state = ecclSuccess;
    while (!loner && round_.ranks > 1 && state == ecclSuccess) {
      MUST(ecclCommGetAsyncError(comm_, &state));
      std::this_thread::yield();
    }
    if (ecclGetLastError(comm_) == nullptr) _Exit(1);
    MUST(ecclCommAbort(comm_));
  }

  const Round& round_;
  const int rank_;
  std::mt19937 random_;
  ecclComm_t comm_ = nullptr;
  topsStream_t streams_[2] = {};
  topsEvent_t event_ = nullptr;
  void *in_ = nullptr, *out_ = nullptr;
  std::vector<float> host_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int ranks = atoi(argv[1]), rounds = atoi(argv[2]);
  std::mt19937 random(static_cast<unsigned>(atoi(argv[3])));
  for (int r = 0; r < rounds; ++r) {
    Round round{};
    MUST(ecclGetUniqueId(&round.id));
    round.seed = random();
    round.ranks = ranks;
    round.ending = r % 3;
    round.loner = static_cast<int>(random() % static_cast<unsigned>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&round, rank] { Rank(round, rank).run(); });
    for (auto& thread : threads) thread.join();
  }
  puts("passed");
  return 0;
}
