// See copies.h. There are no kernels on this device: what is not one contiguous piece of memory is put together on the
// host, on a copy of the memory between the tensor's first and last element.
#include "copies.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "allocator.h"
#include "devices.h"

namespace torch_gcu {
namespace {

// Host memory that the device still reads or writes.
class InFlight {
 public:
  void keep(const c10::Storage& storage, const c10::Stream& stream) {
    topsEvent_t event = nullptr;
    TORCH_GCU_CALL(topsEventCreateWithFlags, &event, topsEventDisableTiming);
    TORCH_GCU_CALL(topsEventRecord, event, native(stream));
    std::deque<Entry> over;  // freed after the mutex is released: the deleter of a storage may call this code
    std::lock_guard lock(mutex_);
    entries_.push_back({event, storage});
    while (!entries_.empty() && vendor().topsEventQuery(entries_.front().event) != topsErrorNotReady) {
      (void)vendor().topsEventDestroy(entries_.front().event);
      over.push_back(std::move(entries_.front()));
      entries_.pop_front();
    }
  }

  static InFlight& instance() {
    static auto& all = *new InFlight;
    return all;
  }

 private:
  struct Entry {
    topsEvent_t event;
    c10::Storage storage;
  };
  std::mutex mutex_;
  std::deque<Entry> entries_;
};

// Bytes from a tensor's first element to the end of its last.
size_t span(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

// A CPU tensor of the same type, sizes and strides, so that bytes mean the same in both.
at::Tensor host_twin(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
}

void copy(void* to, const void* from, size_t bytes, topsMemcpyKind kind, const c10::Stream& stream) {
  if (bytes != 0) TORCH_GCU_CALL(topsMemcpyAsync, to, from, bytes, kind, native(stream));
}

void finish(const c10::Stream& stream) { TORCH_GCU_CALL(topsStreamSynchronize, native(stream)); }

// Every byte of the span belongs to exactly one element.
bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() && is_dense(a) &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

}  // namespace

at::Tensor download(const at::Tensor& tensor) {
  OnDevice on(tensor.device().index());
  const auto stream = current_stream(-1);
  auto twin = host_twin(tensor);
  copy(twin.data_ptr(), tensor.data_ptr(), span(tensor), topsMemcpyDeviceToHost, stream);
  finish(stream);
  if (tensor.is_conj()) twin._set_conj(true);
  if (tensor.is_neg()) twin._set_neg(true);
  return twin;
}

void upload(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  OnDevice on(target.device().index());
  const auto stream = current_stream(-1);
  at::Tensor twin;
  if (non_blocking && same_layout(source, target) && is_pinned(source.data_ptr())) {
    twin = source;
  } else {
    // What lies between the elements of a tensor that is not dense keeps its values.
    twin = is_dense(target) ? host_twin(target) : download(target);
    twin.copy_(source);
  }
  copy(target.data_ptr(), twin.data_ptr(), span(target), topsMemcpyHostToDevice, stream);
  InFlight::instance().keep(twin.storage(), stream);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  OnDevice on(storage.device().index());
  auto memory = allocator().allocate(bytes);
  copy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()), topsMemcpyDeviceToDevice, current_stream(-1));
  storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

namespace {

void device_to_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (non_blocking && same_layout(source, target) && is_pinned(target.data_ptr())) {
    OnDevice on(source.device().index());
    const auto stream = current_stream(-1);
    copy(target.data_ptr(), source.data_ptr(), span(source), topsMemcpyDeviceToHost, stream);
    InFlight::instance().keep(target.storage(), stream);
    return;
  }
  target.copy_(download(source));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  TORCH_CHECK(source.sizes() == target.sizes(), "torch.gcu: copy between different shapes");
  if (source.is_cpu()) {
    upload(source, target, non_blocking);
  } else if (target.is_cpu()) {
    device_to_host(source, target, non_blocking);
  } else if (source.device() == target.device() && same_layout(source, target)) {
    OnDevice on(source.device().index());
    copy(target.data_ptr(), source.data_ptr(), span(source), topsMemcpyDeviceToDevice, current_stream(-1));
  } else {
    upload(download(source), target, false);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return download(tensor).item(); }

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  upload(at::full({}, value, tensor.options().device(at::kCPU)).expand(tensor.sizes()), tensor, false);
  return tensor;
}

at::Tensor& zero(at::Tensor& tensor) { return fill(tensor, 0); }

}  // namespace
}  // namespace torch_gcu

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &torch_gcu::copy_from);
  m.impl("_copy_from_and_resize", &torch_gcu::copy_from_and_resize);
  m.impl("_local_scalar_dense", &torch_gcu::local_scalar);
  m.impl("fill_.Scalar", &torch_gcu::fill);
  m.impl("zero_", &torch_gcu::zero);
}
