// Inputs and outputs of one execution, and its two endings: the engine's result, or a refusal before the engine gets
// the call. See execution.h.
#include "execution.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "devices.h"
#include "done.h"
#include "types.h"

namespace hvd_tf {
namespace {

std::atomic<const hvd_fe_table*> table_{nullptr};

// The number of executions that have begun, without those that wait.
std::atomic<uint64_t> begun_{0};

// How long a kernel after which no other begins may keep its thread. The other ranks' kernels mostly come within that.
constexpr int64_t kStayNs = 1'000'000;

class Execution {
 public:
  Execution(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback)
      : kernel_(kernel), device_(device_in(kernel.slot)), context_(context), done_(callback), name_(kernel.name) {
    if (kernel.by_round) name_ += "/round_" + std::to_string(tf::GetIterId(context));
  }

  // Whether a setting allows this kernel. False with the reason in `status_`.
  bool may_run() {
    const char* const refusal = device_.refusal;
    return refusal[0] == 0 || invalid(refusal);
  }

  // Takes the tensors to reduce or move. False with the reason in `status_`.
  bool take_inputs() {
    const hvd_fe_op op = kernel_.operation->op;
    if (op == HVD_FE_JOIN || op == HVD_FE_BARRIER) return true;
    const int inputs = tf::NumInputs(context_);
    const int n = op == HVD_FE_ALLTOALL ? 1 : inputs;
    operands_.resize(static_cast<size_t>(n));
    size_t n_dims = 0;
    for (int i = 0; i < n; ++i) {
      tf::GetInput(context_, i, &operands_[static_cast<size_t>(i)].in, status_);
      if (!status_.ok()) return false;
      n_dims += static_cast<size_t>(tf::NumDims(operands_[static_cast<size_t>(i)].in));
    }
    dims_.resize(2 * n_dims);
    views_.resize(2 * static_cast<size_t>(n));
    int64_t* dims = dims_.data();
    for (int i = 0; i < n; ++i)
      if (!view_input(i, &dims)) return false;
    scattered_dims_ = dims;
    return op != HVD_FE_ALLTOALL || inputs == 1 || take_splits();
  }

  // Allocates the outputs whose shapes are known. False with the reason in `status_`.
  bool make_outputs() {
    switch (kernel_.operation->op) {
      case HVD_FE_ALLREDUCE:
      case HVD_FE_BROADCAST:
        return make_same_outputs();
      case HVD_FE_REDUCESCATTER:
        return make_scattered_outputs();
      default:
        return true;
    }
  }

  hvd_fe_call call() {
    hvd_fe_call call{};
    call.struct_size = sizeof call;
    call.op = kernel_.operation->op;
    call.name = name_.c_str();
    call.process_set = kernel_.process_set;
    call.reduce_op = kernel_.reduce_op;
    call.root_rank = kernel_.root_rank;
    call.prescale = kernel_.prescale;
    call.postscale = kernel_.postscale;
    call.n = static_cast<int32_t>(operands_.size());
    call.in = views_.data();
    call.out = has_outputs_ ? views_.data() + operands_.size() : nullptr;
    call.splits = has_splits_ ? splits_.data() : nullptr;
    if (device_.is_staged()) call.staged_from = device_.type.c_str();
    call.n_splits = static_cast<int32_t>(splits_.size());
    // The engine coalesces small tensors, which may delay them by up to a millisecond. For an operation after which no
    // other begins that time would be lost, and a graph does not tell. So the kernel's earlier executions decide.
    call.urgent = waits() || kernel_.habit.is_last() ? 1 : 0;
    if (!waits() && kernel_.habit.stays()) {
      call.stay_ns = kStayNs;
      staying_ = std::this_thread::get_id();
    }
    call.done = [](void* self, const hvd_fe_result* result) { static_cast<Execution*>(self)->finish(*result); };
    call.arg = this;
    return call;
  }

