// One communicator: between the slots, which engine threads call, and Python's thread for it. See py_backend_table.h.
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/bind/py_backend_table.h"

namespace hvd::bind {

namespace {

constexpr int64_t kDefaultOpenNs = 60'000'000'000;
// A backend's Python code may check deadlines late, or never.
constexpr int64_t kGraceNs = 2'000'000'000;
constexpr int64_t kCloseNs = 5'000'000'000;

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

int64_t now_ns() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
Clock::time_point at(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }
int64_t later(int64_t ns, int64_t by) { return ns > HVD_NO_DEADLINE - by ? HVD_NO_DEADLINE : ns + by; }

hvd_rc give_outcome(const PyOutcome& o, hvd_error* error) {
  return o.rc == HVD_OK ? HVD_OK : fail(error, o.rc, o.text.c_str(), o.flags);
}

void* (*g_release)() = nullptr;
void (*g_restore)(void*) = nullptr;

// Python's lock is released while a slot waits for a Python thread.
class Waiting {
 public:
  Waiting() : state_(g_release ? g_release() : nullptr) {}
  ~Waiting() {
    if (state_) g_restore(state_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void* state_;
};

}  // namespace

void set_lock_release(void* (*release)(), void (*restore)(void*)) {
  g_release = release;
  g_restore = restore;
}

PyComm::PyComm(PyTable& table, const hvd_comm_args& args) : init(args), table_(table), store_(args.store) {}

hvd_rc PyComm::await_open(hvd_error* error) {
  const int64_t deadline = init.deadline_ns == 0 ? now_ns() + kDefaultOpenNs : init.deadline_ns;
  const Waiting waiting;
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, at(later(deadline, kGraceNs)), [&] { return opened_; });
  // The store ends with this call; threads in it return by the deadline.
  store_open_ = false;
  changed_.wait(lock, [&] { return store_users_ == 0; });
  if (opened_) return give_outcome(open_outcome_, error);
  abandoned_ = true;
  return fail(error, HVD_E_TIMEOUT, "the class's create() did not return by the deadline", HVD_EF_COMM_DEAD);
}

bool PyComm::opened(PyOutcome outcome) {
  std::lock_guard lock(mutex_);
  opened_ = true;
  open_outcome_ = std::move(outcome);
  changed_.notify_all();
  return !abandoned_;
}

PyCall PyComm::copy(const hvd_coll_args& a) const {
  PyCall c;
  c.coll = a.coll;
  c.dtype = a.dtype;
  c.op = a.op;
  c.root = a.root;
  c.peer = a.peer;
  const auto take = [&](auto& to, const auto* from, uint64_t n) {
    if (from != nullptr) to.assign(from, from + n);
  };
  const uint64_t per_rank = a.n_bufs * static_cast<uint64_t>(init.size);
  take(c.in, a.in, a.n_bufs);
  take(c.out, a.out, a.n_bufs);
  take(c.counts, a.counts, a.n_bufs);
  take(c.in_counts, a.in_counts, per_rank);
  take(c.out_counts, a.out_counts, per_rank);
  c.prescale = a.prescale == 0 ? 1 : a.prescale;
  c.postscale = a.postscale == 0 ? 1 : a.postscale;
  c.deadline_ns = a.deadline_ns == 0 ? HVD_NO_DEADLINE : a.deadline_ns;
  c.seq = a.seq;
  return c;
}

std::shared_ptr<PyCall> PyComm::start(const hvd_coll_args& a) {
  if (!table_.spec().serves(a.coll, a.dtype, a.op))
    throw Error(HVD_E_UNSUPPORTED, "collective " + std::to_string(a.coll) + " of type " + std::to_string(a.dtype) +
                                       " with reduction " + std::to_string(a.op) + " is not served; query says so too");
  if (a.n_bufs > 1 && !(table_.spec().caps & HVD_CAP_VECTORED))
    throw Error(HVD_E_INVALID, "several buffers for a communicator without HVD_CAP_VECTORED");
  auto call = std::make_shared<PyCall>(copy(a));
  std::lock_guard lock(mutex_);
  if (aborted_) throw Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
  calls_.push_back(call);
  changed_.notify_all();
  return call;
}

hvd_rc PyComm::result(const PyCall& call, hvd_error* error) {
  std::lock_guard lock(mutex_);
  return call.done ? give_outcome(call.outcome, error) : HVD_INPROGRESS;
}

hvd_rc PyComm::wait(const PyCall& call, int64_t deadline_ns, hvd_error* error) {
  const Waiting waiting;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, at(deadline_ns == 0 ? HVD_NO_DEADLINE : deadline_ns), [&] { return call.done; }))
    return HVD_INPROGRESS;
  return give_outcome(call.outcome, error);
}

