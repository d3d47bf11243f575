// Kernels that ask the engine for a number. See facts.h.
#include "facts.h"

#include <utility>

#include "execution.h"
#include "registration.h"
#include "types.h"

namespace hvd_tf {
namespace {

using FactFunction = int32_t (*)(const hvd_fe_table&, int process_set);

int32_t rank(const hvd_fe_table& table, int) { return table.rank(); }
int32_t size(const hvd_fe_table& table, int set) { return set == 0 ? table.size() : table.process_set_size(set); }
int32_t local_rank(const hvd_fe_table& table, int) { return table.local_rank(); }
int32_t local_size(const hvd_fe_table& table, int) { return table.local_size(); }

constexpr int32_t kUnknownSet = -3, kForeignSet = -4;

// 1 or 0. Negative if the process set does not exist: programs test for that.
int32_t included(const hvd_fe_table& table, int set) {
  const int32_t place = table.process_set_rank(set);
  if (place >= 0) return 1;
  return place == kForeignSet ? 0 : place;
}

struct Fact {
  const char* type;  // TensorFlow's name of the operation
  FactFunction look_up;
  bool has_process_set;
  bool may_be_negative;  // otherwise a negative number is an error
};

constexpr Fact kFacts[] = {
    {"HorovodRank", rank, false, false},
    {"HorovodLocalRank", local_rank, false, false},
    {"HorovodSize", size, true, false},
    {"HorovodLocalSize", local_size, false, false},
    {"HorovodProcessSetIncluded", included, true, true},
};
constexpr size_t kFactCount = sizeof(kFacts) / sizeof(kFacts[0]);

struct FactKernel {
  const Fact& fact;
  int process_set;
};

int32_t value_of(const Fact& fact, int process_set, int* code, std::string* problem) {
  const hvd_fe_table* table = engine();
  const int32_t value = table == nullptr ? -1 : fact.look_up(*table, process_set);
  if (value >= 0 || (fact.may_be_negative && table != nullptr)) return value;
  *code = value == kUnknownSet ? tf::kInvalidArgument : tf::kFailedPrecondition;
  *problem = value == kUnknownSet ? "There is no process set with id " + std::to_string(process_set) + "."
                                  : std::string(kNotInitialized);
  return value;
}

template <size_t index>
void* create(TF_OpKernelConstruction* construction) {
  auto* kernel = new FactKernel{kFacts[index], 0};
  if (kernel->fact.has_process_set) {
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
  tf::Status status;
  int code = tf::kOk;
  std::string problem;
  const int32_t value = value_of(kernel.fact, kernel.process_set, &code, &problem);
  TF_Tensor* output = nullptr;
  if (code == tf::kOk)
    output = tf::AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof value, status);
  else
    tf::SetStatus(status, code, problem.c_str());
  if (status.ok()) {
    *static_cast<int32_t*>(tf::TensorData(output)) = value;
    tf::DeleteTensor(output);
  } else {
    tf::OpKernelContext_Failure(context, status);
  }
}

void destroy(void* self) { delete static_cast<FactKernel*>(self); }

template <size_t... index>
void add_all(std::index_sequence<index...>) {
  (add_kernel(kFacts[index].type, "CPU",
              tf::NewKernelBuilder(kFacts[index].type, "CPU", create<index>, compute, destroy)),
   ...);
}

}  // namespace

int32_t look_up_fact(const std::string& type, int process_set, std::string* problem) {
  int code = tf::kOk;
  for (const Fact& fact : kFacts)
    if (type == fact.type) return value_of(fact, process_set, &code, problem);
  *problem = "horovod: this libhvd_tf.so has no operation " + type;
  return -1;
}

void register_fact_kernels() { add_all(std::make_index_sequence<kFactCount>()); }

}  // namespace hvd_tf
