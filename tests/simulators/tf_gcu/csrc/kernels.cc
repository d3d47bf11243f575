// Ordinary kernels, so that something makes tensors on the device and uses them: AddV2, Sub, Mul, Square and MatMul of
// floats, done by "kernels" of the simulator on the stream of the context. A call returns when the work is in the
// queue, and TF_GCU_JITTER_US makes each kernel late by up to that many microseconds, so that code that
// does not wait fails.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "platform.h"
#include "tensorflow.h"
#include "vendor.h"

namespace tf_gcu {
namespace {

std::atomic<int> g_queued{0};  // launched, and not done

// Shut while a test holds the device back.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool shut = false;

  void pass() {
    std::unique_lock lock(mutex);
    opened.wait(lock, [this] { return !shut; });
  }
};

Gate& gate() {
  static auto* only = new Gate;  // streams' threads outlive static objects
  return *only;
}

void be_late() {
  gate().pass();
  static const int most = [] {
    const char* text = std::getenv("TF_GCU_JITTER_US");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  if (most <= 0) return;
  thread_local std::minstd_rand random{std::random_device{}()};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most + 1)));
}

// An input or output of a kernel: where its elements are on the device, and its shape.
struct Array {
  void* data = nullptr;
  std::vector<int64_t> shape;

  size_t count() const {
    size_t n = 1;
    for (const int64_t dim : shape) n *= static_cast<size_t>(dim);
    return n;
  }
};

// The tensor's handle is dropped at once. The memory stays what it is until the stream has done what is queued now:
// TensorFlow uses it again on the same stream only.
Array array_of(TF_Tensor* tensor) {
  Array array;
  array.data = tensorflow().TF_TensorData(tensor);
  const int dims = tensorflow().TF_NumDims(tensor);
  for (int i = 0; i < dims; ++i) array.shape.push_back(tensorflow().TF_Dim(tensor, i));
  tensorflow().TF_DeleteTensor(tensor);
  return array;
}

Array input(TF_OpKernelContext* context, int index, Status& status) {
  TF_Tensor* tensor = nullptr;
  tensorflow().TF_GetInput(context, index, &tensor, status);
  return status.ok() ? array_of(tensor) : Array{};
}

Array output(TF_OpKernelContext* context, TF_DataType type, size_t width, const std::vector<int64_t>& shape,
             Status& status) {
  size_t bytes = width;
  for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  TF_Tensor* tensor =
      tensorflow().TF_AllocateOutput(context, 0, type, shape.data(), static_cast<int>(shape.size()), bytes, status);
  return status.ok() ? array_of(tensor) : Array{};
}

// What runs on the stream's thread.
struct Work {
  virtual ~Work() = default;
  virtual void run() = 0;
};

template <class T>
T* reach(const Array& array) {
  return static_cast<T*>(vendor().topsSimAddress(array.data, array.count() * sizeof(T)));
}

// `result` says which device it is: TF_GetDeviceId() gives the number among the visible devices in some versions, and
// the vendor's in others.
void launch(TF_OpKernelContext* context, const Array& result, std::unique_ptr<Work> work, Status& status) {
  const SP_Stream stream = tensorflow().TF_GetStream(context, status);
  topsPointerAttribute_t facts = {};
  if (!status.ok() || !report(vendor().topsPointerGetAttributes(&facts, result.data), "a tensor's memory", status)) {
    return;
  }
  const OnDevice on(facts.device);
  ++g_queued;
  const topsError_t code = vendor().topsSimLaunch(
      native(stream),
      [](void* argument) {
        const std::unique_ptr<Work> owned(static_cast<Work*>(argument));
        be_late();
        owned->run();
        --g_queued;
      },
      work.get());
  if (report(code, "topsSimLaunch", status)) {
    work.release();
  } else {
    --g_queued;
  }
}

template <class T>
constexpr TF_DataType type_of() {
  return sizeof(T) == sizeof(float) ? TF_FLOAT : TF_DOUBLE;
}

// --------------------------------------------------------------------------------------------------- element by
// element

template <class T, class Op>
struct Elementwise final : Work {
  Array a, b, c;

  void run() override {
    const T *x = reach<T>(a), *y = reach<T>(b);
    T* z = reach<T>(c);
    if (x == nullptr || y == nullptr || z == nullptr) return;  // the simulator reports it
    const size_t n = c.count(), step_x = a.count() == 1 ? 0 : 1, step_y = b.count() == 1 ? 0 : 1;
    for (size_t i = 0; i < n; ++i) z[i] = Op::of(x[i * step_x], y[i * step_y]);
  }
};

template <class T, class Op>
void elementwise(void*, TF_OpKernelContext* context) {
  Status status;
  auto work = std::make_unique<Elementwise<T, Op>>();
  work->a = input(context, 0, status);
  if (status.ok()) work->b = input(context, 1, status);
  if (status.ok() && work->a.shape != work->b.shape && work->a.count() != 1 && work->b.count() != 1) {
    tensorflow().TF_SetStatus(status, TF_INVALID_ARGUMENT,
                              "GCU: arithmetic needs equal shapes, or one element on one side");
  }
  if (status.ok()) {
    const bool first = work->b.count() == 1 && (work->a.count() != 1 || work->a.shape.size() > work->b.shape.size());
    work->c = output(context, type_of<T>(), sizeof(T), first ? work->a.shape : work->b.shape, status);
  }
  const Array result = work->c;
  if (status.ok() && result.count() != 0) launch(context, result, std::move(work), status);
  if (!status.ok()) tensorflow().TF_OpKernelContext_Failure(context, status);
}

