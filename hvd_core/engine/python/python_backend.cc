// A backend written in Python, seen from the engine: a C table whose slots never run Python. With
// hvd_core._core.PythonBackendTable, hvd_core/backends/python_backend.py runs a backend class.
//
// Python's threads take work from here and bring back results: one thread per table opens and aborts (next_task), one
// per communicator runs its collectives (next_call). So a slot does not need the GIL, and a thread of the engine never
// waits for it. The engine's threads call the slots as hvd/backend_abi.h says. Functions for Python's threads are
// called with the GIL; those that sleep release it. If a caller of a slot holds the GIL, it is released while the slot
// waits for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <hvd/backend.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/python/bindings.h"
#include "engine/python/gil.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr int64_t kDefaultOpenNs = 60'000'000'000;
// A backend's Python code may check deadlines late, or never.
constexpr int64_t kGraceNs = 2'000'000'000;
constexpr int64_t kCloseNs = 5'000'000'000;

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

Clock::time_point at(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }
int64_t later(int64_t ns, int64_t by) { return ns > HVD_NO_DEADLINE - by ? HVD_NO_DEADLINE : ns + by; }

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

// The result of a call or a creation. `flags` are HVD_EF_*.
struct PyOutcome {
  hvd_rc rc = HVD_OK;
  int32_t flags = 0;
  std::string text;

  hvd_rc give(hvd_error* error) const { return rc == HVD_OK ? HVD_OK : fail(error, rc, text.c_str(), flags); }
};

// A copy of one collective's arguments, for Python. The communicator's mutex protects `done` and `outcome`.
struct PyCall {
  int32_t coll = 0, dtype = 0, op = 0, root = 0, peer = 0;
  std::vector<hvd_buf> in, out;
  std::vector<uint64_t> counts, in_counts, out_counts;
  double prescale = 1, postscale = 1;  // never 0
  int64_t deadline_ns = 0;
  uint64_t seq = 0;
  bool done = false;
  PyOutcome outcome;

  PyCall(const hvd_coll_args& a, int32_t ranks)
      : coll(a.coll), dtype(a.dtype), op(a.op), root(a.root), peer(a.peer), seq(a.seq) {
    const auto take = [](auto& to, const auto* from, uint64_t n) {
      if (from != nullptr) to.assign(from, from + n);
    };
    const uint64_t per_rank = a.n_bufs * static_cast<uint64_t>(ranks);
    take(in, a.in, a.n_bufs);
    take(out, a.out, a.n_bufs);
    take(counts, a.counts, a.n_bufs);
    take(in_counts, a.in_counts, per_rank);
    take(out_counts, a.out_counts, per_rank);
    if (a.prescale != 0) prescale = a.prescale;
    if (a.postscale != 0) postscale = a.postscale;
    deadline_ns = a.deadline_ns == 0 ? HVD_NO_DEADLINE : a.deadline_ns;
  }
};

// The class's own description, the same on all ranks.
struct PySpec {
  std::string name, version;
  uint64_t caps = 0;
  uint64_t max_count = 0;                           // 0: no limit
  std::vector<std::array<std::string, 5>> options;  // name, type, fallback, range, doc
  std::array<std::array<std::array<bool, HVD_REDOP_COUNT>, HVD_DTYPE_COUNT>, HVD_COLL_COUNT> served = {};

  // Asks the class. A movement has no reduction and a barrier no type: one question is enough.
  void ask(const py::function& serves) {
    for (int32_t coll = 0; coll < HVD_COLL_COUNT; ++coll)
      for (int32_t dtype = 0; dtype < (coll == HVD_BARRIER ? 1 : HVD_DTYPE_COUNT); ++dtype)
        for (int32_t op = 0; op < (base::has_reduction(coll) ? HVD_REDOP_COUNT : 1); ++op)
          served[coll][dtype][op] = py::cast<bool>(serves(coll, dtype, op));
  }
  bool serves(int32_t coll, int32_t dtype, int32_t op) const {
    if (coll == HVD_BARRIER) dtype = 0;
    if (!base::has_reduction(coll)) op = 0;
    const auto is_below = [](int32_t code, int32_t count) { return code >= 0 && code < count; };
    return is_below(coll, HVD_COLL_COUNT) && is_below(dtype, HVD_DTYPE_COUNT) && is_below(op, HVD_REDOP_COUNT) &&
           served[coll][dtype][op];
  }
};

