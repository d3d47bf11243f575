// Operations that give facts about the job as tensors, looked up whenever a graph runs: HorovodRank and the like.
#pragma once

#include <cstdint>
#include <string>

namespace hvd_tf {

// What the operation of this type gives, or a text in `problem`.
int32_t fact(const std::string& type, int process_set, std::string* problem);

// Registers their kernels for host memory. Their definitions are with the others.
void register_fact_kernels();

}  // namespace hvd_tf
