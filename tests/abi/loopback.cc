// A worked sample of a backend written with backend.hpp: ranks are threads of one process.
//
// Rank 0 makes a Hub and publishes its address in the store. The last rank that arrives at a collective computes it for
// all ranks, in rank order. tests/abi builds it and loads it through the same loader as any backend. It also serves
// programs with several engines in one process.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "hvd/backend.hpp"

namespace {

// The arguments of one rank. The vectors are copies: args die with the call that started the collective.
struct Post {
  explicit Post(const hvd::Coll& c)
      : kind(c.kind()),
        dtype(c.dtype()),
        op(c.op()),
        root(c.args().root),
        prescale(c.prescale()),
        postscale(c.postscale()),
        in(c.args().in, c.args().in + c.buffers()),
        out(c.args().out, c.args().out + c.buffers()),
        counts(c.args().counts, c.args().counts + c.buffers()),
        element(c.element_bytes()) {}
  const char* source(size_t i) const { return static_cast<const char*>(in[i].base) + in[i].offset; }
  char* target(size_t i) const { return static_cast<char*>(out[i].base) + out[i].offset; }

  int32_t kind, dtype, op, root;
  double prescale, postscale;
  std::vector<hvd_buf> in, out;
  std::vector<uint64_t> counts;
  uint64_t element;
};

template <class T>
void reduce(const std::vector<Post>& posts, size_t buffer) {
  const uint64_t n = posts[0].counts[buffer];
  std::vector<T> sum(n, T(0));
  for (const Post& p : posts) {
    for (uint64_t i = 0; i < n; ++i) {
      T x;
      std::memcpy(&x, p.source(buffer) + i * sizeof(T), sizeof(T));
      sum[i] = static_cast<T>(sum[i] + static_cast<T>(static_cast<double>(x) * p.prescale));
    }
  }
  for (T& x : sum) {
    if (posts[0].op == HVD_AVG) x = static_cast<T>(x / static_cast<T>(posts.size()));
    x = static_cast<T>(static_cast<double>(x) * posts[0].postscale);
  }
  for (const Post& p : posts) {
    if (n) std::memcpy(p.target(buffer), sum.data(), n * sizeof(T));
  }
}

struct Hub {
  explicit Hub(size_t size) : size(size) {}

  void compute(const std::vector<Post>& posts) const {
    for (const Post& p : posts) {
      const bool same = p.kind == posts[0].kind && p.dtype == posts[0].dtype && p.op == posts[0].op &&
                        p.root == posts[0].root && p.counts.size() == posts[0].counts.size() &&
                        (p.kind == HVD_ALLGATHER || p.counts == posts[0].counts);
      if (!same) throw hvd::Error(HVD_E_INVALID, "the ranks ask for different collectives");
    }
    for (size_t b = 0; b < posts[0].counts.size(); ++b) move(posts, b);
  }

  void move(const std::vector<Post>& posts, size_t b) const {
    const uint64_t element = posts[0].element;
    if (posts[0].kind == HVD_ALLREDUCE) {
      if (posts[0].dtype == HVD_FLOAT32) reduce<float>(posts, b);
      if (posts[0].dtype == HVD_FLOAT64) reduce<double>(posts, b);
      if (posts[0].dtype == HVD_INT32) reduce<int32_t>(posts, b);
      if (posts[0].dtype == HVD_INT64) reduce<int64_t>(posts, b);
    } else if (posts[0].kind == HVD_BROADCAST) {
      const Post& root = posts[static_cast<size_t>(root_of(posts))];
      for (const Post& p : posts) std::memmove(p.target(b), root.source(b), root.counts[b] * element);
    } else if (posts[0].kind == HVD_ALLGATHER) {
      std::string all;
      for (const Post& p : posts) all.append(p.source(b), p.counts[b] * element);
      for (const Post& p : posts) std::memcpy(p.target(b), all.data(), all.size());
    }
  }

  int32_t root_of(const std::vector<Post>& posts) const {
    if (posts[0].root < 0 || static_cast<size_t>(posts[0].root) >= size) {
      throw hvd::Error(HVD_E_INVALID, "root " + std::to_string(posts[0].root) + " is no rank of this communicator");
    }
    return posts[0].root;
  }

  // Arrive at collective `turn`, the last one computes.
  void post(uint64_t turn, int32_t rank, const hvd::Coll& c) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& waiting = arrivals[turn];
    waiting.emplace(rank, Post(c));
    if (waiting.size() < size) return;
    std::vector<Post> posts;
    for (auto& [r, p] : waiting) posts.push_back(std::move(p));
    try {
      compute(posts);
    } catch (const hvd::Error& e) {
      failures.emplace(turn, e);
    }
    arrivals.erase(turn);
    finished = turn;
    changed.notify_all();
  }

  // With the mutex held: is collective `turn` complete? Throws if it failed.
  bool over(uint64_t turn) {
    if (auto it = failures.find(turn); it != failures.end()) throw it->second;
    if (finished >= turn) return true;
    if (aborted) throw hvd::Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
    return false;
  }

  const size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::map<int32_t, Post>> arrivals;
  std::map<uint64_t, hvd::Error> failures;
  uint64_t finished = 0;  // turns end in order, since each rank has one collective in flight
  bool aborted = false;
};

