// Making and ending windows: the calls of a communicator for them. See window.h and communicator.h.
#include "engine/plugins/window.h"

#include <cstring>
#include <utility>

#include "engine/plugins/backend.h"
#include "engine/plugins/backend_call.h"
#include "engine/plugins/communicator.h"
#include "engine/plugins/errors.h"
#include "engine/plugins/host_api.h"

namespace hvd::plugins {

Window::~Window() {
  hvd_error error = empty_error();
  if (answer_of(Call::comm_window_free, backend_->name(), &error,
                [&] { return backend_->comm_api()->window_free(handle_, &error); }) == HVD_OK)
    return;
  log(HVD_LOG_WARN, backend_->name(), __FILE__, __LINE__, error.text);
}

bool Communicator::has_windows() const { return HVD_HAS(api_, hvd_comm_api, window_create) && size_ > 1; }

// Throws BackendError if `call` does not answer HVD_OK. The thread that makes communicators makes these calls.
template <class F>
void Communicator::call_for_window(Call call, F&& table_call) {
  hvd_error error = empty_error();
  const hvd_rc rc = answer_of(call, backend_->name(), &error, [&] { return table_call(&error); });
  if (rc != HVD_OK) throw_backend_error(backend_->name(), name_of(call), rc, error);
}

WindowRef Communicator::create_window(const std::string& key, Store& store, uint64_t bytes, int64_t deadline_ns) {
  StoreScope scope{&store, key + "/", deadline_ns};
  hvd_window_args args;
  std::memset(&args, 0, sizeof(args));
  args.hdr = {sizeof(args), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  args.key = key.c_str();
  args.store = &scope;
  args.memory.bytes = bytes;
  args.deadline_ns = deadline_ns;
  hvd_window handle = nullptr;
  hvd_buf part{};
  call_for_window(Call::comm_window_create, [&](hvd_error* error) {
    const hvd_rc rc = api_->window_create(handle_, &args, &handle, &part, error);
    const bool whole = handle != nullptr && part.base != nullptr && part.bytes >= bytes;
    if (rc != HVD_OK || whole) return rc;
    return fill_error(error, HVD_E_ABI, "the backend reported success but returned no window of that size");
  });
  return std::make_shared<Window>(backend_, handle, part);
}

void Communicator::destroy_window(Window& window, int64_t deadline_ns) {
  call_for_window(Call::comm_window_destroy,
                  [&](hvd_error* error) { return api_->window_destroy(handle_, window.handle(), deadline_ns, error); });
}

}  // namespace hvd::plugins
