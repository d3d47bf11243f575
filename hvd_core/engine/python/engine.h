// The engine as Python sees it: operations that take tensors and give integer handles, and the table of handles.
//
// Methods are called with the GIL, which protects the table. Methods that wait release it, and check for signals every
// 100 ms. An exception of a signal handler (Ctrl-C, a watchdog's) ends the wait and not the operation, whose tensors
// are kept until its end.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/process.h"
#include "engine/core/engine.h"
#include "engine/frontend/frontend.h"
#include "engine/python/gil.h"
#include "engine/python/process_hooks.h"
#include "engine/python/tensors.h"

namespace hvd::python {

class Notifier;

class PyEngine {
 public:
  explicit PyEngine(const pybind11::dict& config);
  ~PyEngine();

  Engine& engine() const { return *engine_; }
  void shutdown(const std::string& text, double timeout_s);
  void close();

  // Submits a call, from the current line of the program unless the call has another site. Returns its handle; or 0 for
  // a call that waits, if the operation has completed by the deadline, which is for tensors in host memory only.
  uint64_t submit(calls::Call&& call, Owners owners, int64_t deadline_ns = kNoDeadline,
                  std::shared_ptr<Notifier> notifier = nullptr);
  // As submit(), for a call that does not wait: notify() works for its handle.
  uint64_t submit_with_notifier(calls::Call&& call, Owners owners);

  // handles.cc
  uint64_t keep(calls::RequestRef request, Owners owners = {}, std::shared_ptr<Notifier> notifier = nullptr);
  // Throws InvalidRequest for an unknown handle.
  calls::RequestRef find(uint64_t handle);
  bool known(uint64_t handle) const { return handles_.contains(handle); }
  bool poll(uint64_t handle);
  void wait(uint64_t handle);
  void wait_many(const std::vector<uint64_t>& handles);
  // False if the operation is still under way at the deadline.
  bool wait_until(uint64_t handle, int64_t deadline_ns) { return await(*find(handle), deadline_ns); }
  void release(uint64_t handle);
  // wait() and release(), and deletes kept[handle]. An exception of a signal's handler leaves everything as it was.
  void finish(uint64_t handle, const pybind11::dict& kept);
  // `callback` is called without arguments, on the completion thread, when the operation is done. False if it is done
  // already: then `callback` is not called.
  bool notify(uint64_t handle, pybind11::object callback);
  // A result that the engine allocated in host memory. It can be taken once.
  calls::Output take_output(uint64_t handle, size_t index);
  // Waits until the request is settled; false if the deadline passes first. Throws the operation's failure.
  bool await(calls::Request& request, int64_t deadline_ns = kNoDeadline);
  // Waits until the request is done.
  void await_end(calls::Request& request);
  // Work that is given to the native stream from now on comes after the request; null: waits until the request is done.
  void order_after(calls::Request& request, std::optional<uint64_t> stream);

 private:
  struct Kept {
    calls::RequestRef request;
    Owners owners;
    std::shared_ptr<Notifier> notifier = nullptr;
    bool seen_done = false;  // poll() has returned true
  };

  void start_up();
  // The job ends with the launcher's process, if that is known.
  void watch_launcher(const pybind11::dict& config);
  // A caller leaves without waiting for the end: the tensors are kept until then.
  void abandon(Kept kept);
  // Lets go of the tensors whose operations have ended.
  void sweep_abandoned();
  void warn_if_exchanged(uint64_t handle);

  std::shared_ptr<Engine> engine_;
  std::optional<EngineHooks> hooks_;
  std::unique_ptr<base::ProcessWatch> launcher_;
  std::shared_ptr<frontend::Frontend> frontend_;
  std::unordered_map<uint64_t, Kept> handles_;
  std::list<Kept> abandoned_;
};

// The general form of an allreduce. The arguments are those of Python, so that a wrong one is reported to the other
// ranks. (engine.cc)
uint64_t allreduce(PyEngine& engine, pybind11::handle inputs, pybind11::handle outputs, pybind11::handle name,
                   pybind11::handle op, pybind11::handle prescale, pybind11::handle postscale,
                   pybind11::handle process_set, bool wait);

}  // namespace hvd::python