  void begin() {
    if (!waits()) ticket_ = begun_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  bool waits() const { return kernel_.blocking || !done_; }

  // Ends an execution before the engine gets the call, and lets the matching calls of the other ranks fail as well.
  void refuse(const hvd_fe_table* table) {
    const std::string text = tf::Message(status_);
    const int code = tf::GetCode(status_);
    if (table != nullptr)
      table->poison(kernel_.operation->op, kernel_.reduce_op, name_.c_str(), kernel_.process_set, text.c_str());
    fail(code, text.c_str());
    end();
  }

  void refuse(int code, const char* text) {
    tf::SetStatus(status_, code, text);
    refuse(nullptr);
  }

 private:
  struct Operand {
    TF_Tensor* in = nullptr;
    TF_Tensor* out = nullptr;
  };

  bool invalid(const std::string& text) {
    tf::SetStatus(status_, tf::kInvalidArgument, text.c_str());
    return false;
  }

  bool view_input(int index, int64_t** dims) {
    const auto i = static_cast<size_t>(index);
    TF_Tensor* tensor = operands_[i].in;
    hvd_fe_tensor& view = views_[i];
    const Type* type = type_of(tf::TensorType(tensor));
    if (type == nullptr)
      return invalid("Tensor type number " + std::to_string(tf::TensorType(tensor)) + " is not supported.");
    view = {};
    view.data = tf::TensorData(tensor);
    view.shape = *dims;
    view.ndim = tf::NumDims(tensor);
    view.dtype = type->hvd;
    for (int d = 0; d < view.ndim; ++d) *(*dims)++ = tf::Dim(tensor, d);
    if (device_.stream_source == StreamSource::kHostMemory) return true;
    view.device_type = device_.type.c_str();
    // Unknown: TF_GetDeviceId returns the vendor's number in 2.15, and the number among the visible devices in 2.21.
    // The backend finds the device by the memory.
    view.device_id = -1;
    view.has_stream = 1;
    view.stream = index > 0 ? views_[0].stream : stream_of(device_, context_, status_);
    return status_.ok();
  }

  bool take_splits() {
    TF_Tensor* splits = nullptr;
    tf::GetInput(context_, 1, &splits, status_);
    if (!status_.ok()) return false;
    has_splits_ = true;
    if (tf::NumDims(splits) != 1) {
      tf::DeleteTensor(splits);
      return invalid("alltoall expects a 1D splits tensor.");
    }
    splits_type_ = tf::TensorType(splits);
    const auto count = static_cast<size_t>(tf::Dim(splits, 0));
    splits_.resize(count);
    if (splits_type_ == kInt64) {
      if (count > 0) std::memcpy(splits_.data(), tf::TensorData(splits), count * sizeof(int64_t));
    } else {
      const auto* values = static_cast<const int32_t*>(tf::TensorData(splits));
      splits_.assign(values, values + count);
    }
    tf::DeleteTensor(splits);
    return true;
  }

  bool make_same_outputs() {
    has_outputs_ = true;
    const size_t n = operands_.size();
    for (size_t i = 0; i < n; ++i) {
      const hvd_fe_tensor& in = views_[i];
      if (waits()) {
        // The caller that waits holds a reference to the input, so that its memory cannot become the output's.
        operands_[i].out = allocate(static_cast<int>(i), in);
      } else {
        // The input's memory becomes the output's if no other reference to it exists, so this one is dropped first.
        tf::DeleteTensor(operands_[i].in);
        operands_[i].in = nullptr;
        const int index = static_cast<int>(i);
        int forwarded = -1;
        operands_[i].out =
            tf::ForwardInputOrAllocateOutput(context_, &index, 1, index, in.shape, in.ndim, &forwarded, status_);
        if (status_.ok() && forwarded < 0) tf::GetInput(context_, index, &operands_[i].in, status_);
      }
      if (!status_.ok()) return false;
      views_[n + i] = in;
      views_[n + i].data = tf::TensorData(operands_[i].out);
    }
    return true;
  }

  bool make_scattered_outputs() {
    const size_t n = operands_.size();
    for (size_t i = 0; i < n; ++i) {
      const hvd_fe_tensor& in = views_[i];
      if (in.ndim == 0) return invalid(std::string(kernel_.operation->type) + " does not support scalar inputs.");
      hvd_fe_tensor out = in;
      const int64_t rows = engine()->scattered_rows(in.shape[0], kernel_.process_set);
      if (rows < 0) return true;  // The engine reports the error of the process set.
      out.shape = scattered_dims_;
      std::memcpy(scattered_dims_, in.shape, static_cast<size_t>(in.ndim) * sizeof(int64_t));
      scattered_dims_[0] = rows;
      scattered_dims_ += in.ndim;
      operands_[i].out = allocate(static_cast<int>(i), out);
      if (!status_.ok()) return false;
      out.data = tf::TensorData(operands_[i].out);
      views_[n + i] = out;
    }
    has_outputs_ = true;
    return true;
  }

  TF_Tensor* allocate(int index, const hvd_fe_tensor& like) {
    const Type* type = type_of_hvd(like.dtype);
    size_t bytes = type->size;
    for (int d = 0; d < like.ndim; ++d) bytes *= static_cast<size_t>(like.shape[d]);
    return tf::AllocateOutput(context_, index, type->tf, like.shape, like.ndim, bytes, status_);
  }

  void finish(const hvd_fe_result& result) {
    if (ticket_ != 0) {
      const bool stayed = staying_ != std::thread::id();
      kernel_.habit.note(begun_.load(std::memory_order_relaxed) == ticket_, stayed,
                         stayed && staying_ != std::this_thread::get_id());
    }
    lingers_ = result.lingers != 0;
    if (result.status != HVD_FE_OK) {
      fail(code_of(result.status), result.message);
    } else {
      fetch(result);
      if (!status_.ok()) fail(tf::GetCode(status_), tf::Message(status_));
    }
    end();
  }

  // Makes the outputs that the engine has allocated, and those that are numbers.
  void fetch(const hvd_fe_result& result) {
    const hvd_fe_op op = kernel_.operation->op;
    if (op == HVD_FE_JOIN) return put_numbers(0, &result.last_joined, -1, kInt32);
    if (!has_outputs_)
      for (int i = 0; i < result.n_outputs && status_.ok(); ++i) fetch_output(result, i);
    if (op == HVD_FE_ALLTOALL && status_.ok()) put_received(result);
  }

  void fetch_output(const hvd_fe_result& result, int index) {
    const hvd_fe_tensor& source = result.outputs[index];
    TF_Tensor* output = allocate(index, source);
    if (!status_.ok()) return;
    hvd_fe_tensor target = source;
    target.data = tf::TensorData(output);
    if (device_.stream_source != StreamSource::kHostMemory) {
      target.device_type = views_[0].device_type;
      target.device_id = views_[0].device_id;
      target.has_stream = views_[0].has_stream;
      target.stream = views_[0].stream;
    }
    const int32_t rc = result.copy(&result, index, &target);
    tf::DeleteTensor(output);
    if (rc != HVD_FE_OK) tf::SetStatus(status_, code_of(rc), "the result could not be copied to its memory");
  }

  void put_received(const hvd_fe_result& result) {
    const int64_t count = result.n_received;
    if (splits_type_ == kInt32) {
      std::vector<int32_t> narrow(result.received_splits, result.received_splits + count);
      put_numbers(1, narrow.data(), count, kInt32);
    } else {
      put_numbers(1, result.received_splits, count, kInt64);
    }
  }

  // Makes an output of `count` integers in host memory; of a single integer, a scalar, if count is -1.
  void put_numbers(int index, const void* values, int64_t count, int type) {
    const size_t bytes = static_cast<size_t>(count < 0 ? 1 : count) * (type == kInt64 ? 8 : 4);
    TF_Tensor* output = tf::AllocateOutput(context_, index, type, &count, count < 0 ? 0 : 1, bytes, status_);
    if (!status_.ok()) return;
    if (bytes > 0) std::memcpy(tf::TensorData(output), values, bytes);
    tf::DeleteTensor(output);
  }

  void fail(int code, const char* text) {
    // Programs look for the operation's type in the text.
    const std::string full = std::string(kernel_.operation->type) + ": " + text;
    tf::SetStatus(status_, code, full.c_str());
    tf::OpKernelContext_Failure(context_, status_);
  }

  // Not called if the engine may still write: memory that is never released is never allocated again.
  void release() {
    for (const Operand& operand : operands_) {
      if (operand.in != nullptr) tf::DeleteTensor(operand.in);
      if (operand.out != nullptr) tf::DeleteTensor(operand.out);
    }
  }

  // After done_() neither the kernel nor the context exists.
  void end() {
    std::unique_ptr<Execution> self(this);
    if (!lingers_) release();
    done_();
  }

  const Kernel& kernel_;
  const Device& device_;
  TF_OpKernelContext* context_;
  Done done_;
  std::string name_;
  tf::Status status_;
  std::vector<Operand> operands_;
  std::vector<hvd_fe_tensor> views_;  // of the inputs, then of the outputs
  std::vector<int64_t> dims_;
  int64_t* scattered_dims_ = nullptr;
  std::vector<int64_t> splits_;
  int splits_type_ = kInt32;
  uint64_t ticket_ = 0;
  std::thread::id staying_;  // the thread that stays in submit()
  bool has_splits_ = false, has_outputs_ = false, lingers_ = false;
};

}  // namespace

const hvd_fe_table* engine() { return table_.load(std::memory_order_acquire); }

void set_engine(const hvd_fe_table* table) { table_.store(table, std::memory_order_release); }

int code_of(int32_t status) {
  switch (status) {
    case HVD_FE_OK:
      return tf::kOk;
    case HVD_FE_INVALID_ARGUMENT:
      return tf::kInvalidArgument;
    case HVD_FE_FAILED_PRECONDITION:
      return tf::kFailedPrecondition;
    case HVD_FE_ABORTED:
      return tf::kAborted;
    default:
      return tf::kUnknown;
  }
}

void execute(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback) {
  auto* execution = new Execution(kernel, context, callback);  // deletes itself at its end
  const hvd_fe_table* table = engine();
  if (table == nullptr) return execution->refuse(tf::kFailedPrecondition, kNotInitialized);
  if (!execution->may_run() || !execution->take_inputs() || !execution->make_outputs()) return execution->refuse(table);
  const hvd_fe_call call = execution->call();
  execution->begin();
  (execution->waits() ? table->run : table->submit)(&call);
}

}  // namespace hvd_tf
