// TensorFlow's C functions as a table, found in the process that has loaded TensorFlow, and its statuses. Any thread.
#pragma once

#include <string>

#include "tf_abi.h"

namespace tf_gcu {

struct TensorFlow {
#define TF_GCU_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  TF_GCU_TENSORFLOW_FUNCTIONS(TF_GCU_DECLARE)
#undef TF_GCU_DECLARE
};

// Fills the table. Returns "" or what is missing. Once per process; later calls do nothing.
std::string find_tensorflow();

// Only after find_tensorflow() has returned "".
const TensorFlow& tensorflow();

// A status that is deleted at the end of the block.
class Status {
 public:
  Status() : status_(tensorflow().TF_NewStatus()) {}
  ~Status() { tensorflow().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() { return status_; }  // NOLINT: it stands for the status
  bool ok() const { return tensorflow().TF_GetCode(status_) == TF_OK; }

 private:
  TF_Status* status_;
};

}  // namespace tf_gcu