struct Add {
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Subtract {
  template <class T>
  static T of(T a, T b) {
    return a - b;
  }
};
struct Multiply {
  template <class T>
  static T of(T a, T b) {
    return a * b;
  }
};

// What TensorFlow's optimizer makes of a product of a tensor with itself.
template <class T>
void square(void*, TF_OpKernelContext* context) {
  Status status;
  auto work = std::make_unique<Elementwise<T, Multiply>>();
  work->a = work->b = input(context, 0, status);
  if (status.ok()) work->c = output(context, type_of<T>(), sizeof(T), work->a.shape, status);
  const Array result = work->c;
  if (status.ok() && result.count() != 0) launch(context, result, std::move(work), status);
  if (!status.ok()) tensorflow().TF_OpKernelContext_Failure(context, status);
}

// --------------------------------------------------------------------------------------------------- matrices

struct Transposed {
  TF_Bool a = 0, b = 0;
};

void* create_matmul(TF_OpKernelConstruction* construction) {
  Status status;
  auto flags = std::make_unique<Transposed>();
  tensorflow().TF_OpKernelConstruction_GetAttrBool(construction, "transpose_a", &flags->a, status);
  if (status.ok()) tensorflow().TF_OpKernelConstruction_GetAttrBool(construction, "transpose_b", &flags->b, status);
  if (!status.ok()) tensorflow().TF_OpKernelConstruction_Failure(construction, status);
  return flags.release();
}

template <class T>
struct Product final : Work {
  Array a, b, c;
  Transposed flags;

  void run() override {
    const T *x = reach<T>(a), *y = reach<T>(b);
    T* z = reach<T>(c);
    if (x == nullptr || y == nullptr || z == nullptr) return;
    const int64_t rows = c.shape[0], columns = c.shape[1], inner = a.shape[flags.a ? 0 : 1];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += x[flags.a ? k * rows + i : i * inner + k] * y[flags.b ? j * inner + k : k * columns + j];
        }
        z[i * columns + j] = sum;
      }
    }
  }
};

template <class T>
void multiply_matrices(void* flags, TF_OpKernelContext* context) {
  Status status;
  auto work = std::make_unique<Product<T>>();
  work->flags = *static_cast<Transposed*>(flags);
  work->a = input(context, 0, status);
  if (status.ok()) work->b = input(context, 1, status);
  const Transposed how = work->flags;
  if (status.ok() && (work->a.shape.size() != 2 || work->b.shape.size() != 2 ||
                      work->a.shape[how.a ? 0 : 1] != work->b.shape[how.b ? 1 : 0])) {
    tensorflow().TF_SetStatus(status, TF_INVALID_ARGUMENT, "GCU: the shapes of the matrices do not fit");
  }
  if (status.ok()) {
    const std::vector<int64_t> shape = {work->a.shape[how.a ? 1 : 0], work->b.shape[how.b ? 0 : 1]};
    work->c = output(context, type_of<T>(), sizeof(T), shape, status);
  }
  const Array result = work->c;
  if (status.ok() && result.count() != 0) launch(context, result, std::move(work), status);
  if (!status.ok()) tensorflow().TF_OpKernelContext_Failure(context, status);
}

using Compute = void (*)(void*, TF_OpKernelContext*);

// 0, or 1 if TensorFlow refuses it.
int add_kernel(const char* op, TF_DataType type, Compute compute, void* (*create)(TF_OpKernelConstruction*) = nullptr,
               void (*destroy)(void*) = nullptr) {
  Status status;
  TF_KernelBuilder* builder = tensorflow().TF_NewKernelBuilder(op, kDeviceType, create, compute, destroy);
  tensorflow().TF_KernelBuilder_TypeConstraint(builder, "T", type, status);
  if (status.ok()) tensorflow().TF_RegisterKernelBuilder((std::string("Gcu") + op).c_str(), builder, status);
  return status.ok() ? 0 : 1;
}

template <class T>
int add_kernels() {
  return add_kernel("AddV2", type_of<T>(), &elementwise<T, Add>) +
         add_kernel("Sub", type_of<T>(), &elementwise<T, Subtract>) +
         add_kernel("Mul", type_of<T>(), &elementwise<T, Multiply>) + add_kernel("Square", type_of<T>(), &square<T>) +
         add_kernel("MatMul", type_of<T>(), &multiply_matrices<T>, &create_matmul,
                    [](void* flags) { delete static_cast<Transposed*>(flags); });
}

}  // namespace

int queued_kernels() { return g_queued; }

void hold_kernels(bool hold) {
  const std::lock_guard lock(gate().mutex);
  gate().shut = hold;
  gate().opened.notify_all();
}

int register_kernels() { return add_kernels<float>() + add_kernels<double>(); }

}  // namespace tf_gcu
