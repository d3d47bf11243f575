// A C++17 layer over backend_abi.h for authors of backends. Header-only; the host sees only the C tables.
//
// A communicator is a class. hvd::Comm<T> lists the methods that the class may have; hvd::Device<T>
// (backend_device.hpp) does so for a device. This layer makes the tables from the methods of the class, checks and
// completes every struct from the host, and turns exceptions into hvd_error; no exception leaves it. Threads: as in
// backend_abi.h; any thread may call abort() and query().
//
//   struct MyComm : hvd::Comm<MyComm> {
//     static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
//     explicit MyComm(const hvd::CommInit& init) : Comm(init) { ... }
//     hvd::Work allreduce(const hvd::Coll& c) { ...; return hvd::Work::done(); }
//   };
//   HVD_BACKEND(mine, hvd::NoDevice, MyComm)      or (mine, MyDevice, MyComm), or (mine, MyDevice, hvd::NoComm)
//
// Complete examples: tests/abi/loopback.cc for host memory; the template in backends/ for a device.
#ifndef HVD_BACKEND_HPP_
#define HVD_BACKEND_HPP_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "hvd/backend_abi.h"
#include "hvd/backend_clock.hpp"
#include "hvd/backend_detect.hpp"
#include "hvd/backend_errors.hpp"

// Hidden, because default-visibility inline variables are unique in the process even across
// RTLD_LOCAL, and one backend would then use another's host table.
#pragma GCC visibility push(hidden)
namespace hvd {

// ------------------------------------------------------------------------------------------------------- the host

// The host's table. HVD_BACKEND sets it once, before any other code runs.
inline const hvd_host_api* host = nullptr;

inline void log(int32_t level, const char* file, int32_t line, const std::string& text) {
  host->log(level, file, line, text.c_str());
}

// HOROVOD_BACKEND_<NAME>_<KEY>, or `fallback` if it is not set.
inline std::string option(const char* key, const std::string& fallback) {
  std::string text(256, '\0');
  for (;;) {
    uint64_t n = text.size();
    const hvd_rc rc = host->option(key, text.data(), &n);
    if (rc == HVD_OK) return text.substr(0, std::strlen(text.c_str()));
    if (rc != HVD_E_INVALID || n <= text.size()) return fallback;
    text.resize(n);
  }
}

// A plugin's own thread announces itself before its first call of the host.
inline void thread_enter(const char* role) { host->thread_enter(role); }

// Waits until done() returns true (true) or until the deadline (false); for runtimes that can only be polled. A
// deadline of 0 means kDefaultWaitNs. It polls for kSpinNs without a pause, because most operations are shorter; after
// that it sleeps for an eighth of the time waited so far, so that it comes back at most an eighth late, and
// kLongestPauseNs at most.
inline constexpr int64_t kDefaultWaitNs = 60'000'000'000;
inline constexpr int64_t kSpinNs = 100'000, kLongestPauseNs = 1'000'000;
template <class Done>
bool poll_until(int64_t deadline_ns, Done&& done) {
  using Clock = std::chrono::steady_clock;
  const auto now = [] { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); };
  const int64_t begin = now();
  if (deadline_ns <= 0) deadline_ns = begin + kDefaultWaitNs;
  for (;;) {
    if (done()) return true;
    const int64_t at = now();
    if (at >= deadline_ns) return false;
    if (at - begin < kSpinNs) {
      std::this_thread::yield();  // to the thread that does the work, where there are few cores
    } else {
      const int64_t pause = std::min((at - begin) / 8, kLongestPauseNs);
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause, deadline_ns - at)));
    }
  }
}

