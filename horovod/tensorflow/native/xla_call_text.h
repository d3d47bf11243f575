// The text by which a program that XLA compiled tells this library which operation to run. Its format, and the code
// that writes it: _xla.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_tf {

// The version of the format that this library reads. _xla.py has the number as well.
inline constexpr int kXlaCallVersion = 1;

struct XlaTensor {
  int dtype = 0;  // the engine's number
  std::vector<int64_t> shape, result_shape;
};

struct XlaCall {
  std::string operation;  // the type of a TensorFlow operation
  int process_set = 0;
  int reduce_op = 0;
  int root_rank = 0;
  double prescale = 1, postscale = 1;
  std::vector<XlaTensor> tensors;
  std::string name;
};

// Reads `text` into `call`. Returns "", or a message for the user that says what cannot be read, and, where the
// versions differ, which side is older. `is_collective`: `tensors` and `name` must be there.
std::string read_xla_call(std::string_view text, bool is_collective, XlaCall* call);

}  // namespace hvd_tf
