// Where in the caller's program a call was made, as the binding notes it at the submission: four words, without text.
// Only the binding can make text of it (watch/snapshot.h). Any thread.
#pragma once

#include <cstdint>

namespace hvd::base {

// `at` is the place in a function's code, in the binding's unit. The binding keeps the code alive. The function may be
// a helper, so the line of the program that called it is noted too.
struct CallSite {
  const void* code = nullptr;    // null: the site is not known
  const void* caller = nullptr;  // the next function of the user's program outwards; null: there is none
  int32_t at = 0, caller_at = 0;
};

}  // namespace hvd::base
