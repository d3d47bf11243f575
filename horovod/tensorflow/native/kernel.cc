// Reads the attributes of a kernel. See kernel.h.
#include "kernel.h"

#include <charconv>

namespace hvd_tf {
namespace {

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  std::string text(const char* name) {
    int32_t count = 0, size = 0;
    if (status_.ok()) tf::OpKernelConstruction_GetAttrSize(construction_, name, &count, &size, status_);
    std::string value(static_cast<size_t>(status_.ok() ? size : 0), '\0');
    if (!value.empty())
      tf::OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_);
    return value;
  }

  int number(const char* name) {
    int64_t value = 0;
    if (status_.ok()) tf::OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_);
    return static_cast<int>(value);
  }

  bool flag(const char* name) {
    tf::Bool value = 0;
    if (status_.ok()) tf::OpKernelConstruction_GetAttrBool(construction_, name, &value, status_);
    return value != 0;
  }

  // A double, written as text because TensorFlow's float attributes have 32 bits.
  double factor(const char* name) {
    const std::string written = text(name);
    double value = 1;
    const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), value);
    if (status_.ok() && (error != std::errc() || end != written.data() + written.size()))
      tf::SetStatus(status_, tf::kInvalidArgument,
                    (std::string(name) + " must be a number in text, but is '" + written + "'.").c_str());
    return value;
  }

  ~Attributes() {
    if (!status_.ok()) tf::OpKernelConstruction_Failure(construction_, status_);
  }

 private:
  TF_OpKernelConstruction* construction_;
  tf::Status status_;
};

}  // namespace

Kernel* make_kernel(const Operation& operation, int slot, TF_OpKernelConstruction* construction) {
  auto* kernel = new Kernel;
  kernel->operation = &operation;
  kernel->slot = slot;
  Attributes attributes(construction);
  if (operation.op != HVD_FE_JOIN) kernel->process_set = attributes.number("process_set_id");
  if (operation.op != HVD_FE_JOIN && operation.op != HVD_FE_BARRIER) {
    kernel->name = attributes.text("tensor_name");
    kernel->by_round = attributes.flag("by_round");
  }
  kernel->blocking = attributes.flag("blocking");
  if (reduces(operation.op)) {
    kernel->reduce_op = attributes.number("reduce_op");
    kernel->prescale = attributes.factor("prescale_factor");
    kernel->postscale = attributes.factor("postscale_factor");
  }
  if (operation.op == HVD_FE_BROADCAST) kernel->root_rank = attributes.number("root_rank");
  return kernel;
}

}  // namespace hvd_tf
