// Kernels that look a number up in the engine's table. See facts.h.
#include "facts.h"

#include "execution.h"
#include "registration.h"

namespace hvd_tf {
namespace {

using Fact = int32_t (*)(const hvd_fe_table&, int process_set);

int32_t rank(const hvd_fe_table& table, int) { return table.rank(); }
int32_t size(const hvd_fe_table& table, int set) { return set == 0 ? table.size() : table.process_set_size(set); }
int32_t local_rank(const hvd_fe_table& table, int) { return table.local_rank(); }
int32_t local_size(const hvd_fe_table& table, int) { return table.local_size(); }

constexpr int32_t kUnknownSet = -3, kForeignSet = -4;

// 1 or 0; negative where there is no such set, as programs test for that.
int32_t included(const hvd_fe_table& table, int set) {
  const int32_t place = table.process_set_rank(set);
  if (place >= 0) return 1;
  return place == kForeignSet ? 0 : place;
}

struct FactKernel {
  Fact fact;
  int process_set;
  bool negative_is_answer;
};

template <Fact fact>
void* create(TF_OpKernelConstruction* construction) {
  auto* kernel = new FactKernel{fact, 0, fact == included};
  if (fact == size || fact == included) {
    tf::Status status;
    int64_t set = 0;
    tf::OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &set, status);
    if (!status.ok()) tf::OpKernelConstruction_Failure(construction, status);
    kernel->process_set = static_cast<int>(set);
  }
  return kernel;
}

void compute(void* self, TF_OpKernelContext* context) {
  const auto& kernel = *static_cast<const FactKernel*>(self);
  const hvd_fe_table* table = engine();
  tf::Status status;
  int32_t value = table == nullptr ? -1 : kernel.fact(*table, kernel.process_set);
  if (table == nullptr || (value == -1 && !kernel.negative_is_answer))
    tf::SetStatus(status, tf::kFailedPrecondition, kNotInitialized);
  else if (value == kUnknownSet && !kernel.negative_is_answer)
    tf::SetStatus(status, tf::kInvalidArgument,
                  ("There is no process set with id " + std::to_string(kernel.process_set) + ".").c_str());
  TF_Tensor* output = nullptr;
  if (status.ok()) output = tf::AllocateOutput(context, 0, 3 /*TF_INT32*/, nullptr, 0, sizeof value, status);
  if (status.ok()) {
    *static_cast<int32_t*>(tf::TensorData(output)) = value;
    tf::DeleteTensor(output);
  } else {
    tf::OpKernelContext_Failure(context, status);
  }
}

void destroy(void* self) { delete static_cast<FactKernel*>(self); }

template <Fact fact>
void add(const char* type) {
  add_kernel(type, "CPU", tf::NewKernelBuilder(type, "CPU", create<fact>, compute, destroy));
}

}  // namespace

void register_fact_kernels() {
  add<rank>("HorovodRank");
  add<size>("HorovodSize");
  add<local_rank>("HorovodLocalRank");
  add<local_size>("HorovodLocalSize");
  add<included>("HorovodProcessSetIncluded");
}

}  // namespace hvd_tf
