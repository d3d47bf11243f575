// The library's entry points. Loading the library (tf.load_op_library) registers the operations; Python then asks for
// problems and passes the engine's table. No function here throws, prints or ends the process.
#include <string>

#include "execution.h"
#include "registration.h"
#include "xla.h"
#include "xla_call_text.h"

namespace {

std::string& missing() {
  static std::string names;
  return names;
}

// The operations must be there when dlopen returns.
__attribute__((constructor)) void load() {
  missing() = hvd_tf::tf::resolve();
  if (missing().empty()) hvd_tf::register_operations();
}

}  // namespace

#define HVD_TF_EXPORT __attribute__((visibility("default")))

extern "C" {

// The names of functions that this version of TensorFlow does not export; "" if the library can be used.
HVD_TF_EXPORT const char* hvd_tf_missing() { return missing().c_str(); }

// The operations and kernels that TensorFlow refused to register, with its reasons; "" if it has refused nothing.
HVD_TF_EXPORT const char* hvd_tf_problems() { return hvd_tf::problems().c_str(); }

// 0 if kernels hold a thread of TensorFlow until their operation is done, see done.h.
HVD_TF_EXPORT int hvd_tf_asynchronous() { return hvd_tf::asynchronous() ? 1 : 0; }

HVD_TF_EXPORT void hvd_tf_set_engine(const hvd_fe_table* table) { hvd_tf::set_engine(table); }

// As register_device() in registration.h; -2 without an engine. One thread at a time.
HVD_TF_EXPORT int hvd_tf_register_device(const char* type, const char* refusal) {
  const hvd_fe_table* table = hvd_tf::engine();
  return table == nullptr ? -2 : hvd_tf::register_device(type, refusal, *table);
}

// The functions that are missing for programs that XLA compiles; "" if these can call this library.
HVD_TF_EXPORT const char* hvd_tf_register_with_xla() { return hvd_tf::register_with_xla().c_str(); }

// The message for a text of a compiled call that cannot be read; "" if it can be read. Valid until the next call on
// this thread. For tests.
HVD_TF_EXPORT const char* hvd_tf_xla_call_problem(const char* text, int is_collective) {
  thread_local std::string problem;
  hvd_tf::XlaCall call;
  problem = hvd_tf::read_xla_call(text, is_collective != 0, &call);
  return problem.c_str();
}
}
