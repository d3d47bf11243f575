// C++17 sugar over backend_abi.h for those who write a backend; header-only, and nothing of it crosses the border.
//
// A communicator is a class with the methods it has: hvd::Comm<T> says which names are looked for, and
// hvd::Device<T> (backend_device.hpp) does so for a device. This layer makes the tables from what is there, checks and
// completes every struct the host passes, turns exceptions into hvd_error, and lets none escape. Threads: as in
// backend_abi.h; abort() and query() are called from any thread.
//
//   struct MyComm : hvd::Comm<MyComm> {
//     static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
//     explicit MyComm(const hvd::CommInit& init) : Comm(init) { ... }
//     hvd::Work allreduce(const hvd::Coll& c) { ...; return hvd::Work::done(); }
//   };
//   HVD_BACKEND(mine, hvd::NoDevice, MyComm)      or (mine, MyDevice, MyComm), or (mine, MyDevice, hvd::NoComm)
//
// Complete ones: tests/abi/loopback.cc for host memory; the template in backends/ for a device.
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
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "hvd/backend_abi.h"
#include "hvd/backend_detect.hpp"

// Hidden, for a reason beyond tidiness: default-visibility inline variables are unique in the process even across
// RTLD_LOCAL, and one backend would then use another's host table.
#pragma GCC visibility push(hidden)
namespace hvd {

// ------------------------------------------------------------------------------------------------------- failures

// What a method throws to fail with a code of the ABI; any other exception becomes HVD_E_INTERNAL.
struct Error : std::exception {
  Error(hvd_rc code, std::string text, int32_t flags = 0, int64_t vendor_code = 0)
      : code(code), flags(flags), vendor_code(vendor_code), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  hvd_rc code;
  int32_t flags;
  int64_t vendor_code;
  std::string text;
};

namespace detail {

// Where v1.0 of each struct ends. A host older than that does not exist.
template <class T>
inline constexpr size_t kFirstSize = sizeof(hvd_hdr);
template <>
inline constexpr size_t kFirstSize<hvd_host_api> = offsetof(hvd_host_api, notify) + sizeof(void*);
template <>
inline constexpr size_t kFirstSize<hvd_comm_args> = offsetof(hvd_comm_args, notify_token) + sizeof(void*);
template <>
inline constexpr size_t kFirstSize<hvd_coll_args> = offsetof(hvd_coll_args, seq) + sizeof(uint64_t);
template <>
inline constexpr size_t kFirstSize<hvd_copy_item> = offsetof(hvd_copy_item, dst_dtype) + sizeof(int32_t);

inline bool all_zero(const unsigned char* p, size_t n) {
  return std::all_of(p, p + n, [](unsigned char c) { return c == 0; });
}

}  // namespace detail

// A complete copy of a struct the host passed: fields it does not know yet are zero. A field that we do not know yet
// must be zero, or obeying the call would mean to ignore what was asked: UNSUPPORTED.
template <class T>
T complete(const T* given, const char* what) {
  if (given == nullptr || given->hdr.struct_size < detail::kFirstSize<T>) {
    throw Error(HVD_E_ABI, std::string(what) + " is NULL or shorter than ABI 1.0 has it");
  }
  const size_t size = given->hdr.struct_size;
  if (size > sizeof(T) &&
      !detail::all_zero(reinterpret_cast<const unsigned char*>(given) + sizeof(T), size - sizeof(T))) {
    throw Error(HVD_E_UNSUPPORTED, std::string(what) + " uses a field newer than this backend, which is built for " +
                                       "ABI " + std::to_string(HVD_ABI_MAJOR) + "." + std::to_string(HVD_ABI_MINOR));
  }
  T mine;
  std::memset(&mine, 0, sizeof(mine));
  std::memcpy(&mine, given, std::min(size, sizeof(T)));
  return mine;
}

// Element i of an array of structs, whose elements are as long as the first says.
template <class T>
const T* element(const T* first, uint64_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + i * first->hdr.struct_size);
}

// Fills the caller's out-struct as far as the caller knows it; its header stays.
template <class T>
void give(T* out, const T& mine) {
  if (out == nullptr || out->hdr.struct_size <= sizeof(hvd_hdr)) return;
  const size_t size = std::min<size_t>(out->hdr.struct_size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(hvd_hdr), reinterpret_cast<const char*>(&mine) + sizeof(hvd_hdr),
              size - sizeof(hvd_hdr));
}