bool PyComm::abort() {
  std::lock_guard lock(mutex_);
  return !std::exchange(aborted_, true);
}

bool PyComm::aborted() {
  std::lock_guard lock(mutex_);
  return aborted_;
}

hvd_rc PyComm::async_error(hvd_error* error) {
  std::lock_guard lock(mutex_);
  if (aborted_) return fail(error, HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
  return give_outcome(broken_, error);
}

std::shared_ptr<PyCall> PyComm::next_call() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closing_ || abandoned_ || !calls_.empty(); });
  if (closing_ || abandoned_) return nullptr;
  auto call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

void PyComm::finished(PyCall& call, PyOutcome outcome) {
  {
    std::lock_guard lock(mutex_);
    if (outcome.rc != HVD_OK && aborted_) {
      outcome.rc = HVD_E_ABORTED;
      outcome.flags |= HVD_EF_COMM_DEAD;
    }
    if ((outcome.flags & HVD_EF_COMM_DEAD) && broken_.rc == HVD_OK) broken_ = outcome;
    call.outcome = std::move(outcome);
    call.done = true;
    changed_.notify_all();
    if (closing_) return;  // the host does not need to know, and the token may be invalid
  }
  table_.host()->notify(init.notify_token);
}

void PyComm::close() {
  const Waiting waiting;
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  if (changed_.wait_until(lock, at(now_ns() + kCloseNs), [&] { return gone_; })) return;
  lock.unlock();
  table_.log(HVD_LOG_WARN, "its Python code has not returned " + std::to_string(kCloseNs / 1'000'000'000) +
                               " s after destroy; a thread and its objects are left behind. A communicator's "
                               "abort() must make its running method return");
}

void PyComm::gone() {
  std::lock_guard lock(mutex_);
  gone_ = true;
  changed_.notify_all();
}

template <class F>
auto PyComm::with_store(F&& body) {
  struct User {
    explicit User(PyComm& c) : comm(c) {
      std::lock_guard lock(comm.mutex_);
      if (!comm.store_open_)
        throw Error(HVD_E_INVALID, "the store is there while the communicator is created, not later");
      ++comm.store_users_;
    }
    ~User() {
      std::lock_guard lock(comm.mutex_);
      --comm.store_users_;
      comm.changed_.notify_all();
    }
    PyComm& comm;
  };
  const User user(*this);
  return body();
}

namespace {

struct StoreCall {
  StoreCall() { error.hdr = {sizeof error, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr}; }
  void check(hvd_rc rc) const {
    if (rc != HVD_OK) throw Error(rc, std::string("store: ") + error.text, error.flags, error.vendor_code);
  }
  hvd_error error = {};
};

}  // namespace

void PyComm::store_set(const std::string& key, const std::string& value) {
  with_store([&] {
    StoreCall c;
    c.check(table_.host()->store_set(store_, key.c_str(), value.data(), value.size(), &c.error));
  });
}

std::string PyComm::store_get(const std::string& key, int64_t deadline_ns) {
  return with_store([&] {
    if (init.deadline_ns != 0) deadline_ns = std::min(deadline_ns, init.deadline_ns);
    std::string value(4096, '\0');
    StoreCall c;
    uint64_t n = value.size();
    hvd_rc rc = table_.host()->store_get(store_, key.c_str(), value.data(), &n, deadline_ns, &c.error);
    if (rc == HVD_E_INVALID && n > value.size()) {
      value.resize(n);
      rc = table_.host()->store_get(store_, key.c_str(), value.data(), &n, deadline_ns, &c.error);
    }
    c.check(rc);
    value.resize(n);
    return value;
  });
}

int64_t PyComm::store_add(const std::string& key, int64_t delta) {
  return with_store([&] {
    StoreCall c;
    int64_t now = 0;
    c.check(table_.host()->store_add(store_, key.c_str(), delta, &now, &c.error));
    return now;
  });
}

void PyComm::store_del(const std::string& key) {
  with_store([&] {
    StoreCall c;
    c.check(table_.host()->store_del(store_, key.c_str(), &c.error));
  });
}

}  // namespace hvd::bind
