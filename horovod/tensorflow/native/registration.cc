// The definitions of the operations, and their kernels for each device type. See registration.h.
#include "registration.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "devices.h"
#include "done.h"
#include "execution.h"
#include "facts.h"
#include "shapes.h"
#include "types.h"

namespace hvd_tf {
namespace {

struct Definition {
  const char* type;
  std::initializer_list<const char*> attributes, inputs, outputs;
  tf::ShapeFunction shapes;
};

void define(const Definition& definition) {
  tf::Status status;
  TF_OpDefinitionBuilder* builder = tf::NewOpDefinitionBuilder(definition.type);
  for (const char* attribute : definition.attributes) tf::OpDefinitionBuilderAddAttr(builder, attribute);
  for (const char* input : definition.inputs) tf::OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : definition.outputs) tf::OpDefinitionBuilderAddOutput(builder, output);
  // Otherwise TensorFlow's optimizer computes a collective of constants only once, and merges two equal ones. Ranks
  // that do so differently would wait for each other for ever.
  tf::OpDefinitionBuilderSetIsStateful(builder, true);
  tf::OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
  tf::RegisterOpDefinition(builder, status);
  if (!status.ok()) problems() += std::string(definition.type) + ": " + tf::Message(status) + "\n";
}

void define_all() {
  static const std::string reducible = std::string("T: ") + kReducible;
  static const std::string reducibles = std::string("T: list(") + kReducible + ") >= 1";
  const char *movable = "T: type", *movables = "T: list(type) >= 1";
  const char *name = "tensor_name: string = ''", *rounds = "by_round: bool = false", *set = "process_set_id: int = 0",
             *blocking = "blocking: bool = false", *op = "reduce_op: int = 0",
             *prescale = "prescale_factor: string = '1'", *postscale = "postscale_factor: string = '1'",
             *root = "root_rank: int";
  const char *one = "tensor: T", *several = "tensors: T", *result = "output: T", *results = "outputs: T";
  const Definition all[] = {
      {"HorovodAllreduce",
       {reducible.c_str(), op, prescale, postscale, name, rounds, set, blocking},
       {one},
       {result},
       shapes::same},
      {"HorovodGroupedAllreduce",
       {reducibles.c_str(), op, prescale, postscale, name, rounds, set, blocking},
       {several},
       {results},
       shapes::same},
      {"HorovodAllgather", {movable, name, rounds, set, blocking}, {one}, {result}, shapes::gathered},
      {"HorovodGroupedAllgather", {movables, name, rounds, set, blocking}, {several}, {results}, shapes::gathered},
      {"HorovodBroadcast", {movable, root, name, rounds, set, blocking}, {one}, {result}, shapes::same},
      {"HorovodGroupedBroadcast", {movables, root, name, rounds, set, blocking}, {several}, {results}, shapes::same},
      {"HorovodAlltoall",
       {movable, "Tsplits: list({int32, int64}) >= 0", "Treceived: {int32, int64} = DT_INT32", name, rounds, set,
        blocking},
       {one, "splits: Tsplits"},
       {result, "received_splits: Treceived"},
       shapes::exchanged},
      {"HorovodReducescatter",
       {reducible.c_str(), op, prescale, postscale, name, rounds, set, blocking},
       {one},
       {result},
       shapes::scattered},
      {"HorovodGroupedReducescatter",
       {reducibles.c_str(), op, prescale, postscale, name, rounds, set, blocking},
       {several},
       {results},
       shapes::scattered_group},
      {"HorovodJoin", {blocking}, {}, {"last_joined: int32"}, shapes::scalar},
      {"HorovodBarrier", {set, blocking}, {}, {}, shapes::none},
      {"HorovodRank", {}, {}, {"rank: int32"}, shapes::scalar},
      {"HorovodLocalRank", {}, {}, {"local_rank: int32"}, shapes::scalar},
      {"HorovodSize", {set}, {}, {"size: int32"}, shapes::scalar},
      {"HorovodLocalSize", {}, {}, {"local_size: int32"}, shapes::scalar},
      {"HorovodProcessSetIncluded", {set}, {}, {"included: int32"}, shapes::scalar},
  };
  for (const Definition& definition : all) define(definition);
}

void compute(void* kernel, TF_OpKernelContext* context) {
  execute(*static_cast<const Kernel*>(kernel), context, nullptr);
}

void compute_async(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  execute(*static_cast<const Kernel*>(kernel), context, done);
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// TensorFlow passes no context to the function that creates a kernel, so each operation and slot has its own function.
template <int index>
void* create(TF_OpKernelConstruction* construction) {
  return make_kernel(kOperations[index % kOperationCount], index / kOperationCount, construction);
}

template <int... index>
constexpr auto creators(std::integer_sequence<int, index...>) {
  return std::array<tf::CreateFunction, sizeof...(index)>{create<index>...};
}

constexpr auto kCreators = creators(std::make_integer_sequence<int, kOperationCount * kSlots>());

// `arguments_on_host`: the tensors to reduce or move are in host memory, too.
void add_collective(int index, const char* device_type, int slot, bool arguments_on_host) {
  const Operation& operation = kOperations[index];
  const tf::CreateFunction create = kCreators[static_cast<size_t>(slot * kOperationCount + index)];
  TF_KernelBuilder* builder =
      asynchronous() ? tf::NewAsyncKernelBuilder(operation.type, device_type, create, compute_async, destroy)
                     : tf::NewKernelBuilder(operation.type, device_type, create, compute, destroy);
  if (std::strcmp(device_type, "CPU") != 0) {
    if (arguments_on_host) {
      tf::KernelBuilder_HostMemory(builder, operation.grouped ? "tensors" : "tensor");
      tf::KernelBuilder_HostMemory(builder, operation.grouped ? "outputs" : "output");
    }
    if (operation.op == HVD_FE_ALLTOALL) {
      tf::KernelBuilder_HostMemory(builder, "splits");
      tf::KernelBuilder_HostMemory(builder, "received_splits");
    }
  }
  add_kernel(operation.type, device_type, builder);
}

}  // namespace

std::string& problems() {
  static std::string text;
  return text;
}

bool asynchronous() {
  // The variable is for tests: it stands for a TensorFlow that uses another type for the callback.
  static const bool value = done_is_movable() && std::getenv("HOROVOD_TF_SYNCHRONOUS_KERNELS") == nullptr;
  return value;
}

void add_kernel(const char* operation, const char* device_type, TF_KernelBuilder* builder) {
  tf::Status status;
  tf::RegisterKernelBuilder((std::string(operation) + device_type).c_str(), builder, status);
  if (!status.ok()) problems() += std::string(operation) + " on " + device_type + ": " + tf::Message(status) + "\n";
}

void register_operations() {
  define_all();
  for (int i = 0; i < kOperationCount; ++i) add_collective(i, "CPU", 0, false);
  register_fact_kernels();
}

int register_device(const char* type, const char* refusal, const hvd_fe_table& table) {
  // TensorFlow keeps the pointer to the device type's name.
  static std::set<std::string> types;
  const auto [kept, is_new] = types.insert(type);
  const int slot = claim_slot(type, refusal, table);
  const bool on_device = device_in(slot).stream_source != StreamSource::kHostMemory;
  if (!is_new) return on_device ? 1 : 0;
  for (int i = 0; i < kOperationCount; ++i)
    if (kOperations[i].op != HVD_FE_JOIN && kOperations[i].op != HVD_FE_BARRIER)
      add_collective(i, kept->c_str(), slot, !on_device);
  return problems().empty() ? (on_device ? 1 : 0) : -1;
}

}  // namespace hvd_tf
