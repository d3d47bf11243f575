// Every collective for a communicator of one rank: copies, and reductions that only scale. See plan.h.
#include <cstring>

#include "plan.h"

namespace hvd::host_kernels {
namespace {

// Copies one stream to another of the same length, run by run.
void copy_stream(Stream& from, Stream& to) {
  for (uint64_t done = 0; done < to.bytes;) {
    const Piece run = to.first.take(to.bytes - done);
    uint64_t got = 0;
    while (got < run.bytes) {
      const Piece part = from.first.take(run.bytes - got);
      if (part.p != run.p + got) std::memmove(run.p + got, part.p, part.bytes);
      got += part.bytes;
    }
    done += run.bytes;
  }
}

}  // namespace

void run_alone(Plan& plan) {
  if (plan.reduce == nullptr || (plan.scale.pre == 1.0 && plan.scale.post == 1.0)) {
    if (!plan.in.empty() && plan.in[0].bytes == plan.out[0].bytes) copy_stream(plan.in[0], plan.out[0]);
    return;
  }
  Stream& from = plan.in[0];
  Stream& to = plan.out[0];
  for (uint64_t done = 0; done < to.bytes;) {
    const Piece run = from.first.take(to.bytes - done);
    const void* source = run.p;
    plan.reduce(to.first.take(run.bytes).p, &source, 1, run.bytes / plan.elem, plan.scale);
    done += run.bytes;
  }
}

}  // namespace hvd::host_kernels
