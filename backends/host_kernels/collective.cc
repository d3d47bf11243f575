// Reading hvd_coll_args; see collective.h.
#include "collective.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "support.h"

namespace hvd::host_kernels {
namespace {

// Fills a Collective from the arguments, whose arrays belong to the caller.
struct Reader {
  const hvd_coll_args& a;
  const uint32_t rank, size;
  Collective* op;

  uint64_t count(uint64_t i) const { return a.counts[i]; }
  // ALLGATHER, REDUCESCATTER, ALLTOALL: elements of buffer i that belong to rank r.
  uint64_t part(const uint64_t* table, uint64_t i, uint32_t r) const {
    if (table != nullptr) return table[i * size + r];
    return a.coll == HVD_ALLGATHER ? count(i) : count(i) / size;
  }

  // All ranks' parts of buffer i together. A wrapped sum would pass for a small buffer.
  uint64_t sum(const uint64_t* table, const char* name, uint64_t i) const {
    int64_t total = 0;
    for (uint32_t r = 0; r < size; ++r) {
      if (!__builtin_add_overflow(total, part(table, i, r), &total)) continue;
      throw formatted_error(HVD_E_INVALID, 0,
                            "%s[%" PRIu64 "]: the part of rank %u, %" PRIu64
                            " elements, is more than an address space holds",
                            name, i, r, part(table, i, r));
    }
    return static_cast<uint64_t>(total);
  }

  // The address of a buffer that must hold `elements`; NULL if `elements` is 0. Throws if the buffer is too small.
  char* address(const hvd_buf* list, const char* name, uint64_t i, uint64_t elements) const {
    uint64_t need;
    if (__builtin_mul_overflow(elements, uint64_t{op->elem}, &need)) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "%s[%" PRIu64 "]: %" PRIu64 " elements are more than an address space holds", name, i,
                            elements);
    }
    if (need == 0) return nullptr;
    if (list == nullptr || list[i].base == nullptr) {
      throw formatted_error(HVD_E_INVALID, 0, "%s[%" PRIu64 "] is NULL, but has %" PRIu64 " elements", name, i,
                            elements);
    }
    if (list[i].bytes < need) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "%s[%" PRIu64 "] has %" PRIu64 " bytes; %" PRIu64 " elements of %s need %" PRIu64, name, i,
                            list[i].bytes, elements, dtype_name(a.dtype), need);
    }
    return static_cast<char*>(list[i].base) + list[i].offset;
  }

  void reduction();
  void broadcast();
  void allgather();
  void reducescatter();
  void alltoall();
  void digest();
};

// A running hash; multiply-and-fold mixes every bit of x into every bit of the result.
uint64_t mix(uint64_t h, uint64_t x) {
  const unsigned __int128 m = static_cast<unsigned __int128>(h ^ x ^ 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
  return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64) ^ (x << 1);
}

uint64_t bits_of(double d) {
  uint64_t u;
  std::memcpy(&u, &d, sizeof u);
  return u;
}

bool reduces(int32_t coll) { return coll == HVD_ALLREDUCE || coll == HVD_REDUCE || coll == HVD_REDUCESCATTER; }
bool rooted(int32_t coll) { return coll == HVD_REDUCE || coll == HVD_BROADCAST; }

void Reader::reduction() {  // ALLREDUCE, REDUCE
  const bool wants = a.coll == HVD_ALLREDUCE || static_cast<uint32_t>(a.root) == rank;
  op->own_copy = wants;
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    op->in[0].add(address(a.in, "in", i, count(i)), count(i) * op->elem);
    if (wants) op->out[0].add(address(a.out, "out", i, count(i)), count(i) * op->elem);
  }
  op->extent = op->show = op->in[0].bytes;
  // Below about 512 bytes per buffer a kernel call for each costs more than one more copy of everything.
  op->packed = op->in[0].spans.size() > 4 && op->extent / op->in[0].spans.size() < 512;
}

void Reader::broadcast() {
  const bool is_root = static_cast<uint32_t>(a.root) == rank;
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    char* to = nullptr;
    if (!is_root || (a.out != nullptr && a.out[i].base != nullptr)) to = address(a.out, "out", i, count(i));
    if (!is_root) {
      op->out[0].add(to, count(i) * op->elem);
      op->extent += count(i) * op->elem;
      continue;
    }
    char* from = address(a.in, "in", i, count(i));
    if (to == nullptr) to = from;
    op->own_copy = op->own_copy || to != from;
    op->in[0].add(from, count(i) * op->elem);
    op->out[0].add(to, count(i) * op->elem);
    op->extent += count(i) * op->elem;
  }
  op->show = op->extent;
}

