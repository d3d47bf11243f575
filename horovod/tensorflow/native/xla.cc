// A call from a program compiled by XLA. It waits in XLA's thread, and what it is given is a text that Python wrote:
//
//   OP REDUCE_OP PROCESS_SET ROOT PRESCALE POSTSCALE N { DTYPE NDIM DIMS... OUT_NDIM OUT_DIMS... }... TYPE NAME
//
// with DTYPE TensorFlow's number and NAME up to the end. Behind the N tensors comes a token, a scalar that each call
// takes from the one before it, so that all ranks make their calls in one order. See _xla.py.
#include "xla.h"

#include <dlfcn.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "execution.h"
#include "facts.h"
#include "tf_api.h"
#include "types.h"
#include "xla_status.h"

namespace hvd_tf {
namespace {

struct Collective {
  hvd_fe_call call{};
  std::string type, name;
  std::vector<hvd_fe_tensor> in, out;
  std::vector<std::vector<int64_t>> shapes;
  bool allocated = false;  // the results are the engine's, and copied
  int status = HVD_FE_OK;
  std::string message;

  bool parse(const char* text, size_t size) {
    std::istringstream words(std::string(text, size));
    words >> call.op >> call.reduce_op >> call.process_set >> call.root_rank >> call.prescale >> call.postscale >>
        call.n;
    if (!words || call.n < 0) return false;
    const auto n = static_cast<size_t>(call.n);
    shapes.reserve(2 * n);
    for (size_t i = 0; i < n; ++i) {
      int dtype = 0;
      words >> dtype;
      const Type* known = type_of(dtype);
      if (known == nullptr) return false;
      for (auto* tensors : {&in, &out}) {
        hvd_fe_tensor tensor{};
        words >> tensor.ndim;
        if (!words) return false;
        auto& shape = shapes.emplace_back(static_cast<size_t>(tensor.ndim));
        for (int64_t& dim : shape) words >> dim;
        tensor.shape = shape.data();
        tensor.dtype = known->hvd;
        tensors->push_back(tensor);
      }
    }
    words >> type;
    words.get();
    std::getline(words, name, '\0');
    call.struct_size = sizeof call;
    call.name = name.c_str();
    call.urgent = 1;
    allocated = call.op == HVD_FE_ALLGATHER || call.op == HVD_FE_ALLTOALL;
    return !type.empty();
  }

  // Carries the call out. "" or the text of a failure.
  std::string run() {
    const hvd_fe_table* table = engine();
    if (table == nullptr) return type + ": " + kNotInitialized;
    call.in = in.data();
    call.out = allocated ? nullptr : out.data();
    call.done = [](void* self, const hvd_fe_result* result) { static_cast<Collective*>(self)->finish(*result); };
    call.arg = this;
    table->run(&call);
    return status == HVD_FE_OK ? "" : type + ": " + message;
  }

  void finish(const hvd_fe_result& result) {
    status = result.status;
    message = result.message;
    if (status != HVD_FE_OK || !allocated) return;
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

constexpr const char* kUnreadable =
    "horovod: the text of a compiled call cannot be read; was it made by another version?";

// On the host: outs is an array, as there is always the token beside the results.
void collective_on_host(void* outs, const void** ins, const char* text, size_t size, void* status) {
  Collective collective;
  if (!collective.parse(text, size)) return fail(status, kUnreadable);
  void** const results = static_cast<void**>(outs);
  const auto n = static_cast<size_t>(collective.call.n);
  for (size_t i = 0; i < n; ++i) {
    collective.in[i].data = const_cast<void*>(ins[i]);
    collective.out[i].data = results[i];
  }
  std::memset(results[n], 0, sizeof(float));
  fail(status, collective.run());
}

// On a CUDA device: inputs, then outputs. The stream waits for the collective, the host only until it is enqueued. Not
// tried on a GPU yet.
void collective_on_cuda(void* stream, void** buffers, const char* text, size_t size, void* status) {
  Collective collective;
  if (!collective.parse(text, size)) return fail(status, kUnreadable);
  const hvd_fe_table* table = engine();
  if (table != nullptr && table->serves("cuda") == 0)
    return fail(status, collective.type +
                            ": no backend works on CUDA memory in this job, which a program compiled by XLA for a GPU "
                            "needs. Install hvd-backend-nccl, or use jit_compile=False.");
  int device = 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  const auto current = driver == nullptr ? nullptr : reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  if (current == nullptr || current(&device) != 0)
    return fail(status, collective.type + ": the current CUDA device could not be found out.");
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

// The text: the fact's type of operation, and a process set.
void fact_on_host(void* out, const void**, const char* text, size_t size, void* status) {
  std::istringstream words(std::string(text, size));
  std::string type, problem;
  int process_set = 0;
  words >> type >> process_set;
  *static_cast<int32_t*>(out) = fact(type, process_set, &problem);
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