class PyComm;
using CommRef = std::shared_ptr<PyComm>;

class PyTable {
 public:
  enum class Task { kOpen, kAbort };

  // Takes one of the pool's tables, permanently: a loaded backend stays loaded. Throws hvd::Error if all are taken.
  static PyTable& claim(PySpec spec);

  uint64_t entry_address() const { return entry_address_; }
  const PySpec& spec() const { return spec_; }
  const hvd_host_api* host() const { return host_; }
  void log(int32_t level, const std::string& text) const {
    if (host_ != nullptr) host_->log(level, "", 0, text.c_str());
  }

  void push(Task task, CommRef comm) {
    std::lock_guard lock(tasks_->mutex);
    tasks_->queue.emplace_back(task, std::move(comm));
    tasks_->changed.notify_one();
  }
  // For Python, without the GIL.
  std::pair<Task, CommRef> next_task() {
    Tasks& tasks = *tasks_;
    std::unique_lock lock(tasks.mutex);
    tasks.changed.wait(lock, [&] { return !tasks.queue.empty(); });
    auto task = std::move(tasks.queue.front());
    tasks.queue.pop_front();
    return task;
  }
  // In a forked child, where the thread that waited for tasks does not exist, before a new one is started. That thread
  // may have locked the old tasks, which are left as they are.
  void reset_after_fork() { tasks_ = new Tasks; }

  // ---- slots that have no argument by which a function could find its table
  hvd_rc enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error);
  hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error);
  hvd_rc query(const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) const;

 private:
  struct Tasks {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Task, CommRef>> queue;
  };

  PyTable(PySpec spec, size_t number);

  const PySpec spec_;
  std::string tag_;
  uint64_t entry_address_ = 0;
  const hvd_host_api* host_ = nullptr;
  hvd_comm_api comm_api_ = {};
  std::vector<hvd_option> options_;
  hvd_backend_api api_ = {};
  Tasks* tasks_ = new Tasks;
};

// One communicator: between the slots, which engine threads call, and Python's thread for it.
class PyComm {
 public:
  PyComm(PyTable& table, const hvd_comm_args& args) : init(args), table_(table), store_(args.store) {}

  const CommInit init;
  PyTable& table() const { return table_; }

