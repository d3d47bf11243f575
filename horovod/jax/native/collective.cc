// A collective of a compiled program: from XLA's call to the engine and back.
//
// XLA runs operations that do not depend on each other in any order, another one on each rank. So a handler must not
// wait for its collective: it submits it and returns a future. The engine brings the ranks together by names, in any
// order.
//
// A name may be asked for while it is in use: a program is executed again before its last execution is done. Then the
// call waits in the line of its name, as the engine takes a name once. Two calls of one name within one execution are
// an error, since their order may differ from rank to rank.
#include "collective.h"

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frame.h"

namespace hvd_jax {
namespace {

std::atomic<const hvd_fe_table*> table_{nullptr};

constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

class Collective {
 public:
  explicit Collective(const xla::CallFrame& frame)
      : api_(frame.api), run_(run_of(frame)), inputs_(frame.arguments.count), outputs_(frame.results.count) {}

  // "" or the reason why the call cannot be made.
  std::string read_call(const xla::CallFrame& frame) {
    std::string problem = read(frame.attributes, &attributes_);
    if (!problem.empty()) return problem;
    key_ = attributes_.name + '#' + std::to_string(attributes_.op) + '#' + std::to_string(attributes_.process_set);
    views_.resize(static_cast<size_t>(inputs_ + outputs_));
    for (int64_t i = 0; i < inputs_ + outputs_; ++i) {
      const bool is_input = i < inputs_;
      const void* value = is_input ? frame.arguments.values[i] : frame.results.values[i - inputs_];
      if (!view(*static_cast<const xla::Buffer*>(value), &views_[static_cast<size_t>(i)]))
        return "an element type that the engine does not have";
      if (!is_input) element_size_.push_back(size_of(static_cast<const xla::Buffer*>(value)->type));
    }
    if (inputs_ != outputs_) return "as many results as arguments are required";
    return "";
  }

  const Attributes& attributes() const { return attributes_; }
  const std::string& key() const { return key_; }
  int64_t run() const { return run_; }

  xla::Error* make_future(xla::CallFrame* frame) {
    xla::OfFuture args{xla::head_of<xla::OfFuture>(), nullptr};
    xla::Error* error = api_->create_future(&args);
    if (error == nullptr) frame->future = future_ = args.future;
    return error;
  }

  void submit();

  // Ends the call: its future has the outcome. XLA may go on with the program on this thread, and use the memory of the
  // call for something else.
  void complete() {
    if (problem_.empty()) {
      xla::OfFuture args{xla::head_of<xla::OfFuture>(), future_};
      api_->set_available(&args);
    } else {
      xla::FailFuture args{xla::head_of<xla::FailFuture>(), future_, make_error(api_, code_, problem_)};
      api_->set_error(&args);
    }
  }
  void fail(std::string problem) {
    problem_ = std::move(problem);
    complete();
  }

 private:
  // The engine allocates the results of operations whose shape depends on the other ranks, to be compared and copied.
  bool engine_allocates() const { return attributes_.op == HVD_FE_ALLGATHER || attributes_.op == HVD_FE_ALLTOALL; }

  size_t bytes_of_output(int64_t i) const {
    const hvd_fe_tensor& output = views_[static_cast<size_t>(inputs_ + i)];
    size_t bytes = element_size_[static_cast<size_t>(i)];
    for (int32_t d = 0; d < output.ndim; ++d) bytes *= static_cast<size_t>(output.shape[d]);
    return bytes;
  }

  void finish(const hvd_fe_result& result);
  std::string fetch(const hvd_fe_result& result);

  friend class Turns;

  const xla::Api* api_;
  xla::Future* future_ = nullptr;
  // The outcome: no problem, or one and its kind.
  xla::Code code_ = xla::Code::kFailedPrecondition;
  std::string problem_;
  Collective* after_ = nullptr;  // in a queue of Turns
  int64_t run_, inputs_, outputs_;
  Attributes attributes_;
  std::string key_;
  std::vector<size_t> element_size_;  // of the outputs
  std::vector<hvd_fe_tensor> views_;  // of the inputs, then of the outputs; XLA keeps memory and shapes until the end
};

// The calls of one name that have begun, in their order; the engine has the first.
class Lines {
 public:
  // True: the engine may have it now. `clashes`: a call of the same execution is in the line.
  bool enter(Collective* collective, bool* clashes) {
    std::lock_guard lock(mutex_);
    auto& line = lines_[collective->key()];
    *clashes = false;
    for (const Collective* other : line)
      *clashes = *clashes || (other->run() >= 0 && other->run() == collective->run());
    if (*clashes) return false;
    line.push_back(collective);
    return line.size() == 1;
  }

