// Moving tensors between the host and devices, in stream order. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_gcu {

// A CPU tensor with the values, sizes and strides of `tensor`. Waits for the tensor's current stream.
at::Tensor download(const at::Tensor& tensor);

// Enqueues writing the values of `source`, a CPU tensor of the same sizes, to `target`. `source` may change at once,
// unless `non_blocking` says that the caller takes care of that and `source` is page-locked.
void upload(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

// Makes `storage` that long; what fits of its contents is kept.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace torch_gcu