// The key-value store for the rendezvous of a communicator that is being created.
class Store {
 public:
  explicit Store(void* handle) : handle_(handle) {}
  void set(const char* key, const std::string& value) {
    check(host->store_set(handle_, key, value.data(), value.size(), prepare()));
  }
  // Waits for the key, until the deadline (0: that of the creation). `expected`: bytes of the value, as far as the
  // caller knows; a longer value costs a second call.
  std::string get(const char* key, int64_t deadline_ns = 0, size_t expected = 256) {
    std::optional<std::string> value = look(key, deadline_ns, expected, false);
    return std::move(*value);
  }
  // The value if the key exists now; waits for no other rank.
  std::optional<std::string> try_get(const char* key, size_t expected = 256) {
    return look(key, 1, expected, true);  // a deadline in the past
  }
  int64_t add(const char* key, int64_t delta) {
    int64_t now = 0;
    check(host->store_add(handle_, key, delta, &now, prepare()));
    return now;
  }
  void del(const char* key) { check(host->store_del(handle_, key, prepare())); }
  // The argument of the host's slots, for code that calls them itself.
  void* handle() const { return handle_; }

 private:
  hvd_error* prepare() {
    std::memset(&error_, 0, sizeof(error_));
    error_.hdr = {sizeof(error_), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    return &error_;
  }
  // No value if the deadline has passed, and that is no error for the caller.
  std::optional<std::string> look(const char* key, int64_t deadline_ns, size_t expected, bool may_be_missing) {
    std::string value(expected, '\0');
    uint64_t n = value.size();
    hvd_rc rc = host->store_get(handle_, key, value.data(), &n, deadline_ns, prepare());
    if (rc == HVD_E_INVALID && n > value.size()) {
      value.resize(n);
      rc = host->store_get(handle_, key, value.data(), &n, deadline_ns, prepare());
    }
    if (rc == HVD_E_TIMEOUT && may_be_missing) return std::nullopt;
    check(rc);
    value.resize(n);
    return value;
  }
  void check(hvd_rc rc) {
    if (rc == HVD_OK) return;
    error_.text[sizeof(error_.text) - 1] = '\0';
    throw Error(rc, error_.text, error_.flags, error_.vendor_code);
  }
  void* handle_;
  hvd_error error_;
};

// ---------------------------------------------------------------------------------------------- arguments of methods

namespace detail {
// The device table of this backend, whether made from class D or written by hand; NULL without one.
template <class D>
const hvd_device_api* device_table();
}  // namespace detail

// The arguments of a communicator's constructor. All of it is copied, so it may be kept, except the store, which
// is valid during construction (and until created() is true) only.
struct CommInit {
  explicit CommInit(const hvd_comm_args& a)
      : key(a.key),
        id(a.id ? std::string(static_cast<const char*>(a.id), a.id_bytes) : std::string()),
        ranks(a.ranks, a.ranks != nullptr ? a.ranks + a.size : nullptr),
        hosts(a.hosts, a.hosts != nullptr ? a.hosts + a.size : nullptr),
        rank(a.rank),
        size(a.size),
        device(a.device),
        deadline_ns(a.deadline_ns),
        notify_token(a.notify_token),
        device_api(a.device_api),
        store(a.store) {}
  // The device of this backend's device class D that the communicator works on. Throws for a foreign device, which is
  // not a D.
  template <class D>
  D& device_as() const {
    if (device == nullptr) throw Error(HVD_E_INVALID, "this communicator is for device memory and got no device");
    // Hosts from before device_api only passed devices of the backend itself.
    if (device_api != nullptr && device_api != detail::device_table<D>()) {
      throw Error(HVD_E_UNSUPPORTED, std::string("the ") + device_api->device_type +
                                         " device was opened by another backend; communicators of this one work on "
                                         "devices that it has opened itself");
    }
    return *reinterpret_cast<D*>(device);
  }
  std::string key, id;
  std::vector<int32_t> ranks, hosts;
  int32_t rank, size;
  hvd_device device;
  int64_t deadline_ns;
  void* notify_token;
  const hvd_device_api* device_api;  // the table that opened `device`; of another backend for a foreign device
  mutable Store store;
};

// The arguments of window_create(); the store is valid during that call only.
struct WindowInit {
  explicit WindowInit(const hvd_window_args& a)
      : key(a.key != nullptr ? a.key : ""), memory(a.memory), deadline_ns(a.deadline_ns), store(a.store) {}
  std::string key;
  hvd_buf memory;  // a base of NULL: the backend allocates `memory.bytes` bytes
  int64_t deadline_ns;
  mutable Store store;
};

// Of each element type.
inline constexpr uint32_t kDtypeBytes[HVD_DTYPE_COUNT] = {
#define HVD_DTYPE(ID, number, name, bytes, kind, reductions) bytes,
#include "hvd/types.inc"
};
inline constexpr const char* kDtypeNames[HVD_DTYPE_COUNT] = {
#define HVD_DTYPE(ID, number, name, bytes, kind, reductions) #name,
#include "hvd/types.inc"
};

template <class D>
auto native_stream(hvd_stream s);

// One collective; a view that dies with the call. Addresses are for memory with plain addresses: for handles use
// args().in[i] and its offset.
class Coll {
 public:
  explicit Coll(const hvd_coll_args& args) : args_(args) {}
  const hvd_coll_args& args() const { return args_; }
  int32_t kind() const { return args_.coll; }
  int32_t dtype() const { return args_.dtype; }
  int32_t op() const { return args_.op; }
  uint64_t buffers() const { return args_.n_bufs; }
  const void* in(uint64_t i) const { return static_cast<const char*>(args_.in[i].base) + args_.in[i].offset; }
  void* out(uint64_t i) const { return static_cast<char*>(args_.out[i].base) + args_.out[i].offset; }
  uint64_t count(uint64_t i) const { return args_.counts[i]; }
  // Elements from rank r in out[i] (allgather), or for rank r of in[i] (reducescatter); `size` ranks.
  uint64_t out_count(uint64_t i, int32_t r, int32_t size, uint64_t fallback) const {
    return args_.out_counts ? args_.out_counts[i * static_cast<uint64_t>(size) + static_cast<uint64_t>(r)] : fallback;
  }
  uint64_t element_bytes() const {
    return args_.dtype >= 0 && args_.dtype < HVD_DTYPE_COUNT ? kDtypeBytes[args_.dtype] : 0;
  }
  // The runtime's stream of an operation on a device of class D.
  template <class D>
  auto stream() const {
    return native_stream<D>(args_.stream);
  }
  // The same on a foreign device (CommInit::device_api); NULL if its table has no stream_native.
  void* foreign_stream(const hvd_device_api* api) const {
    return HVD_HAS(api, hvd_device_api, stream_native) ? api->stream_native(args_.stream) : nullptr;
  }
  double prescale() const { return args_.prescale == 0 ? 1 : args_.prescale; }
  double postscale() const { return args_.postscale == 0 ? 1 : args_.postscale; }

