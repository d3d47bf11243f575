// Sparse COO tensors whose indices and values are on the device: as much as gradients of embeddings need. Any thread.
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

namespace torch_gcu {
namespace {

using at::Tensor;

Tensor remade(const Tensor& sparse, const Tensor& indices, const Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sparse.sizes(), values.scalar_type(), at::kSparse,
                                       values.device(), false, sparse.is_coalesced());
}

Tensor on_host(const Tensor& sparse) { return remade(sparse, sparse._indices().cpu(), sparse._values().cpu()); }

Tensor on_device(const Tensor& sparse, c10::Device device) {
  return remade(sparse, sparse._indices().to(device), sparse._values().to(device));
}

Tensor coalesce(const Tensor& sparse) { return on_device(on_host(sparse).coalesce(), sparse.device()); }

Tensor to_dense(const Tensor& sparse, std::optional<at::ScalarType> type, std::optional<bool> masked) {
  return on_host(sparse).to_dense(type, masked).to(sparse.device());
}

Tensor clone(const Tensor& sparse, std::optional<at::MemoryFormat>) {
  return remade(sparse, sparse._indices().clone(), sparse._values().clone());
}

Tensor dense(const Tensor& tensor) { return tensor.is_sparse() ? tensor.to_dense() : tensor; }

Tensor add(const Tensor& first, const Tensor& second, const at::Scalar& alpha) {
  if (first.is_sparse() && second.is_sparse())
    return on_device(on_host(first).add(on_host(second), alpha), first.device());
  return dense(first).add(dense(second), alpha);
}

// The optimizer's step: a dense parameter and a sparse gradient.
Tensor& add_to(Tensor& target, const Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(!target.is_sparse(), "torch.gcu: a sparse tensor cannot be changed in place");
  return target.add_(dense(other), alpha);
}

}  // namespace
}  // namespace torch_gcu

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_sparse_coo_tensor_with_dims", &at::native::new_with_dims_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("indices", &at::native::indices_sparse);
  m.impl("values", &at::native::values_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
  m.impl("_coalesce", &torch_gcu::coalesce);
  m.impl("_to_dense", &torch_gcu::to_dense);
  m.impl("clone", &torch_gcu::clone);
  m.impl("add.Tensor", &torch_gcu::add);
  m.impl("add_.Tensor", &torch_gcu::add_to);
}
