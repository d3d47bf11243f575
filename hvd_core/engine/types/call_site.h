// Where in the caller's program a call was made, as the binding notes it at the submission: two words, without text.
// Only the binding can make text of it (observe/program.h). Any thread.
#pragma once

#include <cstdint>

namespace hvd::types {

struct CallSite {
  const void* code = nullptr;  // the function's code, which the binding keeps alive; null: the site is not known
  int32_t at = 0;              // the place in it, in the binding's unit
};

}  // namespace hvd::types
