// Operations that return facts about the job as tensors, looked up whenever a graph runs: HorovodRank and others.
#pragma once

#include <cstdint>
#include <string>

namespace hvd_tf {

// The number that the operation of this type returns. If it fails, sets `problem` to the reason.
int32_t look_up_fact(const std::string& type, int process_set, std::string* problem);

// Registers the kernels of these operations, for host memory. registration.cc defines the operations.
void register_fact_kernels();

}  // namespace hvd_tf