 private:
  const hvd_coll_args& args_;
};

// Throws HVD_E_INVALID unless each buffer of the collective holds what its counts say. Counts may come from other
// ranks: no product or sum of them wraps, and every part of a buffer lies within it. Every collective passes this
// before its method is called (see checks_sizes).
inline void check_sizes(const Coll& c, int32_t rank, int32_t size) {
  const hvd_coll_args& a = c.args();
  const auto ranks = static_cast<uint64_t>(size);
  const auto no = [](const char* list, uint64_t i, const std::string& why) {
    throw Error(HVD_E_INVALID, list + ("[" + std::to_string(i) + "]: ") + why);
  };
  const auto sum = [&](const char* list, const uint64_t* table, uint64_t i) {
    int64_t total = 0;
    for (uint64_t r = 0; r < ranks; ++r) {
      const uint64_t part = table[i * ranks + r];
      if (__builtin_add_overflow(total, part, &total))
        no(list, i, "the part of rank " + std::to_string(r) + ", " + std::to_string(part) + " elements, is too large");
    }
    return static_cast<uint64_t>(total);
  };
  const auto hold = [&](const char* list, const hvd_buf* bufs, uint64_t i, uint64_t elements) {
    if (bufs == nullptr || bufs[i].base == nullptr) return;
    uint64_t bytes;
    if (__builtin_mul_overflow(elements, c.element_bytes(), &bytes) || bytes > bufs[i].bytes)
      no(list, i, std::to_string(elements) + " elements do not fit into " + std::to_string(bufs[i].bytes) + " bytes");
  };
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    if (a.counts == nullptr) throw Error(HVD_E_INVALID, "counts is NULL, but there are buffers");
    const uint64_t count = a.counts[i];
    uint64_t in = count, out = count;
    if (a.coll == HVD_ALLGATHER) {
      if (a.out_counts != nullptr) {
        out = sum("out", a.out_counts, i);
        if (a.out_counts[i * ranks + static_cast<uint64_t>(rank)] != count)
          no("in", i, std::to_string(count) + " elements, and another number in out_counts");
      } else if (__builtin_mul_overflow(count, ranks, &out)) {
        no("out", i, std::to_string(count) + " elements from each rank are too many");
      }
    } else if (a.coll == HVD_REDUCESCATTER) {
      out = count / ranks;
      if (a.out_counts != nullptr) {
        if (sum("in", a.out_counts, i) != count) no("in", i, "the parts of the ranks do not add up to its elements");
        out = a.out_counts[i * ranks + static_cast<uint64_t>(rank)];
      }
    } else if (a.coll == HVD_ALLTOALL) {
      if (a.in_counts != nullptr && sum("in", a.in_counts, i) != count)
        no("in", i, "the parts for the ranks do not add up to its elements");
      if (a.out_counts != nullptr) out = sum("out", a.out_counts, i);
    }
    const bool reads = a.coll != HVD_RECV && (a.coll != HVD_BROADCAST || a.root == rank);
    const bool writes = a.coll != HVD_SEND && (a.coll != HVD_REDUCE || a.root == rank);
    if (reads) hold("in", a.in, i, in);
    if (writes) hold("out", a.out, i, out);
  }
}

