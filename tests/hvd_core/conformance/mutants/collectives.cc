// Faults of collectives: wrong values, wrong places, wrong times.
#include <algorithm>
#include <cmath>

#include "shim.h"

namespace mutants {
namespace {

using Collective = hvd_rc (*)(hvd_comm, const hvd_coll_args*, hvd_req*, hvd_error*);

void replace(Collective with) { ours.comm.collective = with; }

hvd_rc pass(hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) { return real->comm->collective(c, a, r, e); }

uint64_t elements_out(const hvd_coll_args* a) { return a->n_bufs ? a->counts[0] : 0; }

// ------------------------------------------------------------------------------------ arguments that are changed

const Add a1("drops_last_element", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    std::vector<uint64_t> counts(a->counts, a->counts + a->n_bufs);
    if (a->coll == HVD_ALLREDUCE)
      for (uint64_t& n : counts) n -= n > 1;
    mine.counts = counts.data();
    return pass(c, &mine, r, e);
  });
});

// 64-bit sums as two 32-bit ones: right until there is a carry.
const Add a2("narrows_int64", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    std::vector<uint64_t> counts(a->counts, a->counts + a->n_bufs);
    if (a->coll == HVD_ALLREDUCE && a->dtype == HVD_INT64) {
      mine.dtype = HVD_INT32;
      for (uint64_t& n : counts) n *= 2;
    }
    mine.counts = counts.data();
    return pass(c, &mine, r, e);
  });
});

const Add a3("ignores_root", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    mine.root = 0;
    return pass(c, &mine, r, e);
  });
});

const Add a4("ignores_prescale", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    mine.prescale = 0;
    return pass(c, &mine, r, e);
  });
});

const Add a5("ignores_postscale", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    mine.postscale = 0;
    return pass(c, &mine, r, e);
  });
});

// As a library does whose scale factor has the elements' type.
const Add a5b("factor_of_element_type", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    if (a->dtype == HVD_FLOAT16) {
      constexpr double step = 1.0 / (1 << 24), largest = 65504;  // the smallest float16 above zero, and the largest
      mine.prescale = std::min(std::round(a->prescale / step) * step, largest);
      if (a->prescale != 0 && mine.prescale == 0) mine.prescale = step;
    }
    return pass(c, &mine, r, e);
  });
});

const Add a6("ignores_offset", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    std::vector<hvd_buf> in(a->in, a->in + (a->in ? a->n_bufs : 0)), out(a->out, a->out + (a->out ? a->n_bufs : 0));
    for (hvd_buf& b : in) b.offset = 0;
    for (hvd_buf& b : out) b.offset = 0;
    if (a->in) mine.in = in.data();
    if (a->out) mine.out = out.data();
    return pass(c, &mine, r, e);
  });
});

// An allreduce that only waits for the others.
const Add a7("barrier_only", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    if (a->coll != HVD_ALLREDUCE) return pass(c, a, r, e);
    hvd_coll_args mine = *a;
    mine.coll = HVD_BARRIER;
    mine.dtype = 0;
    mine.n_bufs = 0;
    mine.in = mine.out = nullptr;
    mine.counts = nullptr;
    return pass(c, &mine, r, e);
  });
});

const Add a8("in_place_broken", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    if (a->coll == HVD_ALLREDUCE && a->n_bufs == 1 && at(a->in[0]) == at(a->out[0])) return HVD_OK;
    return pass(c, a, r, e);
  });
});

const Add a9("max_is_min", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    if (a->op == HVD_MAX) mine.op = HVD_MIN;
    return pass(c, &mine, r, e);
  });
});

const Add a10("only_first_of_list", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    if (mine.n_bufs > 1) mine.n_bufs = 1;
    return pass(c, &mine, r, e);
  });
});

// Not declared, and done as something else: the other side of the verdict.
const Add a11("undeclared_and_wrong", [] {
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) -> hvd_rc {
    const hvd_rc rc = real->comm->query(c, a, out, e);
    if (a->coll == HVD_ALLREDUCE && a->dtype == HVD_INT64) out->support = HVD_UNSERVED;
    return rc;
  };
  faults()["narrows_int64"].apply();
});

const Add a12("ignores_deadline", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    hvd_coll_args mine = *a;
    mine.deadline_ns = HVD_NO_DEADLINE;
    return pass(c, &mine, r, e);
  });
});

const Add a13("ignores_stream", [] {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    static hvd_stream own = nullptr;  // the first stream ever used
    if (!own) own = a->stream;
    hvd_coll_args mine = *a;
    mine.stream = own;
    return pass(c, &mine, r, e);
  });
});

bool in_group = false;
int calls_in_group = 0;

const Add a14("group_drops_second_call", [] {
  ours.comm.group_begin = [](hvd_comm c, hvd_error* e) {
    in_group = true;
    calls_in_group = 0;
    return real->comm->group_begin(c, e);
  };
  ours.comm.group_end = [](hvd_comm c, hvd_error* e) {
    in_group = false;
    return real->comm->group_end(c, e);
  };
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    if (in_group && ++calls_in_group == 2) return HVD_OK;
    return pass(c, a, r, e);
  });
});

