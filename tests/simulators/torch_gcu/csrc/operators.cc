// The operators of torch on `gcu`: making tensors and views of them here, everything else on the CPU, with copies to
// the host before and back to the device afterwards (torch's own fallback, over copies.cc). Any thread.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "allocator.h"
#include "copies.h"
#include "devices.h"

namespace torch_gcu {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

c10::DeviceIndex index_of(std::optional<c10::Device> device) { return device ? device->index() : -1; }

Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "torch.gcu: only tensors of the CPU can be pinned");
  OnDevice on(index_of(device));
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  OnDevice on(index_of(device));
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type));
}

Tensor view(const Tensor& tensor, IntArrayRef sizes) { return at::native::view(tensor, sizes); }

Tensor reshape_alias(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

Tensor& set_storage_offset(Tensor& tensor, at::Storage storage, int64_t offset, IntArrayRef sizes,
                           IntArrayRef strides) {
  return at::cpu::set_(tensor, std::move(storage), offset, sizes, strides);
}

Tensor& set_storage(Tensor& tensor, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize());
  return at::cpu::set_(tensor, std::move(storage), 0, {count}, {});
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return at::cpu::set_(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& tensor) {
  OnDevice on(tensor.device().index());
  const at::Storage none(at::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true);
  return at::cpu::set_(tensor, none, 0, {0}, {});
}

const Tensor& resize(const Tensor& tensor, IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const auto first = static_cast<size_t>(tensor.storage_offset());
  const auto bytes = at::detail::computeStorageNbytesContiguous(sizes, tensor.itemsize(), first);
  if (bytes > tensor.storage().nbytes()) resize_storage(tensor.storage(), bytes);
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return tensor;
}

void record(Tensor& tensor, at::Stream stream) { record_stream(tensor.storage().data_ptr(), stream); }

// torch's fallback does not reach convolutions, which choose their implementation by device.
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  const OptionalTensor host_bias = bias && bias->defined() ? OptionalTensor(bias->cpu()) : std::nullopt;
  return at::convolution(input.cpu(), weight.cpu(), host_bias, stride, padding, dilation, transposed, output_padding,
                         groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [input_grad, weight_grad, bias_grad] =
      at::convolution_backward(grad.cpu(), input.cpu(), weight.cpu(), IntArrayRef(channels), stride, padding, dilation,
                               transposed, output_padding, groups, wanted);
  const auto back = [&](const Tensor& t) { return t.defined() ? t.to(input.device()) : t; };
  return {back(input_grad), back(weight_grad), back(bias_grad)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace
}  // namespace torch_gcu

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&torch_gcu::fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &torch_gcu::empty);
  m.impl("empty_strided", &torch_gcu::empty_strided);
  m.impl("as_strided", &at::cpu::as_strided);
  m.impl("view", &torch_gcu::view);
  m.impl("_reshape_alias", &torch_gcu::reshape_alias);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", &torch_gcu::set_storage_offset);
  m.impl("set_.source_Storage", &torch_gcu::set_storage);
  m.impl("set_.source_Tensor", &torch_gcu::set_tensor);
  m.impl("set_", &torch_gcu::set_nothing);
  m.impl("resize_", &torch_gcu::resize);
  m.impl("record_stream", &torch_gcu::record);
  m.impl("convolution_overrideable", &torch_gcu::convolution);
  m.impl("convolution_backward_overrideable", &torch_gcu::convolution_backward);
}
