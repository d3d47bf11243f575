// The library's entry points. Loading it, by tf.load_op_library, registers the operations; Python then looks for
// problems and hands over the engine's table. Nothing here throws, prints or ends the process.
#include <string>

#include "execution.h"
#include "registration.h"
#include "xla.h"

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

// Functions that this version of TensorFlow does not export, by name; "" when the library can be used.
HVD_TF_EXPORT const char* hvd_tf_missing() { return missing().c_str(); }

// What TensorFlow refused to register; "".
HVD_TF_EXPORT const char* hvd_tf_problems() { return hvd_tf::problems().c_str(); }

// 0 where kernels hold a thread of TensorFlow's until their operation is done, see done.h.
HVD_TF_EXPORT int hvd_tf_asynchronous() { return hvd_tf::asynchronous() ? 1 : 0; }

HVD_TF_EXPORT void hvd_tf_set_engine(const hvd_fe_table* table) { hvd_tf::set_engine(table); }

// See register_device() in registration.h. -2: no engine. One thread at a time.
HVD_TF_EXPORT int hvd_tf_register_device(const char* type) {
  const hvd_fe_table* table = hvd_tf::engine();
  return table == nullptr ? -2 : hvd_tf::register_device(type, *table);
}

// What is missing for programs that XLA compiles; "" when they can call us.
HVD_TF_EXPORT const char* hvd_tf_register_with_xla() { return hvd_tf::register_with_xla().c_str(); }

// A call that Python refused: lets the other ranks' matching call fail too. Nothing without an engine.
HVD_TF_EXPORT void hvd_tf_poison(int op, int reduce_op, const char* name, int process_set, const char* text) {
  const hvd_fe_table* table = hvd_tf::engine();
  if (table != nullptr) table->poison(op, reduce_op, name, process_set, text);
}
}
