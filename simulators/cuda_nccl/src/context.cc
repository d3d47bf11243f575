// Contexts are made by the first retain and end with the last release; how many came into being is counted.
#include "context.h"

#include <map>
#include <mutex>
#include <vector>

#include "counters.h"
#include "runtime.h"

namespace cusim {
namespace {

std::atomic<bool> inited{false};
thread_local std::vector<Context*> stack;

}  // namespace

CUresult enter() {
  if (sim::on_stream_thread()) return CUDA_ERROR_NOT_PERMITTED;
  if (!inited || sim::is_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

CUresult enter(Context** out) {
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  Context* context = current();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->broken != 0) return static_cast<CUresult>(context->broken.load());
  *out = context;
  return CUDA_SUCCESS;
}

CUresult initialise() {
  if (sim::on_stream_thread()) return CUDA_ERROR_NOT_PERMITTED;
  if (sim::enter() != topsSuccess) return CUDA_ERROR_NOT_INITIALIZED;
  if (sim::settings().devices.empty()) return CUDA_ERROR_NO_DEVICE;
  inited = true;
  return CUDA_SUCCESS;
}

bool initialised() { return inited && !sim::is_forked_child(); }

Context& primary(int device) {
  static std::mutex mutex;
  static auto* all = new std::map<int, Context>;
  const std::lock_guard<std::mutex> lock(mutex);
  Context& context = (*all)[device];
  context.device = device;
  return context;
}

bool is_device(int device) { return device >= 0 && device < static_cast<int>(sim::settings().devices.size()); }

CUresult retain(int device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  static Counter& contexts = counter("contexts");
  if (primary(device).retained++ == 0) ++contexts;
  return CUDA_SUCCESS;
}

CUresult release(int device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = primary(device);
  if (!context.active()) return CUDA_ERROR_INVALID_CONTEXT;
  --context.retained;
  return CUDA_SUCCESS;
}

Context* current() { return stack.empty() ? nullptr : stack.back(); }

void set_current(Context* context) {
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
}

void push(Context* context) { stack.push_back(context); }

Context* pop() {
  if (stack.empty()) return nullptr;
  Context* context = stack.back();
  stack.pop_back();
  return context;
}

}  // namespace cusim
