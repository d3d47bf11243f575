// Calls from programs that XLA compiled. Each waits in XLA's thread. Which operation to run is said by a text that
// Python wrote (xla_call_text.h). Behind the tensors comes a token, a scalar that each call takes from the call before
// it, so that all ranks make their calls in one order. See _xla.py.
#include "xla.h"

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "execution.h"
#include "facts.h"
#include "kernel.h"
#include "tf_api.h"
#include "xla_call_text.h"
#include "xla_status.h"

namespace hvd_tf {
namespace {

const Operation* operation_of(const std::string& type) {
  for (const Operation& operation : kOperations)
    if (type == operation.type) return &operation;
  return nullptr;
}

struct Collective {
  XlaCall text;
  hvd_fe_call call{};
  std::vector<hvd_fe_tensor> in, out;
  bool engine_allocates = false;  // the engine allocates the results, which are then copied
  int status = HVD_FE_OK;
  std::string message;

  // "", or the reason why `words` are not the text of a collective.
  std::string read(std::string_view words) {
    std::string problem = read_xla_call(words, true, &text);
    if (!problem.empty()) return problem;
    const Operation* operation = operation_of(text.operation);
    if (operation == nullptr)
      return "horovod: a function that XLA compiled calls the operation " + text.operation +
             ", which this libhvd_tf.so does not have. It is older than the hvd-core that made the call.";
    for (const XlaTensor& tensor : text.tensors) {
      in.push_back(view(tensor.dtype, tensor.shape));
      out.push_back(view(tensor.dtype, tensor.result_shape));
    }
    call.struct_size = sizeof call;
    call.op = operation->op;
    call.name = text.name.c_str();
    call.process_set = text.process_set;
    call.reduce_op = text.reduce_op;
    call.root_rank = text.root_rank;
    call.prescale = text.prescale;
    call.postscale = text.postscale;
    call.n = static_cast<int32_t>(in.size());
    call.urgent = 1;
    engine_allocates = call.op == HVD_FE_ALLGATHER || call.op == HVD_FE_ALLTOALL;
    return "";
  }

  static hvd_fe_tensor view(int dtype, const std::vector<int64_t>& shape) {
    hvd_fe_tensor tensor{};
    tensor.dtype = dtype;
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.shape = shape.data();
    return tensor;
  }

  // Carries the call out. Returns "" or the text of a failure.
  std::string run() {
    const hvd_fe_table* table = engine();
    if (table == nullptr) return text.operation + ": " + kNotInitialized;
    call.in = in.data();
    call.out = engine_allocates ? nullptr : out.data();
    call.done = [](void* self, const hvd_fe_result* result) { static_cast<Collective*>(self)->finish(*result); };
    call.arg = this;
    table->run(&call);
    return status == HVD_FE_OK ? "" : text.operation + ": " + message;
  }

  void finish(const hvd_fe_result& result) {
    status = result.status;
    message = result.message;
    if (status != HVD_FE_OK || !engine_allocates) return;
    for (int i = 0; i < result.n_outputs; ++i) {
      const hvd_fe_tensor& got = result.outputs[i];
      const hvd_fe_tensor& wanted = out[static_cast<size_t>(i)];
      const bool same = got.ndim == wanted.ndim &&
                        std::memcmp(got.shape, wanted.shape, sizeof(int64_t) * static_cast<size_t>(got.ndim)) == 0;
      if (!same) {
        status = HVD_FE_INVALID_ARGUMENT;
        message = "Inside jit_compile=True all ranks must give equally many rows, but " + std::to_string(got.shape[0]) +
                  " came together where " + std::to_string(wanted.shape[0]) +
                  " were expected. Move the operation out of the compiled function, or use jit_compile=False.";
        return;
      }
      status = result.copy(&result, i, &wanted);
      if (status != HVD_FE_OK) message = "the result could not be copied to its memory";
    }
  }
};

void fail(void* status, const std::string& text) {
  if (!text.empty()) xla_status::set_failure(status, text);
}

// On the host. `outs` is an array, because the token comes beside the results.
void collective_on_host(void* outs, const void** ins, const char* text, size_t size, void* status) {
  Collective collective;
  const std::string problem = collective.read({text, size});
  if (!problem.empty()) return fail(status, problem);
  void** const results = static_cast<void**>(outs);
  const auto n = static_cast<size_t>(collective.call.n);
  for (size_t i = 0; i < n; ++i) {
    collective.in[i].data = const_cast<void*>(ins[i]);
    collective.out[i].data = results[i];
  }
  std::memset(results[n], 0, sizeof(float));
  fail(status, collective.run());
}

// On a CUDA device. `buffers` are the inputs, then the outputs. The stream waits for the collective; the host waits
// only until it is enqueued. Not tried on a GPU yet.
void collective_on_cuda(void* stream, void** buffers, const char* text, size_t size, void* status) {
  Collective collective;
  const std::string problem = collective.read({text, size});
  if (!problem.empty()) return fail(status, problem);
  const hvd_fe_table* table = engine();
  if (table != nullptr && table->serves("cuda") == 0)
    return fail(status, collective.text.operation +
                            ": no backend works on CUDA memory in this job, which a program compiled by XLA for a GPU "
                            "needs. Install hvd-backend-nccl, or use jit_compile=False.");
  int device = 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  const auto current = driver == nullptr ? nullptr : reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  if (current == nullptr || current(&device) != 0)
    return fail(status, collective.text.operation + ": the current CUDA device could not be found out.");
  const auto n = static_cast<size_t>(collective.call.n);
  for (size_t i = 0; i < n; ++i) {
    collective.in[i].data = buffers[i];
    collective.out[i].data = buffers[n + 1 + i];
    for (hvd_fe_tensor* tensor : {&collective.in[i], &collective.out[i]}) {
      tensor->device_type = "cuda";
      tensor->device_id = device;
      tensor->has_stream = 1;
      tensor->stream = stream;
    }
  }
  fail(status, collective.run());
}

void fact_on_host(void* out, const void**, const char* text, size_t size, void* status) {
  XlaCall call;
  std::string problem = read_xla_call({text, size}, false, &call);
  *static_cast<int32_t*>(out) = problem.empty() ? look_up_fact(call.operation, call.process_set, &problem) : -1;
  fail(status, problem);
}

std::string register_all() {
  const auto global =
      reinterpret_cast<void* (*)()>(tf::symbol_of("libtensorflow_cc.so", "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  using Register = void (*)(void*, const std::string& name, void* function, const std::string& platform);
  const auto add = reinterpret_cast<Register>(
      tf::symbol_of("libtensorflow_cc.so",
                    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
                    "PvS8_"));
  if (global == nullptr || add == nullptr) return "xla::CustomCallTargetRegistry";
  if (!xla_status::works()) return "XlaCustomCallStatus as this release knows it";
  add(global(), "hvd_collective", reinterpret_cast<void*>(&collective_on_host), "Host");
  add(global(), "hvd_fact", reinterpret_cast<void*>(&fact_on_host), "Host");
  add(global(), "hvd_collective", reinterpret_cast<void*>(&collective_on_cuda), "CUDA");
  return "";
}

}  // namespace

const std::string& register_with_xla() {
  static const std::string missing = register_all();
  return missing;
}

}  // namespace hvd_tf
