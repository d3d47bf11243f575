// Operations that give facts about the job as tensors, looked up whenever a graph runs: HorovodRank and the like.
#pragma once

namespace hvd_tf {

// Registers their kernels for host memory. Their definitions are with the others.
void register_fact_kernels();

}  // namespace hvd_tf