inline hvd_rc fail(hvd_error* out, hvd_rc code, const char* text, int32_t flags = 0, int64_t vendor_code = 0) noexcept {
  hvd_error mine;
  std::memset(&mine, 0, sizeof(mine));
  mine.code = code;
  mine.flags = flags;
  mine.vendor_code = vendor_code;
  std::strncpy(mine.text, text, sizeof(mine.text) - 1);
  give(out, mine);
  return code;
}

// A vendor's result codes as a table: one row for each code the library documents, 0 being success. Usually in a file
// of its own, <name>_errors.inc. A code without a row is HVD_E_INTERNAL; its number is kept either way.
struct ErrorRow {
  int64_t vendor_code;
  const char* name;
  hvd_rc code;
  int32_t flags;
};
class ErrorTable {
 public:
  // `library` is its name for messages; both outlive the table.
  template <size_t N>
  constexpr ErrorTable(const char* library, const ErrorRow (&rows)[N])
      : library_(library), begin_(rows), end_(rows + N) {}

  // Throws unless `result` is 0. `call` is what was called, `detail` what the library says about it (may be NULL).
  void check(int64_t result, const char* call, const char* detail = nullptr) const {
    if (result == 0) return;
    const ErrorRow* row = std::find_if(begin_, end_, [&](const ErrorRow& r) { return r.vendor_code == result; });
    const bool known = row != end_;
    std::string text = std::string(call) + ": " + library_ + " returned " + (known ? row->name : "an unknown code") +
                       " (" + std::to_string(result) + ")";
    if (detail != nullptr && *detail != '\0') text += std::string(": ") + detail;
    throw Error(known ? row->code : HVD_E_INTERNAL, std::move(text), known ? row->flags : 0, result);
  }

 private:
  const char* library_;
  const ErrorRow *begin_, *end_;
};

// Runs a thunk's body; no exception leaves it.
template <class F>
hvd_rc guarded(hvd_error* out, F&& body) noexcept {
  try {
    return body();
  } catch (const Error& e) {
    return fail(out, e.code > HVD_INPROGRESS ? e.code : HVD_E_INTERNAL, e.text.c_str(), e.flags, e.vendor_code);
  } catch (const std::bad_alloc&) {
    return fail(out, HVD_E_NOMEM, "out of memory");
  } catch (const std::exception& e) {
    return fail(out, HVD_E_INTERNAL, e.what());
  } catch (...) {
    return fail(out, HVD_E_INTERNAL, "the backend threw something that is no std::exception");
  }
}

// ------------------------------------------------------------------------------------------------------- the host

// The table the host gave at entry; set once by HVD_BACKEND, before anything else runs.
inline const hvd_host_api* host = nullptr;

inline void log(int32_t level, const char* file, int32_t line, const std::string& text) {
  host->log(level, file, line, text.c_str());
}

// HOROVOD_BACKEND_<NAME>_<KEY>, or `fallback` where it is not set.
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

// A plugin's own thread says who it is before its first call of the host.
inline void thread_enter(const char* role) { host->thread_enter(role); }

// Sleeps until done() says true (true) or the deadline passes (false); for runtimes that can only be asked. A deadline
// of 0 stands for kDefaultWaitNs.
inline constexpr int64_t kDefaultWaitNs = 60'000'000'000;
template <class Done>
bool poll_until(int64_t deadline_ns, Done&& done) {
  using Clock = std::chrono::steady_clock;
  const auto now = [] { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); };
  if (deadline_ns <= 0) deadline_ns = now() + kDefaultWaitNs;
  for (auto pause = std::chrono::microseconds(10);; pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
    if (done()) return true;
    if (now() >= deadline_ns) return false;
    std::this_thread::sleep_for(pause);
  }
}

// The rendezvous of a communicator that is being created.
class Store {
 public:
  explicit Store(void* handle) : handle_(handle) {}
  void set(const char* key, const std::string& value) {
    check(host->store_set(handle_, key, value.data(), value.size(), prepare()));
  }
  std::string get(const char* key, int64_t deadline_ns = 0) {
    std::string value(256, '\0');
    uint64_t n = value.size();
    hvd_rc rc = host->store_get(handle_, key, value.data(), &n, deadline_ns, prepare());
    if (rc == HVD_E_INVALID && n > value.size()) {
      value.resize(n);
      rc = host->store_get(handle_, key, value.data(), &n, deadline_ns, prepare());
    }
    check(rc);
    value.resize(n);
    return value;
  }
  int64_t add(const char* key, int64_t delta) {
    int64_t now = 0;
    check(host->store_add(handle_, key, delta, &now, prepare()));
    return now;
  }
  void del(const char* key) { check(host->store_del(handle_, key, prepare())); }

