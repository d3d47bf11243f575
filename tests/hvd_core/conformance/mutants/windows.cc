// Faults of windows, which L2.windows and L4.windows find.
#include <algorithm>
#include <mutex>
#include <set>

#include "shim.h"

namespace mutants {
namespace {

std::mutex parts_mutex;
std::map<hvd_window, hvd_buf> parts;
std::map<hvd_comm, std::set<hvd_window>> of_comm;

void learn_parts() {
  ours.comm.window_create = [](hvd_comm c, const hvd_window_args* a, hvd_window* out, hvd_buf* part, hvd_error* e) {
    const hvd_rc rc = real->comm->window_create(c, a, out, part, e);
    if (rc != HVD_OK) return rc;
    std::lock_guard lock(parts_mutex);
    parts[*out] = *part;
    of_comm[c].insert(*out);
    return rc;
  };
}

bool in_window(const hvd_buf& buf) {
  std::lock_guard lock(parts_mutex);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const auto& p) { return at(buf) >= at(p.second) && at(buf) < at(p.second) + p.second.bytes; });
}

// The second rank reduces a copy of its buffer in a window, and keeps the result to itself.
const Add w1("window_keeps_its_input", [] {
  learn_rank();
  learn_parts();
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    if (world_rank != 1 || a->coll != HVD_ALLREDUCE || a->n_bufs != 1 || !in_window(a->in[0])) {
      return real->comm->collective(c, a, r, e);
    }
    std::string copy(at(a->in[0]), a->in[0].bytes);
    hvd_buf buf{copy.data(), 0, copy.size()};
    hvd_coll_args mine = *a;
    mine.in = mine.out = &buf;
    *r = nullptr;
    return complete(c, &mine, e);
  };
});

const Add w2("window_destroy_clears", [] {
  learn_parts();
  ours.comm.window_destroy = [](hvd_comm c, hvd_window w, int64_t deadline_ns, hvd_error* e) {
    std::lock_guard lock(parts_mutex);
    std::memset(at(parts[w]), 0, parts[w].bytes);
    return real->comm->window_destroy(c, w, deadline_ns, e);
  };
});

const Add w3("window_dies_with_its_comm", [] {
  learn_parts();
  ours.comm.destroy = [](hvd_comm c, hvd_error* e) {
    const hvd_rc rc = real->comm->destroy(c, e);
    std::lock_guard lock(parts_mutex);
    for (hvd_window w : of_comm[c]) real->comm->window_free(w, nullptr);
    return rc;
  };
  ours.comm.window_free = [](hvd_window, hvd_error*) -> hvd_rc { return HVD_OK; };
});

}  // namespace
}  // namespace mutants