// ------------------------------------------------------------------------------- results that are spoiled (host
// memory)

template <class Spoil>
void after(Spoil) {
  replace([](hvd_comm c, const hvd_coll_args* a, hvd_req*, hvd_error* e) {
    std::vector<char> mine;  // in place or not, what this rank put in
    if (a->n_bufs && a->in && a->in[0].base) mine.assign(at(a->in[0]), at(a->in[0]) + a->in[0].bytes);
    const hvd_rc rc = complete(c, a, e);
    if (rc == HVD_OK && a->n_bufs == 1) Spoil()(a, at(a->out[0]), mine);
    return rc;
  });
}

struct WritePastEnd {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const { out[a->out[0].bytes] = 0; }
};
struct WriteBefore {
  void operator()(const hvd_coll_args*, char* out, const std::vector<char>&) const { out[-1] = 0; }
};
struct NarrowFloat64 {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->coll != HVD_ALLREDUCE || a->dtype != HVD_FLOAT64) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) {
      double v;
      std::memcpy(&v, out + 8 * i, 8);
      v = static_cast<float>(v);
      std::memcpy(out + 8 * i, &v, 8);
    }
  }
};
struct CountOwnTwice {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>& mine) const {
    if (a->coll != HVD_ALLREDUCE || a->dtype != HVD_FLOAT32 || a->op != HVD_SUM) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) {
      float v, w;
      std::memcpy(&v, out + 4 * i, 4);
      std::memcpy(&w, mine.data() + 4 * i, 4);
      v += w;
      std::memcpy(out + 4 * i, &v, 4);
    }
  }
};
struct LoseNan {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->coll != HVD_ALLREDUCE || a->dtype != HVD_FLOAT32 || a->op != HVD_MAX) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) {
      float v;
      std::memcpy(&v, out + 4 * i, 4);
      if (std::isnan(v)) v = 1;
      std::memcpy(out + 4 * i, &v, 4);
    }
  }
};
struct LoseNegativeZero {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->coll != HVD_ALLREDUCE || a->dtype != HVD_FLOAT32 || a->op != HVD_SUM) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) {
      float v;
      std::memcpy(&v, out + 4 * i, 4);
      v += 0.0f;
      std::memcpy(out + 4 * i, &v, 4);
    }
  }
};
struct FloorAverage {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->op != HVD_AVG || a->dtype != HVD_INT8) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) out[i] = static_cast<char>(out[i] < 0 ? out[i] - 1 : out[i]);
  }
};
struct SloppyBool {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->coll != HVD_ALLREDUCE || a->dtype != HVD_BOOL) return;
    for (uint64_t i = 0; i < elements_out(a); ++i) out[i] = static_cast<char>(out[i] * 2);
  }
};
// Parts of an allgatherv one place too far: what comes of adding up the wrong counts.
struct WrongDisplacements {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    const uint64_t bytes = a->out[0].bytes;
    if (a->coll != HVD_ALLGATHER || !a->out_counts || bytes < 2) return;
    std::vector<char> all(out, out + bytes);
    const uint64_t shift = a->counts[0] ? bytes / 2 : 0;
    for (uint64_t i = 0; i < bytes; ++i) out[(i + shift) % bytes] = all[i];
  }
};
// One bit that differs: every rank within the tolerance, and no two alike.
struct BitsDiffer {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>&) const {
    if (a->coll == HVD_ALLREDUCE && a->dtype == HVD_FLOAT32 && a->op == HVD_SUM && elements_out(a) > 16)
      out[0] = static_cast<char>((out[0] & ~1) | (world_rank & 1));
  }
};
struct SpoilInput {
  void operator()(const hvd_coll_args* a, char* out, const std::vector<char>& mine) const {
    if (a->coll == HVD_ALLREDUCE && at(a->in[0]) != out && !mine.empty()) at(a->in[0])[0] ^= 1;
  }
};

const Add s1("writes_past_end", [] { after(WritePastEnd()); });
const Add s2("writes_before_beginning", [] { after(WriteBefore()); });
const Add s3("narrows_float64", [] { after(NarrowFloat64()); });
const Add s4("counts_own_twice", [] { after(CountOwnTwice()); });
const Add s5("loses_nan", [] { after(LoseNan()); });
const Add s6("loses_negative_zero", [] { after(LoseNegativeZero()); });
const Add s7("average_rounds_down", [] { after(FloorAverage()); });
const Add s8("bool_is_not_0_or_1", [] { after(SloppyBool()); });
const Add s9("wrong_displacements", [] { after(WrongDisplacements()); });
const Add s10("bits_differ_between_ranks", [] {
  learn_rank();
  after(BitsDiffer());
});
const Add s11("changes_its_input", [] { after(SpoilInput()); });

}  // namespace
}  // namespace mutants