 private:
  hvd_error* prepare() {
    std::memset(&error_, 0, sizeof(error_));
    error_.hdr = {sizeof(error_), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    return &error_;
  }
  void check(hvd_rc rc) {
    if (rc == HVD_OK) return;
    error_.text[sizeof(error_.text) - 1] = '\0';
    throw Error(rc, error_.text, error_.flags, error_.vendor_code);
  }
  void* handle_;
  hvd_error error_;
};

// ------------------------------------------------------------------------------------------------- what methods see

// Everything a communicator's constructor may want. All of it is copied, so it may be kept, except the store, which
// is valid during construction (and until created() is true) only.
struct CommInit {
  explicit CommInit(const hvd_comm_args& a)
      : key(a.key),
        id(a.id ? std::string(static_cast<const char*>(a.id), a.id_bytes) : std::string()),
        ranks(a.ranks, a.ranks + a.size),
        hosts(a.hosts, a.hosts + a.size),
        rank(a.rank),
        size(a.size),
        device(a.device),
        deadline_ns(a.deadline_ns),
        notify_token(a.notify_token),
        store(a.store) {}
  // The device of this backend's own device class D that the communicator works on.
  template <class D>
  D& device_as() const {
    if (device == nullptr) throw Error(HVD_E_INVALID, "this communicator is for device memory and got no device");
    return *reinterpret_cast<D*>(device);
  }
  std::string key, id;
  std::vector<int32_t> ranks, hosts;
  int32_t rank, size;
  hvd_device device;
  int64_t deadline_ns;
  void* notify_token;
  mutable Store store;
};

inline constexpr uint32_t kDtypeBytes[HVD_DTYPE_COUNT] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 1, 1, 4, 8};

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
  // The runtime's own stream of an operation on a device of class D.
  template <class D>
  auto stream() const {
    return native_stream<D>(args_.stream);
  }
  double prescale() const { return args_.prescale == 0 ? 1 : args_.prescale; }
  double postscale() const { return args_.postscale == 0 ? 1 : args_.postscale; }

 private:
  const hvd_coll_args& args_;
};

// An operation in flight (REQUEST communicators). Owns whatever must outlive the call that started it.
class Request {
 public:
  virtual ~Request() = default;
  // True when complete; makes progress, never sleeps. Both throw when the operation fails.
  virtual bool test() = 0;
  // Sleeps until complete (true) or until the deadline of this wait (false).
  virtual bool wait(int64_t deadline_ns) = 0;
};

// What a collective method returns: complete already (or enqueued, for STREAM), or a request.
class Work {
 public:
  static Work done() { return Work(nullptr); }
  explicit Work(std::unique_ptr<Request> request) : request_(std::move(request)) {}
  Request* release() { return request_.release(); }

 private:
  std::unique_ptr<Request> request_;
};

struct NoDevice {};
struct NoComm {};  // for a backend with a device table only

// Base of a communicator class T. Looked for in T, all optional but `caps` and T(const CommInit&):
//   static constexpr uint64_t caps                HVD_CAP_*; ABORT and GROUP_SAME are added from what is there
//   static constexpr const char* device_types     for MEM_DEVICE; absent: D's
//   static constexpr uint64_t dtypes, reductions  sets of 1 << HVD_<dtype>, 1 << HVD_<op>; absent: all
//   Work allreduce, reduce, broadcast, allgather, reducescatter, alltoall, send, recv, barrier (const Coll&)
//                               with HVD_CAP_STREAM they may return nothing
//   void abort()                any thread, never blocks
//   bool created()              creation goes on after the constructor; true when finished
//   void finalize(int64_t deadline_ns);   void async_error() (throws what went wrong)
//   void group_begin(), group_end();      T(T& parent, const CommInit&), for split
//   void* mem_register(const hvd_buf&);   void mem_deregister(void*)
//   static uint64_t id_bytes(); static void id_create(void* id)
//   static hvd_coll_caps query(const Coll&)       when the sets above cannot express the answer
//   static void load()          opens the vendor's library; before all else, may throw HVD_E_UNAVAILABLE
//   static constexpr const char *tag, *version;   static const char* vendor_lib()
//   static constexpr hvd_option options[]         made with hvd::make_option
// D: the device class whose memory it works on. It is made current (D::make_current) around every method.
template <class T, class D = NoDevice>
class Comm {
 public:
  using DeviceClass = D;
  explicit Comm(const CommInit& init) : rank_(init.rank), size_(init.size), key_(init.key) {
    // One that works on host memory as well is also made without a device.
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

constexpr hvd_option make_option(const char* name, const char* type, const char* fallback, const char* range,
                                 const char* doc) {
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
