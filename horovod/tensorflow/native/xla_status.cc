// The layout of XLA's status, and the check of it. See xla_status.h.
#include "xla_status.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "tf_api.h"

namespace hvd_tf::xla_status {
namespace {

using Status = std::optional<std::string>;

// TensorFlow returns a std::optional<std::string_view> by value. The order of the view's two words depends on the C++
// standard library.
struct View {
  uintptr_t words[2];
  bool engaged;
};

}  // namespace

void set_failure(void* status, const std::string& text) { *static_cast<Status*>(status) = text; }

bool works() {
  using Read = void (*)(View* result, const void* status);
  const auto read = reinterpret_cast<Read>(
      tf::symbol_of("libtensorflow_cc.so", "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"));
  if (read == nullptr) return false;
  Status status;
  View view{};
  read(&view, &status);
  if (view.engaged) return false;
  set_failure(&status, "a text that is too long to be kept within the string itself");
  view = {};
  read(&view, &status);
  const auto begin = reinterpret_cast<uintptr_t>(status->data());
  const bool found = (view.words[0] == begin && view.words[1] == status->size()) ||
                     (view.words[1] == begin && view.words[0] == status->size());
  return view.engaged && found;
}

}  // namespace hvd_tf::xla_status
