// The table's slots, and the pool of tables. See backend_table.h.
#include "engine/python/backend_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/python/gil.h"

namespace hvd::python {

namespace {

using CommRef = std::shared_ptr<PyComm>;
struct Handle {  // what an hvd_comm points to
  CommRef comm;
};
struct Pending {  // what an hvd_req points to
  CommRef comm;
  std::shared_ptr<PyCall> call;
};
PyComm& comm_of(hvd_comm c) { return *reinterpret_cast<Handle*>(c)->comm; }
Pending& pending_of(hvd_req r) { return *reinterpret_cast<Pending*>(r); }

}  // namespace

int32_t PySpec::place(int32_t coll, int32_t dtype, int32_t op) {
  if (coll == HVD_BARRIER) dtype = 0;
  if (!base::has_reduction(coll)) op = 0;
  if (coll < 0 || coll >= HVD_COLL_COUNT || dtype < 0 || dtype >= HVD_DTYPE_COUNT || op < 0 || op >= HVD_REDOP_COUNT)
    return -1;
  return (coll * HVD_DTYPE_COUNT + dtype) * HVD_REDOP_COUNT + op;
}

bool PySpec::serves(int32_t coll, int32_t dtype, int32_t op) const {
  const int32_t i = place(coll, dtype, op);
  return i >= 0 && served[static_cast<size_t>(i)];
}

void PyTable::log(int32_t level, const std::string& text) const {
  if (host_ != nullptr) host_->log(level, "", 0, text.c_str());
}

void PyTable::push(Task task, CommRef comm) {
  std::lock_guard lock(tasks_->mutex);
  tasks_->queue.emplace_back(task, std::move(comm));
  tasks_->changed.notify_one();
}

std::pair<PyTable::Task, CommRef> PyTable::next_task() {
  Tasks& tasks = *tasks_;
  std::unique_lock lock(tasks.mutex);
  tasks.changed.wait(lock, [&] { return !tasks.queue.empty(); });
  auto task = std::move(tasks.queue.front());
  tasks.queue.pop_front();
  return task;
}

// A thread that the child does not have may have locked the old one, which is left as it is.
void PyTable::reset_after_fork() { tasks_ = new Tasks; }

hvd_rc PyTable::enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
  return guarded(error, [&] {
    if (host == nullptr || host->hdr.struct_size < detail::kFirstSize<hvd_host_api>)
      throw Error(HVD_E_ABI, "the host's table is NULL or shorter than ABI 1.0 has it");
    host_ = host;
    *out = &api_;
    return HVD_OK;
  });
}

hvd_rc PyTable::create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) {
  return guarded(error, [&] {
    *out = nullptr;
    auto comm = std::make_shared<PyComm>(*this, complete(args, "hvd_comm_args"));
    push(Task::kOpen, comm);
    const hvd_rc rc = comm->await_open(error);
    if (rc == HVD_OK) *out = reinterpret_cast<hvd_comm>(new Handle{std::move(comm)});
    return rc;
  });
}

hvd_rc PyTable::query(const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) const {
  return guarded(error, [&] {
    const hvd_coll_args a = complete(args, "hvd_coll_args");
    hvd_coll_caps caps = {};
    if (spec_.serves(a.coll, a.dtype, a.op)) {
      caps.support = HVD_NATIVE;
      caps.score = 1;
      caps.max_count = spec_.max_count;
    }
    give(out, caps);
    return HVD_OK;
  });
}

namespace {

hvd_rc destroy(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    comm_of(c).close();
    delete reinterpret_cast<Handle*>(c);
    return HVD_OK;
  });
}

hvd_rc abort(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    const CommRef comm = reinterpret_cast<Handle*>(c)->comm;
    if (comm->abort()) comm->table().push(PyTable::Task::kAbort, comm);
    return HVD_OK;
  });
}

hvd_rc async_error(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] { return comm_of(c).async_error(error); });
}

hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) noexcept {
  return guarded(error, [&] {
    *out = nullptr;
    const CommRef& comm = reinterpret_cast<Handle*>(c)->comm;
    auto pending = std::make_unique<Pending>(Pending{comm, nullptr});
    pending->call = comm->start(complete(args, "hvd_coll_args"));
    *out = reinterpret_cast<hvd_req>(pending.release());
    return HVD_INPROGRESS;
  });
}

hvd_rc req_test(hvd_req r, hvd_error* error) noexcept {
  return guarded(error, [&] { return pending_of(r).comm->result(*pending_of(r).call, error); });
}