class Arrival : public hvd::Request {
 public:
  Arrival(std::shared_ptr<Hub> hub, uint64_t turn, int64_t deadline_ns)
      : hub_(std::move(hub)), turn_(turn), deadline_ns_(deadline_ns) {}

  bool test() override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    return hub_->over(turn_) || late();
  }

  bool wait(int64_t deadline_ns) override {
    std::unique_lock<std::mutex> lock(hub_->mutex);
    const int64_t until = deadline_ns_ > 0 ? std::min(deadline_ns, deadline_ns_) : deadline_ns;
    while (!hub_->over(turn_)) {
      if (until == HVD_NO_DEADLINE) {
        hub_->changed.wait(lock);
        continue;
      }
      const auto point = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until));
      if (hub_->changed.wait_until(lock, point) == std::cv_status::timeout) return hub_->over(turn_) || late();
    }
    return true;
  }

 private:
  bool late() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (deadline_ns_ <= 0 || std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() < deadline_ns_) {
      return false;
    }
    throw hvd::Error(HVD_E_TIMEOUT, "not every rank arrived in time", HVD_EF_COMM_DEAD);
  }

  std::shared_ptr<Hub> hub_;
  uint64_t turn_;
  int64_t deadline_ns_;
};

constexpr uint64_t bit(int n) { return uint64_t{1} << n; }

#ifndef LOOPBACK_NAME
#define LOOPBACK_NAME loopback
#endif

struct Loopback : hvd::Comm<Loopback> {
  static constexpr uint64_t caps =
      HVD_CAP_REQUEST | HVD_CAP_VECTORED | HVD_CAP_MEM_HOST | HVD_CAP_ONE_HOST | HVD_CAP_PROCESS_LOCAL;
  static constexpr uint64_t reductions = bit(HVD_SUM) | bit(HVD_AVG);
  static constexpr const char* version = "1.0";
  static constexpr hvd_option options[] = {
      hvd::make_option("greeting", "str", "", "", "logged at INFO by rank 0 of each new communicator"),
      hvd::make_option("patience", "int", "0", "0..", "not used; shows a second entry of the list"),
  };

  explicit Loopback(const hvd::CommInit& init) : Comm(init) {
    const std::string here = std::to_string(getpid());
    if (rank() == 0) {
      hub_ = std::make_shared<Hub>(static_cast<size_t>(size()));
      if (size() > 1) {
        // Each peer takes over one reference that the store's text stands for.
        auto* gifts = new std::shared_ptr<Hub>[static_cast<size_t>(size()) - 1];
        for (int i = 0; i < size() - 1; ++i) gifts[i] = hub_;
        char text[64];
        std::snprintf(text, sizeof(text), "%p", static_cast<void*>(gifts));
        init.store.set("hub", here + " " + text);
      }
      const std::string greeting = hvd::option("greeting", "");
      if (!greeting.empty()) hvd::log(HVD_LOG_INFO, __FILE__, __LINE__, greeting);
    } else {
      const std::string text = init.store.get("hub", init.deadline_ns);
      const size_t space = text.find(' ');
      if (text.substr(0, space) != here) {
        throw hvd::Error(HVD_E_UNAVAILABLE, "rank 0 is another process; loopback ranks are threads of one");
      }
      void* address = nullptr;
      std::sscanf(text.c_str() + space + 1, "%p", &address);
      auto* gifts = static_cast<std::shared_ptr<Hub>*>(address);
      hub_ = std::move(gifts[rank() - 1]);
      if (init.store.add("hub.taken", 1) == size() - 1) {
        delete[] gifts;
        init.store.del("hub");
        init.store.del("hub.taken");
      }
    }
  }

  // AVG of bool and reductions of the types without arithmetic here are not served.
  static hvd_coll_caps query(const hvd::Coll& c) {
    hvd_coll_caps caps{};
    constexpr uint64_t numbers = bit(HVD_FLOAT32) | bit(HVD_FLOAT64) | bit(HVD_INT32) | bit(HVD_INT64);
    if (c.kind() == HVD_ALLREDUCE && !((numbers >> c.dtype()) & 1)) return caps;
    caps.support = HVD_NATIVE;
    caps.score = 10;
    return caps;
  }

  hvd::Work allreduce(const hvd::Coll& c) { return arrive(c); }
  hvd::Work broadcast(const hvd::Coll& c) { return arrive(c); }
  hvd::Work allgather(const hvd::Coll& c) { return arrive(c); }
  hvd::Work barrier(const hvd::Coll& c) { return arrive(c); }

  void abort() {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    hub_->aborted = true;
    hub_->changed.notify_all();
  }

 private:
  hvd::Work arrive(const hvd::Coll& c) {
    hub_->post(++turn_, rank(), c);
    auto arrival = std::make_unique<Arrival>(hub_, turn_, c.args().deadline_ns);
    if (arrival->test()) return hvd::Work::done();
    return hvd::Work(std::move(arrival));
  }

  std::shared_ptr<Hub> hub_;
  uint64_t turn_ = 0;
};

}  // namespace

HVD_BACKEND(LOOPBACK_NAME, hvd::NoDevice, Loopback)
