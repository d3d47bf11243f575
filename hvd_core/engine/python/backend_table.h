// A backend written in Python, seen from the engine: a C table whose slots never touch Python.
//
// Python's threads take work from here and bring back results: one thread per table opens and aborts (next_task), one
// per communicator runs its collectives (next_call). So a slot does not need the GIL, and a thread of the engine
// never waits for it. The engine's threads call the slots as hvd/backend_abi.h says. Functions for Python's threads are
// marked; they sleep only in the two functions above and in store calls, which are called without the GIL. If a caller
// of a slot holds the GIL, it is released while the slot waits for Python.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <hvd/backend.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hvd::python {

// The result of a call or a creation. `flags` are HVD_EF_*.
struct PyOutcome {
  hvd_rc rc = HVD_OK;
  int32_t flags = 0;
  std::string text;
};

// A copy of one collective's arguments, for Python. The communicator's mutex protects `done` and the members after it.
struct PyCall {
  int32_t coll = 0, dtype = 0, op = 0, root = 0, peer = 0;
  std::vector<hvd_buf> in, out;
  std::vector<uint64_t> counts, in_counts, out_counts;
  double prescale = 1, postscale = 1;  // never 0
  int64_t deadline_ns = 0;
  uint64_t seq = 0;
  bool done = false;
  PyOutcome outcome;
};

// The class's own description, the same on all ranks.
struct PySpec {
  std::string name, version;
  uint64_t caps = 0;
  uint64_t max_count = 0;                           // 0: no limit
  std::vector<std::array<std::string, 5>> options;  // name, type, fallback, range, doc
  std::array<bool, size_t{HVD_COLL_COUNT} * size_t{HVD_DTYPE_COUNT} * size_t{HVD_REDOP_COUNT}> served =
      {};  // see place()

  // The index in `served`. A movement uses reduction 0, a barrier type 0 as well. -1 for codes that do not exist.
  static int32_t place(int32_t coll, int32_t dtype, int32_t op);
  bool serves(int32_t coll, int32_t dtype, int32_t op) const;
};

class PyTable;

class PyComm {
 public:
  PyComm(PyTable& table, const hvd_comm_args& args);

  // ---- slots
  hvd_rc await_open(hvd_error* error);
  std::shared_ptr<PyCall> start(const hvd_coll_args& args);
  hvd_rc result(const PyCall& call, hvd_error* error);
  hvd_rc wait(const PyCall& call, int64_t deadline_ns, hvd_error* error);
  bool abort();  // returns true the first time
  hvd_rc async_error(hvd_error* error);
  void close();  // returns when Python has released the communicator, or after some seconds

  // ---- Python
  // Ends the creation. Returns false if no slot waits for it any more.
  bool opened(PyOutcome outcome);
  std::shared_ptr<PyCall> next_call();  // null: the communicator is to be destroyed
  void finished(PyCall& call, PyOutcome outcome);
  void gone();
  bool aborted();
  // Only while the communicator is being created; throw hvd::Error.
  void store_set(const std::string& key, const std::string& value);
  std::string store_get(const std::string& key, int64_t deadline_ns);
  int64_t store_add(const std::string& key, int64_t delta);
  void store_del(const std::string& key);

  const CommInit init;
  PyTable& table() const { return table_; }

 private:
  template <class F>
  auto with_store(F&& body);
  PyCall copy(const hvd_coll_args& args) const;

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

class PyTable {
 public:
  enum class Task { kOpen, kAbort };

  // Takes one of the pool's tables, permanently. Throws hvd::Error if all are taken.
  static PyTable& claim(PySpec spec);

  uint64_t entry_address() const { return entry_address_; }
  const PySpec& spec() const { return spec_; }
  const hvd_host_api* host() const { return host_; }
  void log(int32_t level, const std::string& text) const;

  void push(Task task, std::shared_ptr<PyComm> comm);
  std::pair<Task, std::shared_ptr<PyComm>> next_task();  // Python
  // In a forked child, where the thread that waited for tasks does not exist, before a new one is started.
  void reset_after_fork();

  template <size_t N>
  struct Thunks;

 private:
  explicit PyTable(PySpec spec) : spec_(std::move(spec)) {}
  void fill(hvd_backend_entry_fn entry, decltype(hvd_comm_api::create) create, decltype(hvd_comm_api::query) query);
  hvd_rc enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error);
  hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error);
  hvd_rc query(const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) const;

  // Tasks and their lock can be made anew after a fork.
  struct Tasks {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Task, std::shared_ptr<PyComm>>> queue;
  };

  const PySpec spec_;
  std::string tag_;
  uint64_t entry_address_ = 0;
  const hvd_host_api* host_ = nullptr;
  hvd_comm_api comm_api_ = {};
  std::vector<hvd_option> options_;
  hvd_backend_api api_ = {};
  Tasks* tasks_ = new Tasks;
};

}  // namespace hvd::python
