// The library's entry points: handlers for XLA, and functions for Python. No function here throws, prints or ends the
// process.
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "collective.h"
#include "frame.h"

#define HVD_JAX_EXPORT __attribute__((visibility("default")))

namespace {

using hvd_jax::xla::CallFrame;

hvd_jax::xla::Error* answer(CallFrame* frame, hvd_jax::xla::Error* (*handle)(CallFrame*)) {
  if (hvd_jax::answer_metadata(*frame)) return nullptr;
  try {
    const std::string problem = hvd_jax::why_unreadable(*frame);
    if (!problem.empty()) return hvd_jax::make_error(frame->api, hvd_jax::xla::Code::kInternal, problem);
    return handle(frame);
  } catch (const std::exception& error) {  // no memory
    return hvd_jax::make_error(frame->api, hvd_jax::xla::Code::kInternal, error.what());
  }
}

}  // namespace

extern "C" {

HVD_JAX_EXPORT void hvd_jax_set_engine(const hvd_fe_table* table) { hvd_jax::set_engine(table); }

// A collective. Attributes: frame.h.
HVD_JAX_EXPORT hvd_jax::xla::Error* hvd_jax_collective(hvd_jax::xla::CallFrame* frame) {
  return answer(frame, hvd_jax::begin_collective);
}

// The same for programs on a GPU, which this library does not serve.
HVD_JAX_EXPORT hvd_jax::xla::Error* hvd_jax_refuse(hvd_jax::xla::CallFrame* frame) {
  return answer(frame, hvd_jax::refuse_collective);
}

// Copies its one argument to its one result, on another thread and later: shows whether this library and this XLA
// understand each other, before a program relies on it.
HVD_JAX_EXPORT hvd_jax::xla::Error* hvd_jax_probe(hvd_jax::xla::CallFrame* frame) {
  namespace xla = hvd_jax::xla;
  if (hvd_jax::answer_metadata(*frame)) return nullptr;
  std::string problem = hvd_jax::why_unreadable(*frame);
  hvd_jax::Attributes attributes;
  if (problem.empty()) problem = hvd_jax::read(frame->attributes, &attributes);
  if (problem.empty() && (frame->arguments.count != 1 || frame->results.count != 1))
    problem = "one argument is expected";
  if (!problem.empty()) return hvd_jax::make_error(frame->api, xla::Code::kInternal, problem);
  const auto* in = static_cast<const xla::Buffer*>(frame->arguments.values[0]);
  const auto* out = static_cast<const xla::Buffer*>(frame->results.values[0]);
  size_t bytes = hvd_jax::size_of(in->type);
  for (int64_t i = 0; i < in->rank; ++i) bytes *= static_cast<size_t>(in->dims[i]);
  xla::OfFuture future{xla::head_of<xla::OfFuture>(), nullptr};
  if (xla::Error* error = frame->api->create_future(&future)) return error;
  frame->future = future.future;
  auto copy = [api = frame->api, future, bytes, from = in->data, to = out->data]() mutable {
    std::memcpy(to, from, bytes);
    api->set_available(&future);
  };
  try {
    std::thread(copy).detach();
  } catch (const std::exception&) {  // there may be no further thread
    copy();
  }
  return nullptr;
}
}
