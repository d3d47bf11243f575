// The fake accelerator "fake_stream": the device of fake_device.h with streams of the user program, and communicators
// that read its memory. Ranks are processes on one machine that share a segment; a collective is a task of a stream
// that waits for the other ranks' tasks. Like a real one, it lacks many types and collectives: see query().
//
// Options: delay_us, fail_copy (fake_device.h); mode ("stream", or "request": collectives return requests); max_count
// (elements of one call); fail_collective (the number of the collective that finds its peers gone; 0: none).
#include <fcntl.h>

#include <atomic>

#include "../fake_device/fake_device.h"

namespace {

constexpr uint64_t kRound = 64 * 1024;
constexpr int32_t kMostRanks = 8;

struct Slot {
  int32_t coll, dtype, op, root;
  uint64_t bytes, left;  // of this round, after it
  uint64_t row[kMostRanks];
  char data[kRound];
};

struct Shared {
  std::atomic<uint64_t> arrivals;
  std::atomic<uint32_t> aborted;
  Slot slots[kMostRanks];
};

struct Stopped {};

std::atomic<uint64_t> collectives_done{0};

// The arguments of a collective for its task.
struct Task {
  int32_t coll, dtype, op, root;
  uint64_t width, in_bytes;
  char *in, *out;
  std::vector<uint64_t> give, get;  // bytes by rank; ALLGATHER, REDUCESCATTER: get only
};

template <class T>
T combined(T a, T b, int32_t op) {
  switch (op) {
    case HVD_PROD:
      return static_cast<T>(a * b);
    case HVD_MIN:
      return std::min(a, b);
    case HVD_MAX:
      return std::max(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

template <class T>
void combine(char* to, const char* from, uint64_t bytes, int32_t op) {
  for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a = combined(a, b, op);
    std::memcpy(to + i, &a, sizeof a);
  }
}

// The shared state of a communicator of either kind. Its last task keeps it alive.
class Rendezvous {
 public:
  Rendezvous(const hvd::CommInit& init) : rank_(init.rank), size_(init.size) {
    if (size_ > kMostRanks) throw hvd::Error(HVD_E_UNSUPPORTED, "at most 8 ranks");
    std::string name;
    if (rank_ == 0) {
      static std::atomic<int> made{0};
      name = "/hvd-fake_stream-" + std::to_string(getpid()) + "-" + std::to_string(++made);
      init.store.set("segment", name);
    } else {
      name = init.store.get("segment");
    }
    // The first rank creates it; new pages are zero.
    const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) throw hvd::Error(HVD_E_NOMEM, "no shared memory");
    shared_ = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    if (init.store.add("opened", 1) == size_) {
      shm_unlink(name.c_str());
      init.store.del("opened");
      init.store.del("segment");
    }
  }
  ~Rendezvous() { munmap(shared_, sizeof(Shared)); }

  void abort() { shared_->aborted.store(1); }
  bool aborted() const { return shared_->aborted.load(); }
  bool failed() const { return failed_.load(); }

  void check() const {
    if (failed()) throw hvd::Error(HVD_E_REMOTE, "a peer does not answer", HVD_EF_COMM_DEAD, 6);
    if (aborted()) throw hvd::Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
  }

  // On a stream's thread.
  void perform(const Task& t) {
    if (failed() || aborted()) return;
    if (++collectives_done == number_option("fail_collective", 0)) return failed_.store(true);
    try {
      rounds(t);
    } catch (const Stopped&) {
    }
  }

 private:
  void barrier() {
    const uint64_t target = ++barriers_ * static_cast<uint64_t>(size_);
    shared_->arrivals.fetch_add(1);
    for (int turn = 0; shared_->arrivals.load() < target; ++turn) {
      if (aborted()) throw Stopped{};
      if (turn > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  void rounds(const Task& t) {
    const bool gives = t.coll != HVD_BROADCAST || t.root == rank_;
    const uint64_t mine = gives ? t.in_bytes : 0;
    for (uint64_t at = 0;; at += kRound) {
      Slot& s = shared_->slots[rank_];
      s.coll = t.coll;
      s.dtype = t.dtype;
      s.op = t.op;
      s.root = t.root;
      s.bytes = at < mine ? std::min(kRound, mine - at) : 0;
      s.left = at + s.bytes < mine ? mine - at - s.bytes : 0;
      for (size_t r = 0; r < t.give.size(); ++r) s.row[r] = t.give[r];
      if (s.bytes) std::memcpy(s.data, t.in + at, s.bytes);
      barrier();
      bool more = false;
      for (int32_t r = 0; r < size_; ++r) {
        const Slot& other = shared_->slots[r];
        more = more || other.left > 0;
        if (other.coll != t.coll || other.dtype != t.dtype || other.op != t.op || other.root != t.root)
          failed_.store(true);
      }
      if (!failed()) take(t, at);
      barrier();
      if (!more || failed()) return;
    }
  }

  // Copies or reduces this rank's part of the round's data, which begin at byte `at` of each rank's input.
  void take(const Task& t, uint64_t at) {
    const auto me = static_cast<size_t>(rank_);
    const Slot& first = shared_->slots[0];
    char sums[kRound];
    uint64_t before = 0;
    switch (t.coll) {
      case HVD_BROADCAST:
        if (t.out && t.out != t.in + 0)
          std::memcpy(t.out + at, shared_->slots[t.root].data, shared_->slots[t.root].bytes);
        if (t.out && t.out == t.in && t.root != rank_)
          std::memcpy(t.out + at, shared_->slots[t.root].data, shared_->slots[t.root].bytes);
        return;
      case HVD_ALLGATHER:
        for (int32_t r = 0; r < size_; before += t.get[static_cast<size_t>(r++)])
          if (shared_->slots[r].bytes)
            std::memcpy(t.out + before + at, shared_->slots[r].data, shared_->slots[r].bytes);
        return;
      case HVD_ALLTOALL:
        for (int32_t r = 0; r < size_; before += t.get[static_cast<size_t>(r++)]) {
          const Slot& s = shared_->slots[r];
          uint64_t begin = 0;
          for (size_t k = 0; k < me; ++k) begin += s.row[k];
          copy_part(t.out + before, begin, s.row[me], s.data, at, s.bytes);
        }
        return;
      default:
        break;
    }
    std::memcpy(sums, first.data, first.bytes);
    for (int32_t r = 1; r < size_; ++r) {
      const char* from = shared_->slots[r].data;
      if (t.dtype == HVD_FLOAT32) combine<float>(sums, from, first.bytes, t.op);
      if (t.dtype == HVD_INT32) combine<int32_t>(sums, from, first.bytes, t.op);
      if (t.dtype == HVD_INT8) combine<int8_t>(sums, from, first.bytes, t.op);
      if (t.dtype == HVD_UINT8) combine<uint8_t>(sums, from, first.bytes, t.op);
    }
    if (t.coll == HVD_ALLREDUCE) {
      std::memcpy(t.out + at, sums, first.bytes);
    } else {
      for (size_t k = 0; k < me; ++k) before += t.get[k];
      copy_part(t.out, before, t.get[me], sums, at, first.bytes);
    }
  }

  // Copies the overlap of [begin, begin + bytes) and [at, at + n); `data` holds the latter.
  static void copy_part(char* to, uint64_t begin, uint64_t bytes, const char* data, uint64_t at, uint64_t n) {
    const uint64_t first = std::max(begin, at), last = std::min(begin + bytes, at + n);
    if (first < last) std::memcpy(to + (first - begin), data + (first - at), last - first);
  }

  const int32_t rank_, size_;
  Shared* shared_ = nullptr;
  uint64_t barriers_ = 0;
  std::atomic<bool> failed_{false};
};

// Calls between group_begin and group_end; nothing starts before the end.
struct Group {
  bool open = false;
  int32_t coll = -1;
  std::vector<std::function<void()>> calls;
};

Group& group() {
  thread_local Group one;
  return one;
}

template <class T>
struct FakeComm : hvd::Comm<T> {
  static constexpr const char* device_types = "fake_stream";
  static constexpr const char* version = "0.2";

  explicit FakeComm(const hvd::CommInit& init) : hvd::Comm<T>(init), rendezvous(std::make_shared<Rendezvous>(init)) {}

  // Sums and the like of four types without factors and averages; 64-bit types are moved by broadcast and allgather
  // only; no bool, no float8; buffers at multiples of 16 bytes; few elements at a time.
  static hvd_coll_caps query(const hvd::Coll& c) {
    hvd_coll_caps caps{};
    const int32_t d = c.dtype();
    const bool reduces = c.kind() == HVD_ALLREDUCE || c.kind() == HVD_REDUCESCATTER;
    const bool sums = d == HVD_FLOAT32 || d == HVD_INT32 || d == HVD_INT8 || d == HVD_UINT8;
    const bool moves = d != HVD_BOOL && d != HVD_FLOAT8_E4M3FN && d != HVD_FLOAT8_E5M2;
    const bool wide = c.element_bytes() == 8;
    if (reduces && (!sums || c.op() == HVD_AVG || c.prescale() != 1 || c.postscale() != 1)) return caps;
    if (!reduces && !moves) return caps;
    if (c.kind() == HVD_ALLTOALL && wide) return caps;
    caps.support = HVD_NATIVE;
    caps.score = 50;
    caps.alignment = 16;
    if (c.kind() != HVD_ALLTOALL) caps.max_count = number_option("max_count", 40000);
    return caps;
  }

  Task task_of(const hvd::Coll& c) {
    const auto ranks = static_cast<size_t>(this->size());
    Task t{};
    t.coll = c.kind();
    t.dtype = c.dtype();
    t.op = c.op();
    t.root = c.args().root;
    t.width = c.element_bytes();
    t.in_bytes = c.count(0) * t.width;
    const auto row = [&](const uint64_t* counts, uint64_t fallback) {
      std::vector<uint64_t> bytes;
      for (size_t r = 0; r < ranks; ++r) bytes.push_back((counts ? counts[r] : fallback) * t.width);
      return bytes;
    };
    uint64_t out_bytes = t.in_bytes;
    if (t.coll == HVD_ALLGATHER || t.coll == HVD_ALLTOALL || t.coll == HVD_REDUCESCATTER) {
      t.get = row(c.args().out_counts, t.coll == HVD_ALLGATHER ? c.count(0) : c.count(0) / ranks);
      if (t.coll == HVD_ALLTOALL) t.give = row(c.args().in_counts, c.count(0) / ranks);
      out_bytes = 0;
      for (uint64_t n : t.get) out_bytes += n;
      if (t.coll == HVD_REDUCESCATTER) out_bytes = t.get[static_cast<size_t>(this->rank())];
    }
    const bool gives = t.coll != HVD_BROADCAST || t.root == this->rank();
    t.in = gives ? place(c.args().in[0], t.in_bytes) : nullptr;
    t.out = c.args().out[0].base ? place(c.args().out[0], out_bytes) : nullptr;
    // In place, this rank's input of an allgather lies at its place in the output.
    if (t.coll == HVD_ALLGATHER && t.in == t.out)
      for (int32_t r = 0; r < this->rank(); ++r) t.in += t.get[static_cast<size_t>(r)];
    const uint64_t most = query(c).max_count, n = t.coll == HVD_ALLGATHER ? out_bytes / t.width : c.count(0);
    if (most && n > most) throw hvd::Error(HVD_E_INVALID, "more elements than max_count");
    return t;
  }

  static char* place(const hvd_buf& b, uint64_t bytes) {
    if (bytes == 0) return nullptr;
    if ((reinterpret_cast<uintptr_t>(b.base) + b.offset) % 16 != 0)
      throw hvd::Error(HVD_E_INVALID, "a buffer is not aligned");
    int32_t kind = 0;
    char* const p = pool().find(b, bytes, &kind);
    if (kind != HVD_MEM_DEVICE) throw hvd::Error(HVD_E_INVALID, "this is not memory of the device");
    return p;
  }

  hvd::Work allreduce(const hvd::Coll& c) { return static_cast<T*>(this)->start(c); }
  hvd::Work broadcast(const hvd::Coll& c) { return static_cast<T*>(this)->start(c); }
  hvd::Work allgather(const hvd::Coll& c) { return static_cast<T*>(this)->start(c); }
  hvd::Work alltoall(const hvd::Coll& c) { return static_cast<T*>(this)->start(c); }
  hvd::Work reducescatter(const hvd::Coll& c) { return static_cast<T*>(this)->start(c); }
  void abort() { rendezvous->abort(); }

  std::shared_ptr<Rendezvous> rendezvous;
};

struct StreamComm : FakeComm<StreamComm> {
  static constexpr uint64_t caps = HVD_CAP_STREAM | HVD_CAP_MEM_DEVICE | HVD_CAP_GROUP_SAME;
  using FakeComm::FakeComm;
  void async_error() {
    crash_if_asked("async_error");
    rendezvous->check();
  }
  void group_begin() { group() = {true, -1, {}}; }
  void group_end() {
    const Group all = std::exchange(group(), {});
    for (const auto& call : all.calls) call();
  }

  hvd::Work start(const hvd::Coll& c) {
    Stream* const stream = stream_of(c.args().stream);
    auto call = [stream, rendezvous = rendezvous, t = task_of(c)] {
      stream->add([rendezvous, t] { rendezvous->perform(t); });
    };
    if (!group().open) {
      call();
    } else {
      if (group().coll >= 0 && group().coll != c.kind()) throw hvd::Error(HVD_E_INVALID, "a group of two kinds");
      group().coll = c.kind();
      group().calls.push_back(std::move(call));
    }
    return hvd::Work::done();
  }
};

struct Pending : hvd::Request {
  std::shared_ptr<Rendezvous> rendezvous;
  std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);
  bool test() override {
    if (done->load()) rendezvous->check();
    return done->load();
  }
  bool wait(int64_t deadline_ns) override {
    while (!test() && Clock::now() < Clock::time_point(std::chrono::nanoseconds(deadline_ns)))
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return test();
  }
};

struct RequestComm : FakeComm<RequestComm> {
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_DEVICE;
  using FakeComm::FakeComm;
  hvd::Work start(const hvd::Coll& c) {
    auto pending = std::make_unique<Pending>();
    pending->rendezvous = rendezvous;
    worker.add([rendezvous = rendezvous, t = task_of(c), done = pending->done] {
      rendezvous->perform(t);
      done->store(true);
    });
    return hvd::Work(std::move(pending));
  }
  Stream worker;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  return hvd::guarded(error, [&]() -> hvd_rc {
    static hvd_backend_api api;
    hvd::host = host;
    static const hvd_device_api device = FakeDevice::make("fake_stream", true);
    std::memset(&api, 0, sizeof(api));
    api.hdr = {sizeof(api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    api.name = "fake_stream";
    api.tag = "FAKE_STREAM";
    api.version = "0.2";
    api.vendor_lib = "";
    api.device = &device;
    api.comm = hvd::option("mode", "stream") == "request" ? hvd::CommTable<RequestComm>::table()
                                                          : hvd::CommTable<StreamComm>::table();
    *out = &api;
    return HVD_OK;
  });
}

#include "../fake_device/program_side.h"
