// Reading a call of XLA: attributes, buffers, and the answers to it. No function here throws.
#pragma once

#include <hvd/frontend_abi.h>

#include <string>
#include <string_view>

#include "xla_ffi.h"

namespace hvd_jax {

// What the program says about a collective, in attributes of the call.
struct Attributes {
  std::string name;
  // `root_rank`: of a broadcast; of an allreduce, the one rank that gets the result, while the others get zeros; -1:
  // all.
  int32_t op = 0, process_set = 0, reduce_op = 0, root_rank = -1;
  double prescale = 1.0, postscale = 1.0;
};

// "" or the reason why these structures cannot be read.
std::string why_unreadable(const xla::CallFrame& frame);

// If XLA asks for metadata, answers and returns true.
bool answer_metadata(const xla::CallFrame& frame);

// "" or the attribute that is missing or of another type.
std::string read(const xla::Attributes& attributes, Attributes* out);

// The engine's number of an element type; -1 if the engine does not have it.
int32_t engine_type(xla::ElementType type);
size_t size_of(xla::ElementType type);

// A buffer as the engine takes it. False if its element type is unknown to the engine.
bool view(const xla::Buffer& buffer, hvd_fe_tensor* out);

// The code of XLA for an hvd_fe_status.
xla::Code code_of(int32_t status);

xla::Error* make_error(const xla::Api* api, xla::Code code, const std::string& text);

// The execution of the program that the call belongs to, and the local device on which it runs; -1 if XLA does not
// tell.
int64_t run_of(const xla::CallFrame& frame);
int32_t device_of(const xla::CallFrame& frame);

}  // namespace hvd_jax
