// The engine as Python sees it: operations that take tensors and give integer handles, and the table of handles.
//
// Methods are called with Python's lock. Methods that wait release it, and check for signals every 100 ms. An exception
// of a signal handler (Ctrl-C, a watchdog's) ends the wait and not the operation, whose tensors are kept until its end.
#pragma once

#include <pybind11/pybind11.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/base/process.h"
#include "engine/core/engine.h"
#include "engine/frontend/frontend.h"
#include "engine/frontend/submit.h"
#include "engine/python/arguments.h"
#include "engine/python/notifier.h"
#include "engine/python/tensor_types.h"
#include "engine/python/tensor_view.h"

namespace hvd::python {

// While it lives, a forked child hears that this engine is its parent's.
class ForkedWith {
 public:
  explicit ForkedWith(Engine& engine);
  ~ForkedWith();
  ForkedWith(const ForkedWith&) = delete;
  ForkedWith& operator=(const ForkedWith&) = delete;

 private:
  Engine& engine_;
};

class PyEngine {
 public:
  explicit PyEngine(const pybind11::dict& config);
  ~PyEngine();

  // Each returns a handle. With `wait` it waits for the result and returns 0.
  uint64_t allreduce(pybind11::handle inputs, pybind11::handle outputs, pybind11::handle name,
                     pybind11::handle reduce_op, pybind11::handle prescale, pybind11::handle postscale,
                     pybind11::handle process_set, bool wait);
  // An allreduce of one tensor in host memory, of a registered type, with a name that lacks "allreduce.". No value if
  // an argument is of another kind: then the caller has to check and convert the arguments, and nothing was submitted.
  std::optional<uint64_t> reduce_plain(pybind11::handle tensor, pybind11::handle output, pybind11::handle name,
                                       pybind11::handle reduce_op, pybind11::handle prescale,
                                       pybind11::handle postscale, pybind11::handle process_set, bool wait);
  // An allreduce in place of each tensor, under its name. Appends to `handles` for each the handle, or the exception
  // that it would raise, or None: a tensor of a registered type that reduce_plain() would not take. (They are not
  // returned: Ctrl-C during the call would cost the caller all of them.)
  void allreduce_each(const pybind11::list& tensors, const pybind11::list& names, pybind11::handle reduce_op,
                      pybind11::handle prescale, pybind11::handle postscale, pybind11::handle process_set,
                      pybind11::list handles);
  void release_each(const std::vector<uint64_t>& handles);
  uint64_t allgather(pybind11::handle inputs, pybind11::handle name, pybind11::handle process_set);
  uint64_t broadcast(pybind11::handle inputs, pybind11::handle outputs, pybind11::handle root, pybind11::handle name,
                     pybind11::handle process_set, bool wait);
  // `splits`: rows for each rank, one list per tensor; empty: equal shares.
  uint64_t alltoall(pybind11::handle inputs, pybind11::handle row_splits, pybind11::handle name,
                    pybind11::handle process_set);
  uint64_t reducescatter(pybind11::handle inputs, pybind11::handle outputs, pybind11::handle name,
                         pybind11::handle reduce_op, pybind11::handle prescale, pybind11::handle postscale,
                         pybind11::handle process_set);
  // The number of rows that this rank gets from a reducescatter of `rows` rows.
  int64_t scattered_rows(int64_t rows, int process_set);
  uint64_t add_process_set(std::vector<int32_t> ranks, const std::optional<pybind11::dict>& backends,
                           std::string chosen);
  uint64_t remove_process_set(int process_set);
  int process_set_of(uint64_t handle);
  std::map<int32_t, std::vector<int32_t>> process_sets();
  std::vector<int64_t> received_splits(uint64_t handle, size_t index);
  uint64_t barrier(pybind11::handle process_set, bool wait);
  // Its output is memory that the ranks of the set share, where they can; no_window() says why it is not.
  uint64_t create_window(std::vector<int64_t> shape, int dtype, pybind11::handle process_set);
  std::string no_window(uint64_t handle);
  uint64_t join();
  // Each weight: its name, the number of its elements, a digest of its values.
  void announce_weights(const std::string& name,
                        const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& weights,
                        const std::string& remedy, int process_set);
  bool checks_consistency() const { return engine_->config().check_consistency; }
  void poison(const std::optional<std::string>& name, const std::string& text, int process_set,
              const std::string& operation);

  // engine.cc: for front ends whose groups of ranks have calls in one order, each under its number.
  // A handle; or 0 if `wait_s` is not negative and the operation is done within that time. `operation` may be "reduce"
  // and "recv" too, `number` is the reduce op or the root, and `root` the root of a reduce. `row_splits` and
  // `received`: for each tensor of an alltoall one number for each rank, behind each other.
  uint64_t ordered(const std::string& operation, const std::string& name, int process_set, pybind11::handle inputs,
                   pybind11::handle outputs, int number, double prescale, const std::vector<int64_t>& row_splits,
                   std::vector<int64_t> received, int64_t unit, double wait_s, int root);
  // A message to (`sends`) or from another rank: `tensor` is sent as it is then, or overwritten.
  uint64_t message(pybind11::handle tensor, bool sends, pybind11::handle other, pybind11::handle name,
                   pybind11::handle process_set);
  // Such a call has failed before it came here.
  void refuse_message(const std::string& text, bool sends, int other, const std::optional<std::string>& name,
                      int process_set);
  uint64_t wait_at_once(frontend::Call&& call, Owners owners, int64_t deadline_ns);
  uint64_t add_members_set(std::vector<int32_t> ranks, const std::string& label);
  uint64_t remove_members_set(int process_set);
  // Waits for at most so many seconds; false if the operation is not done by then.
  bool wait_for(uint64_t handle, double seconds);
  // `callback` is called without arguments, on the completion thread, when an operation of ordered() is done. False if
  // it is done already: then `callback` is not called.
  bool notify(uint64_t handle, pybind11::object callback);