  // ---- slots
  hvd_rc await_open(hvd_error* error) {
    const int64_t deadline = init.deadline_ns == 0 ? base::now_ns() + kDefaultOpenNs : init.deadline_ns;
    const Waiting waiting;
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, at(later(deadline, kGraceNs)), [&] { return opened_; });
    // The store ends with this call; threads in it return by the deadline.
    store_open_ = false;
    changed_.wait(lock, [&] { return store_users_ == 0; });
    if (opened_) return open_outcome_.give(error);
    abandoned_ = true;
    return fail(error, HVD_E_TIMEOUT, "the class's create() did not return by the deadline", HVD_EF_COMM_DEAD);
  }

  std::shared_ptr<PyCall> start(const hvd_coll_args& a) {
    if (!table_.spec().serves(a.coll, a.dtype, a.op))
      throw Error(HVD_E_UNSUPPORTED, "collective " + std::to_string(a.coll) + " of type " + std::to_string(a.dtype) +
                                         " with reduction " + std::to_string(a.op) +
                                         " is not served; query says so too");
    if (a.n_bufs > 1 && !(table_.spec().caps & HVD_CAP_VECTORED))
      throw Error(HVD_E_INVALID, "several buffers for a communicator without HVD_CAP_VECTORED");
    auto call = std::make_shared<PyCall>(a, init.size);
    std::lock_guard lock(mutex_);
    if (aborted_) throw Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
    calls_.push_back(call);
    changed_.notify_all();
    return call;
  }

  hvd_rc result(const PyCall& call, hvd_error* error) {
    std::lock_guard lock(mutex_);
    return call.done ? call.outcome.give(error) : HVD_INPROGRESS;
  }

  hvd_rc wait(const PyCall& call, int64_t deadline_ns, hvd_error* error) {
    const Waiting waiting;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, at(deadline_ns == 0 ? HVD_NO_DEADLINE : deadline_ns), [&] { return call.done; }))
      return HVD_INPROGRESS;
    return call.outcome.give(error);
  }

  // Returns true the first time.
  bool abort() {
    std::lock_guard lock(mutex_);
    return !std::exchange(aborted_, true);
  }

  hvd_rc async_error(hvd_error* error) {
    std::lock_guard lock(mutex_);
    if (aborted_) return fail(error, HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
    return broken_.give(error);
  }

  // Returns when Python has released the communicator, or after some seconds.
  void close() {
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

  // ---- Python
  // Ends the creation. Returns false if no slot waits for it any more.
  bool opened(PyOutcome outcome) {
    std::lock_guard lock(mutex_);
    opened_ = true;
    open_outcome_ = std::move(outcome);
    changed_.notify_all();
    return !abandoned_;
  }

  // Without the GIL. Null: the communicator is to be destroyed.
  std::shared_ptr<PyCall> next_call() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || abandoned_ || !calls_.empty(); });
    if (closing_ || abandoned_) return nullptr;
    auto call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }

  void finished(PyCall& call, PyOutcome outcome) {
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

  void gone() {
    std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

  bool aborted() {
    std::lock_guard lock(mutex_);
    return aborted_;
  }

  // `call(host, store, error)` uses the job's store, without the GIL. Only while the communicator is being created;
  // throws hvd::Error.
  template <class F>
  void with_store(F&& call) {
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
    const ReleaseGil released;
    const User user(*this);
    hvd_error error = {};
    error.hdr = {sizeof error, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    const hvd_rc rc = call(*table_.host(), store_, &error);
    if (rc != HVD_OK) throw Error(rc, std::string("store: ") + error.text, error.flags, error.vendor_code);
  }

 private:
  PyTable& table_;
  void* const store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool opened_ = false, abandoned_ = false, closing_ = false, gone_ = false, aborted_ = false;
  PyOutcome open_outcome_;
  PyOutcome broken_;  // the first failure that made the communicator unusable
  std::deque<std::shared_ptr<PyCall>> calls_;
  bool store_open_ = true;
  int store_users_ = 0;
};

// ----------------------------------------------------------------------------------------------------------- the slots

struct Handle {  // what an hvd_comm points to
  CommRef comm;
};
struct Pending {  // what an hvd_req points to
  CommRef comm;
  std::shared_ptr<PyCall> call;
};
const CommRef& comm_of(hvd_comm c) { return reinterpret_cast<Handle*>(c)->comm; }
Pending& pending_of(hvd_req r) { return *reinterpret_cast<Pending*>(r); }

hvd_rc destroy(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    comm_of(c)->close();
    delete reinterpret_cast<Handle*>(c);
    return HVD_OK;
  });
}

hvd_rc abort(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    const CommRef comm = comm_of(c);
    if (comm->abort()) comm->table().push(PyTable::Task::kAbort, comm);
    return HVD_OK;
  });
}

hvd_rc async_error(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] { return comm_of(c)->async_error(error); });
}

hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) noexcept {
  return guarded(error, [&] {
    *out = nullptr;
    const CommRef& comm = comm_of(c);
    auto pending = std::make_unique<Pending>(Pending{comm, comm->start(complete(args, "hvd_coll_args"))});
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

// Entry, create and query have no argument that names the backend, so each table has functions of its own.
constexpr size_t kPool = 16;
std::array<PyTable*, kPool> g_pool = {};

struct Slots {
  hvd_backend_entry_fn entry;
  decltype(hvd_comm_api::create) create;
  decltype(hvd_comm_api::query) query;
};

template <size_t N>
constexpr Slots slots_of_table() {
  return {[](const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) noexcept {
            return g_pool[N]->enter(host, out, error);
          },
          [](const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
            return g_pool[N]->create(args, out, error);
          },
          [](hvd_comm, const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) noexcept {
            return g_pool[N]->query(args, out, error);
          }};
}

template <size_t... N>
constexpr std::array<Slots, kPool> slots_of_tables(std::index_sequence<N...>) {
  return {slots_of_table<N>()...};
}

PyTable::PyTable(PySpec spec, size_t number) : spec_(std::move(spec)) {
  static constexpr auto kSlots = slots_of_tables(std::make_index_sequence<kPool>());
  entry_address_ = reinterpret_cast<uintptr_t>(kSlots[number].entry);
  comm_api_.hdr = {sizeof comm_api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  comm_api_.device_types = "cpu";
  comm_api_.caps = spec_.caps | HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_ABORT;
  comm_api_.create = kSlots[number].create;
  comm_api_.destroy = destroy;
  comm_api_.abort = python::abort;
  comm_api_.async_error = async_error;
  comm_api_.query = kSlots[number].query;
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
  for (const auto& [name, type, fallback, range, doc] : spec_.options)
    options_.push_back({{sizeof(hvd_option), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
                        name.c_str(),
                        type.c_str(),
                        fallback.c_str(),
                        range.c_str(),
                        doc.c_str()});
  api_.options = options_.data();
  api_.option_count = options_.size();
}

PyTable& PyTable::claim(PySpec spec) {
  const auto free = std::find(g_pool.begin(), g_pool.end(), nullptr);  // with the GIL
  if (free == g_pool.end())
    throw Error(HVD_E_UNSUPPORTED, "a process can register " + std::to_string(kPool) +
                                       " backends in Python, and has done so; register each class once");
  return *(*free = new PyTable(std::move(spec), static_cast<size_t>(free - g_pool.begin())));
}

// ----------------------------------------------------------------------------------------------------- Python's
// functions

// The memory of each buffer as writable bytes, valid until the call is finished.
py::list views(const std::vector<hvd_buf>& bufs) {
  py::list all;
  for (const hvd_buf& b : bufs) {
    static char nothing;
    const bool empty = b.base == nullptr || b.bytes == 0;
    all.append(py::memoryview::from_memory(empty ? &nothing : static_cast<char*>(b.base) + b.offset,
                                           empty ? 0 : static_cast<py::ssize_t>(b.bytes)));
  }
  return all;
}

void store_set(PyComm& c, const std::string& key, const std::string& value) {
  c.with_store([&](const hvd_host_api& host, void* store, hvd_error* error) {
    return host.store_set(store, key.c_str(), value.data(), value.size(), error);
  });
}

std::string store_get(PyComm& c, const std::string& key, int64_t deadline_ns) {
  if (c.init.deadline_ns != 0) deadline_ns = std::min(deadline_ns, c.init.deadline_ns);
  std::string value(4096, '\0');
  uint64_t n = value.size();
  c.with_store([&](const hvd_host_api& host, void* store, hvd_error* error) {
    const hvd_rc rc = host.store_get(store, key.c_str(), value.data(), &n, deadline_ns, error);
    if (rc != HVD_E_INVALID || n <= value.size()) return rc;
    value.resize(n);
    return host.store_get(store, key.c_str(), value.data(), &n, deadline_ns, error);
  });
  value.resize(n);
  return value;
}

int64_t store_add(PyComm& c, const std::string& key, int64_t delta) {
  int64_t now = 0;
  c.with_store([&](const hvd_host_api& host, void* store, hvd_error* error) {
    return host.store_add(store, key.c_str(), delta, &now, error);
  });
  return now;
}

void store_del(PyComm& c, const std::string& key) {
  c.with_store([&](const hvd_host_api& host, void* store, hvd_error* error) {
    return host.store_del(store, key.c_str(), error);
  });
}

// Python gets a name, as in ("open", comm), rather than a code.
py::tuple next_task(PyTable& table) {
  std::pair<PyTable::Task, CommRef> task;
  {
    const ReleaseGil released;
    task = table.next_task();
  }
  return py::make_tuple(task.first == PyTable::Task::kOpen ? "open" : "abort", std::move(task.second));
}

// hvd::Error as BackendCallError.
void raise_call_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& e) {
    try {
      const auto type = py::module_::import("hvd_core.backends.errors").attr("BackendCallError");
      PyErr_SetObject(type.ptr(), type(e.code, e.text).ptr());
    } catch (py::error_already_set& failed) {
      failed.restore();
    }
  }
}

}  // namespace

void bind_python_backend(py::module_& m) {
  py::register_local_exception_translator(raise_call_error);

  py::class_<PyCall, std::shared_ptr<PyCall>>(m, "PythonBackendCall", "One collective for a backend in Python.")
      .def_readonly("coll", &PyCall::coll)
      .def_readonly("dtype", &PyCall::dtype)
      .def_readonly("op", &PyCall::op)
      .def_readonly("root", &PyCall::root)
      .def_readonly("peer", &PyCall::peer)
      .def_readonly("counts", &PyCall::counts)
      .def_readonly("in_counts", &PyCall::in_counts)
      .def_readonly("out_counts", &PyCall::out_counts)
      .def_readonly("prescale", &PyCall::prescale)
      .def_readonly("postscale", &PyCall::postscale)
      .def_readonly("deadline_ns", &PyCall::deadline_ns)
      .def_readonly("seq", &PyCall::seq)
      .def_property_readonly("inputs", [](const PyCall& c) { return views(c.in); })
      .def_property_readonly("outputs", [](const PyCall& c) { return views(c.out); });

  py::class_<PyComm, CommRef>(m, "PythonBackendComm", "One communicator of a backend in Python.")
      .def_property_readonly("key", [](const PyComm& c) { return c.init.key; })
      .def_property_readonly("ranks", [](const PyComm& c) { return c.init.ranks; })
      .def_property_readonly("hosts", [](const PyComm& c) { return c.init.hosts; })
      .def_property_readonly("rank", [](const PyComm& c) { return c.init.rank; })
      .def_property_readonly("size", [](const PyComm& c) { return c.init.size; })
      .def_property_readonly("deadline_ns", [](const PyComm& c) { return c.init.deadline_ns; })
      .def_property_readonly("number", [](const PyComm& c) { return reinterpret_cast<uintptr_t>(&c); })
      .def_property_readonly("aborted", &PyComm::aborted)
      .def("opened",
           [](PyComm& c, hvd_rc rc, int32_t flags, std::string text) { return c.opened({rc, flags, std::move(text)}); })
      .def("enter_thread", [](const PyComm& c) { c.table().host()->thread_enter("python"); })
      .def("next_call", &PyComm::next_call, py::call_guard<ReleaseGil>())
      .def("finished", [](PyComm& c, PyCall& call, hvd_rc rc, int32_t flags,
                          std::string text) { c.finished(call, {rc, flags, std::move(text)}); })
      .def("gone", &PyComm::gone)
      .def("store_set", [](PyComm& c, const std::string& key, const py::bytes& value) { store_set(c, key, value); })
      .def("store_get", [](PyComm& c, const std::string& key,
                           int64_t deadline_ns) { return py::bytes(store_get(c, key, deadline_ns)); })
      .def("store_add", &store_add)
      .def("store_del", &store_del);

  py::class_<PyTable, std::unique_ptr<PyTable, py::nodelete>>(m, "PythonBackendTable",
                                                              "The C table of a backend written in Python.")
      .def(py::init([](std::string name, std::string version, uint64_t caps, uint64_t max_count,
                       const py::function& serves, std::vector<std::array<std::string, 5>> options) {
             PySpec spec{std::move(name), std::move(version), caps, max_count, std::move(options)};
             spec.ask(serves);
             return &PyTable::claim(std::move(spec));
           }),
           py::arg("name"), py::arg("version"), py::arg("caps"), py::arg("max_count"), py::arg("serves"),
           py::arg("options") = std::vector<std::array<std::string, 5>>{})
      .def_property_readonly("entry_address", &PyTable::entry_address)
      .def("next_task", &next_task)
      .def("reset_after_fork", &PyTable::reset_after_fork)
      .def("log", &PyTable::log, py::arg("level"), py::arg("text"));
}

}  // namespace hvd::python