  // The call that comes after `collective`, which is done; or null.
  Collective* leave(Collective* collective) {
    std::lock_guard lock(mutex_);
    const auto it = lines_.find(collective->key());
    it->second.pop_front();
    if (!it->second.empty()) return it->second.front();
    lines_.erase(it);
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Collective*>> lines_;
};

// Never destroyed: threads of the engine may still use it while the process ends.
Lines& lines() {
  static Lines* all = new Lines;
  return *all;
}

// The calls that have ended on this thread, and those of their lines that come next. A call that the engine refuses
// ends within submit(): so submit() is called here in a loop, and not once within another for each call of a line.
class Turns {
 public:
  void take(Collective* ended, Collective* next) {
    if (next != nullptr) next_.push(next);
    ended_.push(ended);
    if (submits_) return;  // the loop below is at work
    for (;;) {
      submits_ = true;
      while (Collective* call = next_.pop()) call->submit();
      submits_ = false;
      const std::unique_ptr<Collective> call(ended_.pop());
      if (!call) return;
      call->complete();  // XLA goes on on this thread, and may come back here
    }
  }

 private:
  struct Queue {
    void push(Collective* call) {
      (last == nullptr ? first : last->after_) = call;
      last = call;
    }
    Collective* pop() {
      Collective* const call = first;
      if (call == nullptr) return nullptr;
      first = call->after_;
      call->after_ = nullptr;
      if (first == nullptr) last = nullptr;
      return call;
    }
    Collective *first = nullptr, *last = nullptr;
  };
  Queue next_, ended_;
  bool submits_ = false;
};

void Collective::submit() {
  hvd_fe_call call{};
  call.struct_size = sizeof call;
  call.op = attributes_.op;
  call.name = attributes_.name.c_str();
  call.process_set = attributes_.process_set;
  call.reduce_op = attributes_.reduce_op;
  call.root_rank = attributes_.root_rank;
  call.n = static_cast<int32_t>(inputs_);
  call.prescale = attributes_.prescale;
  call.postscale = attributes_.postscale;
  call.in = views_.data();
  call.out = engine_allocates() ? nullptr : views_.data() + inputs_;
  // XLA does not tell whether others follow, and the engine would hold a small tensor back for them.
  call.urgent = 1;
  call.done = [](void* self, const hvd_fe_result* result) { static_cast<Collective*>(self)->finish(*result); };
  call.arg = this;
  engine()->submit(&call);
}

void Collective::finish(const hvd_fe_result& result) {
  thread_local Turns turns;
  try {
    problem_ = result.status == HVD_FE_OK ? fetch(result) : result.message;
    if (result.status != HVD_FE_OK && problem_.find(attributes_.name) == std::string::npos)
      problem_ = attributes_.name + ": " + problem_;
  } catch (const std::bad_alloc&) {
    problem_ = "out of memory";  // short enough for the string itself
  }
  if (result.status != HVD_FE_OK) code_ = code_of(result.status);
  turns.take(this, lines().leave(this));
}

std::string Collective::fetch(const hvd_fe_result& result) {
  if (attributes_.op == HVD_FE_ALLREDUCE && attributes_.root_rank >= 0 && attributes_.root_rank != engine()->rank())
    for (int64_t i = 0; i < outputs_; ++i)
      std::memset(views_[static_cast<size_t>(inputs_ + i)].data, 0, bytes_of_output(i));
  if (!engine_allocates()) return "";
  for (int32_t i = 0; i < result.n_outputs; ++i) {
    const hvd_fe_tensor& found = result.outputs[i];
    const hvd_fe_tensor& wanted = views_[static_cast<size_t>(inputs_ + i)];
    const bool fits = found.ndim == wanted.ndim && found.dtype == wanted.dtype &&
                      std::memcmp(found.shape, wanted.shape, sizeof(int64_t) * static_cast<size_t>(found.ndim)) == 0;
    if (!fits)
      return attributes_.name + ": the ranks have " + std::to_string(found.ndim > 0 ? found.shape[0] : 0) +
             " rows together, and the compiled program expects " +
             std::to_string(wanted.ndim > 0 ? wanted.shape[0] : 0) +
             ". In compiled programs all ranks must have equally many rows; otherwise call it outside of jit.";
    if (result.copy(&result, i, &wanted) != HVD_FE_OK) return attributes_.name + ": the result could not be copied";
  }
  return "";
}

// The local device of each execution that has begun lately. Within one execution all calls must be on one device: ranks
// are processes, and there is one device for each. The devices of one execution run at their own pace, so calls of
// other executions may come between theirs.
class Devices {
 public:
  // "" or the reason why a call of the execution `run` cannot be on `device`.
  std::string why_not(int64_t run, int32_t device) {
    if (run == -1 || device < 0) return "";  // XLA does not tell. A number of an execution may be negative
    std::lock_guard lock(mutex_);
    for (const auto& [known, first] : recent_) {
      if (known != run) continue;
      if (first == device) return "";
      return "This program runs on several local devices (" + std::to_string(first) + " and " + std::to_string(device) +
             "), as a mesh, pmap, shard_map or a sharded array makes it. Horovod has one process for each device: "
             "start "
             "more processes, and give each one device.";
    }
    recent_[next_] = {run, device};
    next_ = (next_ + 1) % recent_.size();
    return "";
  }