// An operation in flight (REQUEST communicators). It owns all objects that must outlive the call that started it.
class Request {
 public:
  virtual ~Request() = default;
  // Returns true if complete; makes progress, never sleeps. test() and wait() throw if the operation fails.
  virtual bool test() = 0;
  // Sleeps until complete (true) or until the deadline of this wait (false).
  virtual bool wait(int64_t deadline_ns) = 0;
  // The host frees the request (req_free). An object that serves many operations (Work::in_flight) stays alive.
  virtual void free_request() { delete this; }
};

// The result of a collective method: complete already (or enqueued, for STREAM), or a request.
class Work {
 public:
  static Work done() { return Work(std::unique_ptr<Request>()); }
  explicit Work(std::unique_ptr<Request> request) : request_(request.release()) {}
  // A request that the backend keeps and uses again, for example the communicator itself: nothing is allocated for the
  // operation. Its class overrides Request::free_request().
  static Work in_flight(Request& request) {
    Work work = done();
    work.request_.reset(&request);
    return work;
  }
  bool complete() const { return request_ == nullptr; }
  Request* release() { return request_.release(); }

 private:
  struct Freed {
    // A request that refuses to be freed stays with its backend.
    void operator()(Request* request) const noexcept {
      try {
        request->free_request();
      } catch (...) {
      }
    }
  };
  std::unique_ptr<Request, Freed> request_;
};

struct NoDevice {};
struct NoComm {};  // for a backend with a device table only

