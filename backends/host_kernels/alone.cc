// Every collective for a communicator of one rank: copies, and reductions that only scale. See collective.h.
#include <cstring>

#include "collective.h"

namespace hvd::host_kernels {
namespace {

// Copies one list to another of the same length, span by span.
void copy_list(BufferList& from, BufferList& to) {
  for (uint64_t done = 0; done < to.bytes;) {
    const Span run = to.first.take(to.bytes - done);
    uint64_t got = 0;
    while (got < run.bytes) {
      const Span part = from.first.take(run.bytes - got);
      if (part.p != run.p + got) std::memmove(run.p + got, part.p, part.bytes);
      got += part.bytes;
    }
    done += run.bytes;
  }
}

}  // namespace

void run_alone(Collective& collective) {
  if (collective.reduce == nullptr || (collective.scale.pre == 1.0 && collective.scale.post == 1.0)) {
    if (!collective.in.empty() && collective.in[0].bytes == collective.out[0].bytes)
      copy_list(collective.in[0], collective.out[0]);
    return;
  }
  BufferList& from = collective.in[0];
  BufferList& to = collective.out[0];
  for (uint64_t done = 0; done < to.bytes;) {
    const Span run = from.first.take(to.bytes - done);
    const void* source = run.p;
    collective.reduce(to.first.take(run.bytes).p, &source, 1, run.bytes / collective.elem, collective.scale);
    done += run.bytes;
  }
}

}  // namespace hvd::host_kernels