hvd_rc req_wait(hvd_req r, int64_t deadline_ns, hvd_error* error) noexcept {
  return guarded(error, [&] { return pending_of(r).comm->wait(*pending_of(r).call, deadline_ns, error); });
}

hvd_rc req_free(hvd_req r) noexcept {
  delete &pending_of(r);
  return HVD_OK;
}

// ------------------------------------------------------------------------------------------------------ the pool

// Entry, create and query have no argument that names the backend, so that each table has its own functions.
constexpr size_t kPool = 16;

std::array<PyTable*, kPool>& pool() {
  static std::array<PyTable*, kPool> all = {};
  return all;
}

}  // namespace

void PyTable::fill(hvd_backend_entry_fn entry, decltype(hvd_comm_api::create) create_slot,
                   decltype(hvd_comm_api::query) query_slot) {
  entry_address_ = reinterpret_cast<uintptr_t>(entry);
  comm_api_.hdr = {sizeof comm_api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  comm_api_.device_types = "cpu";
  comm_api_.caps = spec_.caps | HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_ABORT;
  comm_api_.create = create_slot;
  comm_api_.destroy = destroy;
  comm_api_.abort = python::abort;
  comm_api_.async_error = python::async_error;
  comm_api_.query = query_slot;
  comm_api_.collective = collective;
  comm_api_.req_test = req_test;
  comm_api_.req_wait = req_wait;
  comm_api_.req_free = req_free;
  tag_ = spec_.name;
  for (char& c : tag_)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  api_.hdr = {sizeof api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  api_.name = spec_.name.c_str();
  api_.tag = tag_.c_str();
  api_.version = spec_.version.c_str();
  api_.vendor_lib = "";
  api_.comm = &comm_api_;
  for (const auto& o : spec_.options) {
    options_.push_back({{sizeof(hvd_option), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
                        o[0].c_str(),
                        o[1].c_str(),
                        o[2].c_str(),
                        o[3].c_str(),
                        o[4].c_str()});
  }
  api_.options = options_.data();
  api_.option_count = options_.size();
}

template <size_t N>
struct PyTable::Thunks {
  static hvd_rc entry(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) noexcept {
    return pool()[N]->enter(host, out, error);
  }
  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
    return pool()[N]->create(args, out, error);
  }
  static hvd_rc query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) noexcept {
    return pool()[N]->query(args, out, error);
  }
};

namespace {

template <size_t... N>
void fill_nth(size_t n, std::index_sequence<N...>, auto&& fill) {
  ((n == N ? fill(std::integral_constant<size_t, N>{}) : void()), ...);
}

}  // namespace

PyTable& PyTable::claim(PySpec spec) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const auto place = std::find(pool().begin(), pool().end(), nullptr);
  if (place == pool().end())
    throw Error(HVD_E_UNSUPPORTED, "a process can register " + std::to_string(kPool) +
                                       " backends in Python, and has done so; register each class once");
  auto* table = *place = new PyTable(std::move(spec));
  fill_nth(static_cast<size_t>(place - pool().begin()), std::make_index_sequence<kPool>(), [&](auto n) {
    using T = Thunks<decltype(n)::value>;
    table->fill(T::entry, T::create, T::query);
  });
  return *table;
}

// One communicator: between the slots, which engine threads call, and Python's thread for it. See backend_table.h.

namespace {

constexpr int64_t kDefaultOpenNs = 60'000'000'000;
// A backend's Python code may check deadlines late, or never.
constexpr int64_t kGraceNs = 2'000'000'000;
constexpr int64_t kCloseNs = 5'000'000'000;

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

Clock::time_point at(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }
int64_t later(int64_t ns, int64_t by) { return ns > HVD_NO_DEADLINE - by ? HVD_NO_DEADLINE : ns + by; }

hvd_rc give_outcome(const PyOutcome& o, hvd_error* error) {
  return o.rc == HVD_OK ? HVD_OK : fail(error, o.rc, o.text.c_str(), o.flags);
}

// Releases the GIL, if this thread holds it, while a slot waits for a Python thread.
class Waiting {
 public:
  Waiting() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~Waiting() {
    if (state_) acquire_gil(state_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace

PyComm::PyComm(PyTable& table, const hvd_comm_args& args) : init(args), table_(table), store_(args.store) {}

hvd_rc PyComm::await_open(hvd_error* error) {
  const int64_t deadline = init.deadline_ns == 0 ? base::now_ns() + kDefaultOpenNs : init.deadline_ns;
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
  if (changed_.wait_until(lock, at(base::now_ns() + kCloseNs), [&] { return gone_; })) return;
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

}  // namespace hvd::python