 private:
  struct Execution {
    int64_t run = -1;
    int32_t device = -1;
  };
  std::mutex mutex_;
  std::array<Execution, 64> recent_;
  size_t next_ = 0;
};

// Never destroyed, as lines().
Devices& devices() {
  static Devices* all = new Devices;
  return *all;
}

// The other ranks' call fails too, with the same reason.
void tell_others(const Attributes& a, const std::string& text) {
  if (!a.name.empty()) engine()->poison(a.op, a.reduce_op, a.name.c_str(), a.process_set, text.c_str());
}

xla::Error* refuse(const xla::CallFrame& frame, const Attributes& attributes, const std::string& text) {
  tell_others(attributes, text);
  return make_error(frame.api, xla::Code::kFailedPrecondition, text);
}

}  // namespace

const hvd_fe_table* engine() { return table_.load(std::memory_order_acquire); }

void set_engine(const hvd_fe_table* table) { table_.store(table, std::memory_order_release); }

xla::Error* begin_collective(xla::CallFrame* frame) {
  if (engine() == nullptr) return make_error(frame->api, xla::Code::kFailedPrecondition, kNotInitialized);
  auto collective = std::make_unique<Collective>(*frame);
  std::string problem = collective->read_call(*frame);
  if (problem.empty()) problem = devices().why_not(run_of(*frame), device_of(*frame));
  if (!problem.empty()) return refuse(*frame, collective->attributes(), problem);
  if (xla::Error* error = collective->make_future(frame)) return error;
  // XLA frees the future when it is completed, so the outcome goes there from now on, errors as well.
  bool clashes = false, first = false;
  try {
    first = lines().enter(collective.get(), &clashes);
    if (clashes)
      problem = collective->attributes().name +
                ": two calls of this name run at the same time in one program, so the ranks could mix them up. Give "
                "each call a name of its own. A function that is compiled by itself and called twice within a program "
                "has the same names twice: call it without its own jit, or pass it the names as a static argument.";
  } catch (const std::bad_alloc&) {
    problem = "there is no memory for the call";
  }
  if (problem.empty()) {
    Collective* entered = collective.release();  // in the line of its name; it deletes itself at its end
    if (first) entered->submit();
    return nullptr;
  }
  tell_others(collective->attributes(), problem);
  collective->fail(std::move(problem));
  return nullptr;
}

xla::Error* refuse_collective(xla::CallFrame* frame) {
  constexpr const char* kText =
      "horovod.jax works on arrays in host memory, but XLA runs this program on another device. Set JAX_PLATFORMS=cpu, "
      "or compile the program for the CPU: with jax.default_device(jax.devices('cpu')[0]).";
  Attributes attributes;
  const std::string problem = read(frame->attributes, &attributes);
  if (engine() == nullptr || !problem.empty()) return make_error(frame->api, xla::Code::kFailedPrecondition, kText);
  return refuse(*frame, attributes, attributes.name + ": " + kText);
}

}  // namespace hvd_jax