void Reader::allgather() {
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    if (part(a.out_counts, i, rank) != count(i)) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "counts[%" PRIu64 "] is %" PRIu64 ", but out_counts expects %" PRIu64
                            " elements from this rank (%u)",
                            i, count(i), part(a.out_counts, i, rank), rank);
    }
    char* const to = address(a.out, "out", i, sum(a.out_counts, "out", i));
    char* from = address(a.in, "in", i, count(i));
    uint64_t at = 0;
    for (uint32_t r = 0; r < size; ++r) {
      const uint64_t bytes = part(a.out_counts, i, r) * op->elem;
      op->out[r].add(to + at, bytes);
      if (r == rank) {
        // In place: this rank's part already stands where it belongs.
        if (from == to) from = to + at;
        op->own_copy = op->own_copy || (bytes > 0 && from != to + at);
        op->in[0].add(from, bytes);
      }
      at += bytes;
    }
  }
  for (uint32_t r = 0; r < size; ++r) op->extent = std::max(op->extent, op->out[r].bytes);
  op->show = op->extent;
}

void Reader::reducescatter() {
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    const uint64_t total = sum(a.out_counts, "in", i);
    if (total != count(i)) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "the ranks' parts of in[%" PRIu64 "] add up to %" PRIu64 " elements, it has %" PRIu64, i,
                            total, count(i));
    }
    char* const from = address(a.in, "in", i, total);
    char* to = address(a.out, "out", i, part(a.out_counts, i, rank));
    if (from != nullptr && from == to && size > 1) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "reducescatter of several ranks does not work in place (in[%" PRIu64 "] equals out)", i);
    }
    uint64_t at = 0;
    for (uint32_t r = 0; r < size; ++r) {
      const uint64_t bytes = part(a.out_counts, i, r) * op->elem;
      op->in[r].add(from + at, bytes);
      at += bytes;
    }
    op->out[0].add(to, part(a.out_counts, i, rank) * op->elem);
  }
  for (uint32_t r = 0; r < size; ++r) {
    op->extent = std::max(op->extent, op->in[r].bytes);
    op->show += op->in[r].bytes;
  }
  op->own_copy = true;
}

void Reader::alltoall() {
  op->exchange = true;
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    const uint64_t sent = sum(a.in_counts, "in", i), received = sum(a.out_counts, "out", i);
    if (sent != count(i)) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "the parts of in[%" PRIu64 "] add up to %" PRIu64 " elements, it has %" PRIu64, i, sent,
                            count(i));
    }
    char* from = address(a.in, "in", i, sent);
    char* to = address(a.out, "out", i, received);
    if (from != nullptr && from == to && size > 1) {
      throw formatted_error(HVD_E_INVALID, 0,
                            "alltoall of several ranks does not work in place (in[%" PRIu64 "] equals out)", i);
    }
    for (uint32_t r = 0; r < size; ++r) {
      const uint64_t give = part(a.in_counts, i, r) * op->elem, get = part(a.out_counts, i, r) * op->elem;
      op->in[r].add(from, give);
      op->out[r].add(to, get);
      from += give;
      to += get;
    }
  }
}

// All ranks must come to the same hash. ALLTOALL's sizes differ by nature and are compared pair by pair instead.
void Reader::digest() {
  uint64_t elements = 0, h = 0;
  const bool per_rank = a.coll == HVD_ALLGATHER || a.coll == HVD_REDUCESCATTER;
  for (uint64_t i = 0; i < a.n_bufs && a.coll != HVD_ALLTOALL; ++i) {
    for (uint32_t r = 0; r < (per_rank ? size : 1); ++r) {
      const uint64_t n = per_rank ? part(a.out_counts, i, r) : count(i);
      elements += n;
      h = mix(h, n);
    }
  }
  const bool reducing = reduces(a.coll);
  const uint64_t kind = static_cast<uint64_t>(a.coll) | static_cast<uint64_t>(a.dtype) << 8 |
                        static_cast<uint64_t>(reducing ? a.op : 0) << 16 |
                        static_cast<uint64_t>(rooted(a.coll) ? a.root : 0) << 32;
  op->words[0] = kind;
  op->words[1] = elements;
  op->words[2] = a.n_bufs;
  op->words[3] = reducing ? bits_of(op->scale.pre) : 0;
  op->words[4] = reducing ? bits_of(op->scale.post) : 0;
  for (const uint64_t w : op->words) h = mix(h, w);
  op->hash = h;
}

}  // namespace