  // See Engine::switch_timeline. Waits until this rank has come to that point of the log, and until a timeline that has
  // ended is complete on the disk.
  void switch_timeline(const std::string& path, bool mark_cycles, bool all_ranks);
  bool poll(uint64_t handle);
  void wait(uint64_t handle);
  void wait_many(const std::vector<uint64_t>& handles);
  // For operations on copies of a device's tensors (TensorRef::staged_from): the copies are made, or cannot be made.
  void begin(uint64_t handle);
  void give_up(uint64_t handle, const std::string& text);
  bool known(uint64_t handle);
  void release(uint64_t handle);
  // wait() and release(), and removes the handle from a dict of the front end. An exception of a signal's handler
  // leaves everything as it was.
  void finish(pybind11::handle handle, pybind11::handle kept);
  // A result that the engine allocated in host memory. It can be taken once.
  pybind11::capsule output(uint64_t handle, size_t index);
  pybind11::object output_array(uint64_t handle, size_t index);
  size_t output_count(uint64_t handle);
  int last_joined(uint64_t handle);

  void shutdown(const std::string& text, double timeout_s);
  void abort(const std::string& cause);
  void close();
  bool stopped() const { return engine_->stopped(); }
  bool aborted() const { return engine_->aborted(); }
  std::optional<std::vector<int32_t>> stalled_ranks() const { return engine_->stalled_ranks(); }
  pybind11::list backend_info() const;
  // plugins::Backend::fact(); None for a backend that this job does not use.
  std::optional<std::string> backend_fact(const std::string& backend, const std::string& key) const;

  // engine.cc
  std::vector<std::string> device_types() const { return engine_->device_types(); }
  bool serves(const std::string& device_type) const { return engine_->serves(device_type); }
  std::string why_not_served(const std::string& device_type) const { return engine_->why_not_served(device_type); }
  void order_after(uint64_t handle, std::optional<uint64_t> stream);
  pybind11::tuple output_info(uint64_t handle, size_t index);
  void copy_output(uint64_t handle, size_t index, pybind11::handle tensor);

 private:
  struct Kept {
    calls::RequestRef request;
    Owners owners;
    bool seen_done = false;  // poll() has told the caller
    std::shared_ptr<Notifier> notifier = nullptr;
  };
  uint64_t submit(frontend::Call&& call, Owners owners, std::shared_ptr<Notifier> notifier = nullptr);
  void between(frontend::Call& call, int32_t other, bool sends) const;
  frontend::Call reduction(pybind11::handle inputs, pybind11::handle outputs, pybind11::handle name,
                           pybind11::handle reduce_op, pybind11::handle prescale, pybind11::handle postscale,
                           pybind11::handle process_set);
  // No value: see reduce_plain(). `prefix` goes before the name.
  std::optional<frontend::Call> plain_reduction(pybind11::handle tensor, pybind11::handle output, pybind11::handle name,
                                                pybind11::handle reduce_op, pybind11::handle prescale,
                                                pybind11::handle postscale, pybind11::handle process_set,
                                                const char* prefix);
  void start_up();
  template <typename F>
  void checked(frontend::Call& call, pybind11::handle name, pybind11::handle process_set, F&& take,
               const char* prefix = "");
  void await(calls::Request& request);
  bool await_until(calls::Request& request, int64_t deadline_ns);
  // engine.cc
  void order(calls::Request& request, std::optional<uint64_t> stream);
  void await_end(calls::Request& request);
  pybind11::list served(const std::string& type) const;
  calls::RequestRef find(uint64_t handle);
  calls::Output take_output(uint64_t handle, size_t index);
  uint64_t keep(calls::RequestRef request, Owners owners = {}, std::shared_ptr<Notifier> notifier = nullptr);
  // A caller goes without waiting for the end: the tensors are kept until then.
  void abandon(Kept kept) noexcept;
  void sweep_abandoned() noexcept;
  void warn_if_exchanged(uint64_t handle);

  // The launcher's process, if it is known: without it the job ends.
  void watch_launcher(const pybind11::dict& config);

  std::shared_ptr<Engine> engine_;
  std::optional<ForkedWith> forked_with_;
  std::unique_ptr<base::ProcessWatch> launcher_;
  std::shared_ptr<frontend::Frontend> frontend_;
  std::mutex handles_mutex_;
  std::unordered_map<uint64_t, Kept> handles_;
  std::list<Kept> abandoned_;  // a list, because its elements move to another list without memory
};

void bind_engine(pybind11::module_& m);
void bind_groups(pybind11::class_<PyEngine>& engine);
void bind_allreduce(pybind11::class_<PyEngine>& engine);  // allreduce.cc

// Takes the arguments that identify the call, then runs `take`, which converts the others. A refused argument is
// reported to the other ranks, so that their calls fail and do not wait.
template <typename F>
void PyEngine::checked(frontend::Call& call, pybind11::handle name, pybind11::handle process_set, F&& take,
                       const char* prefix) {
  try {
    call.process_set = argument<int>(process_set, "process_set", "the number of a process set");
    call.name = name_argument(name, prefix);
    take();
  } catch (const std::exception& e) {
    frontend::refuse(*engine_, call, e.what());
    throw;
  }
}

}  // namespace hvd::python