// Base of a communicator class T. Looked for in T, all optional but `caps` and T(const CommInit&):
//   static constexpr uint64_t caps                HVD_CAP_*; ABORT and GROUP_SAME are added if T has the methods
//   static constexpr const char* device_types     for MEM_DEVICE; absent: D's
//   static constexpr uint64_t dtypes, reductions  sets of 1 << HVD_<dtype>, 1 << HVD_<op>; absent: all
//   Work allreduce, reduce, broadcast, allgather, reducescatter, alltoall, send, recv, barrier (const Coll&)
//                               with HVD_CAP_STREAM they may return nothing
//   void abort()                any thread, never blocks
//   bool created()              creation goes on after the constructor; true when finished
//   void finalize(int64_t deadline_ns);   void async_error() (throws the failure)
//   void group_begin(), group_end();      T(T& parent, const CommInit&), for split: also with size 0, if the other
//                               ranks need a rank that is in no part; that object is destroyed at once
//   void* mem_register(const hvd_buf&);   void mem_deregister(void*)
//   hvd_window window_create(const WindowInit&, hvd_buf* part);   void window_destroy(hvd_window, int64_t deadline_ns);
//   static void window_free(hvd_window)           the last one on any thread, also without a communicator
//   static uint64_t id_bytes(); static void id_create(void* id)
//   static hvd_coll_caps query(const Coll&)       when the sets above cannot express the answer
//   hvd_coll_caps query_made(const Coll&) const   the same of one communicator, if the answer depends on the device it
//                               was made for; may throw HVD_E_UNSUPPORTED with the reason. Any thread
//   static hvd::Error why_unserved(const Coll&)   the error of a collective that query does not serve; absent:
//                               HVD_E_UNSUPPORTED with a general text. Any thread
//   static constexpr bool reports_abort = true   the class's own methods fail after abort(), with a better text than
//   this
//                               layer, which otherwise refuses every call after an abort
//   static constexpr bool checks_sizes = true   the class's own methods check the sizes of buffers (see check_sizes)
//   static std::string info(const std::string& key)   a fact for reports, "" if it is not known. Any thread
//   static void load()          opens the vendor's library; called first, may throw HVD_E_UNAVAILABLE
//   static constexpr const char *tag, *version;   static const char* vendor_lib()
//   static constexpr hvd_option options[]         made with hvd::make_option
// D: the device class whose memory it works on. The device is made current (D::make_current) around every method.
template <class T, class D = NoDevice>
class Comm {
 public:
  using DeviceClass = D;
  explicit Comm(const CommInit& init) : rank_(init.rank), size_(init.size), key_(init.key) {
    // A communicator class that also works on host memory is also created without a device.
    if constexpr (!std::is_same_v<D, NoDevice>) {
      if (init.device != nullptr || !(T::caps & HVD_CAP_MEM_HOST)) device_ = &init.device_as<D>();
    }
  }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  const std::string& key() const { return key_; }
  D& device() const { return *device_; }
  bool has_device() const { return device_ != nullptr; }

 private:
  int32_t rank_, size_;
  std::string key_;
  D* device_ = nullptr;
};

namespace detail {
constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
constexpr bool is_option_type(const char* type) {
  for (const char* known : {"int", "size", "float", "bool", "enum", "str", "path"}) {
    if (same_text(type, known)) return true;
  }
  return false;
}
}  // namespace detail

// An option of the backend; `type` and `range` as hvd_option has them. An unknown type does not compile, because
// options are constants.
constexpr hvd_option make_option(const char* name, const char* type, const char* fallback, const char* range,
                                 const char* doc) {
  if (!detail::is_option_type(type)) throw "the type of an option is int, size, float, bool, enum, str or path";
  hvd_option o{};
  o.hdr = {sizeof(hvd_option), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  o.name = name;
  o.type = type;
  o.fallback = fallback;
  o.range = range;
  o.doc = doc;
  return o;
}

}  // namespace hvd
#pragma GCC visibility pop

#include "hvd/backend_device.hpp"
#include "hvd/backend_entry.hpp"
#include "hvd/backend_tables.hpp"

#endif  // HVD_BACKEND_HPP_