bool is_served(const hvd_coll_args& a) {
  if (a.coll == HVD_BARRIER) return true;
  if (a.coll < 0 || a.coll >= HVD_COLL_COUNT || a.coll == HVD_SEND || a.coll == HVD_RECV) return false;
  if (dtype_size(a.dtype) == 0) return false;
  if (!reduces(a.coll)) return true;
  if (a.op < 0 || a.op >= HVD_REDOP_COUNT || (a.op == HVD_AVG && a.dtype == HVD_BOOL)) return false;
  return kernels().reduce[a.dtype][a.op] != nullptr;
}

Error why_not_served(const hvd_coll_args& a) {
  if (a.coll < 0 || a.coll >= HVD_COLL_COUNT) {
    return formatted_error(HVD_E_INVALID, 0, "there is no collective number %d", a.coll);
  }
  if (a.coll == HVD_SEND || a.coll == HVD_RECV) {
    return formatted_error(HVD_E_UNSUPPORTED, 0, "this backend has no %s", coll_name(a.coll));
  }
  if (dtype_size(a.dtype) == 0) return formatted_error(HVD_E_INVALID, 0, "there is no dtype number %d", a.dtype);
  if (a.op < 0 || a.op >= HVD_REDOP_COUNT) {
    return formatted_error(HVD_E_INVALID, 0, "there is no reduction number %d", a.op);
  }
  if (a.op == HVD_AVG && a.dtype == HVD_BOOL) return Error(HVD_E_INVALID, "bool has no average");
  return formatted_error(HVD_E_UNSUPPORTED, 0, "this backend moves %s but does not reduce it", dtype_name(a.dtype));
}

void read_collective(const hvd_coll_args& a, uint32_t rank, uint32_t size, Collective* op) {
  const bool barrier = a.coll == HVD_BARRIER;
  if (!barrier && a.n_bufs > 0 && a.counts == nullptr) {
    throw formatted_error(HVD_E_INVALID, 0, "counts is NULL, but there are %" PRIu64 " buffers", a.n_bufs);
  }
  if (rooted(a.coll) && (a.root < 0 || static_cast<uint32_t>(a.root) >= size)) {
    throw formatted_error(HVD_E_INVALID, 0, "root %d is not a rank of this communicator of %u", a.root, size);
  }
  op->coll = a.coll;
  op->dtype = a.dtype;
  op->root = a.root;
  op->elem = barrier ? 1 : dtype_size(a.dtype);
  op->scale = {a.prescale == 0.0 ? 1.0 : a.prescale, a.postscale == 0.0 ? 1.0 : a.postscale,
               reduces(a.coll) && a.op == HVD_AVG ? size : 1};
  op->reduce = reduces(a.coll) ? kernels().reduce[a.dtype][a.op] : nullptr;
  op->extent = op->show = 0;
  op->packed = op->own_copy = op->exchange = false;
  op->barrier = barrier;
  op->in.resize(size);
  op->out.resize(size);
  for (BufferList& s : op->in) s.clear();
  for (BufferList& s : op->out) s.clear();

  Reader reader{a, rank, size, op};
  switch (a.coll) {
    case HVD_ALLREDUCE:
      reader.reduction();
      break;
    case HVD_REDUCE:
      reader.reduction();
      break;
    case HVD_BROADCAST:
      reader.broadcast();
      break;
    case HVD_ALLGATHER:
      reader.allgather();
      break;
    case HVD_REDUCESCATTER:
      reader.reducescatter();
      break;
    case HVD_ALLTOALL:
      reader.alltoall();
      break;
    default:
      break;
  }
  reader.digest();
  for (BufferList& s : op->in) s.rewind();
  for (BufferList& s : op->out) s.rewind();
}

void describe(const uint64_t w[kWords], char* text, uint64_t n) {
  const int32_t coll = static_cast<int32_t>(w[0] & 0xff), dtype = static_cast<int32_t>(w[0] >> 8 & 0xff);
  const int32_t op = static_cast<int32_t>(w[0] >> 16 & 0xff), root = static_cast<int32_t>(w[0] >> 32);
  double pre, post;
  std::memcpy(&pre, &w[3], sizeof pre);
  std::memcpy(&post, &w[4], sizeof post);
  char detail[96] = "";
  if (reduces(coll)) std::snprintf(detail, sizeof detail, " %s, factors %g and %g,", op_name(op), pre, post);
  if (coll == HVD_BARRIER) {
    std::snprintf(text, n, "barrier");
  } else if (rooted(coll)) {
    std::snprintf(text, n, "%s%s of %" PRIu64 " %s in %" PRIu64 " buffers, root %d", coll_name(coll), detail, w[1],
                  dtype_name(dtype), w[2], root);
  } else {
    std::snprintf(text, n, "%s%s of %" PRIu64 " %s in %" PRIu64 " buffers", coll_name(coll), detail, w[1],
                  dtype_name(dtype), w[2]);
  }
}

}  // namespace hvd::host_kernels
