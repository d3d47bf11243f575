// This rank's part of a window: memory that the other ranks of a communicator reach without copies.
//
// Its owners are the tensors on it and the process set, which lists it until all ranks have let go of it. It outlives
// the communicator as long as a tensor needs it. Any thread may delete it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "hvd/backend_abi.h"

namespace hvd::plugins {

class Backend;

class Window {
 public:
  // Communicator::create_window calls this.
  Window(std::shared_ptr<const Backend> backend, hvd_window handle, hvd_buf part)
      : backend_(std::move(backend)), handle_(handle), part_(part) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  void* data() const { return static_cast<char*>(part_.base) + part_.offset; }
  uint64_t bytes() const { return part_.bytes; }
  hvd_window handle() const { return handle_; }

 private:
  const std::shared_ptr<const Backend> backend_;
  const hvd_window handle_;
  const hvd_buf part_;
};

using WindowRef = std::shared_ptr<Window>;

}  // namespace hvd::plugins
