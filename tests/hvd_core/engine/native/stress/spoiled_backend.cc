// See spoiled_backend.h.
#include "spoiled_backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "check.h"
#include "hvd/backend.hpp"
#include "rng.h"

namespace hvd::native {
namespace {

constexpr uint64_t kMostElements = 1 << 16;  // of a buffer of a spoiled call

// Memory of a spoiled call: its numbers, and buffers that are large enough for them.
struct Own {
  std::vector<uint64_t> counts, in_counts, out_counts;
  std::vector<hvd_buf> in, out;
  std::vector<std::unique_ptr<char[]>> memory;

  char* room(uint64_t bytes) {
    memory.push_back(std::make_unique<char[]>(bytes + 1));
    return memory.back().get();
  }
};

// The rows that this rank has sent to itself, put right again when the exchange is over: then only the others are
// deceived.
struct Restored {
  char* to = nullptr;
  std::vector<char> bytes;
};

struct State {
  std::string path;
  const hvd_comm_api* real = nullptr;
  hvd_comm_api table;
  hvd_backend_api backend;
  std::mutex mutex;  // engines of the round before may still be ending
  Rng rng{1};
  uint64_t one_in = 0;
  std::map<hvd_comm, std::pair<int32_t, int32_t>> members;  // rank and size
  std::map<hvd_req, Restored> restored;
  std::vector<std::unique_ptr<Own>> own;  // until the next round
};

std::map<std::string, std::unique_ptr<State>>& states() {
  static auto* all = new std::map<std::string, std::unique_ptr<State>>;
  return *all;
}

uint64_t strange(Rng& rng, uint64_t right) {
  const std::vector<uint64_t> numbers{0,
                                      1,
                                      right + 1,
                                      right - 1,
                                      right * 2,
                                      ~right + 1,
                                      1u << 16,
                                      uint64_t{1} << 31,
                                      uint64_t{1} << 32,
                                      (uint64_t{1} << 32) + right,
                                      uint64_t{1} << 40,
                                      uint64_t{1} << 61,
                                      uint64_t{1} << 62,
                                      uint64_t{1} << 63,
                                      (uint64_t{1} << 63) - 1,
                                      ~uint64_t{0},
                                      rng.next()};
  return rng.pick(numbers);
}

// As the engine exchanges rows: as many numbers from each rank. Data of the program has counts per rank.
bool exchanges_numbers(const hvd_coll_args& a) {
  return a.out_counts == nullptr && a.dtype == HVD_INT64 && (a.coll == HVD_ALLGATHER || a.coll == HVD_ALLTOALL) &&
         a.n_bufs == 1 && a.in[0].bytes >= 8;
}

// Other numbers than the engine wants to send, in a call that is right otherwise.
void spoil_numbers(State& s, hvd_comm comm, hvd_coll_args& a, Own& own, Restored* restored) {
  const auto address = [](const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; };
  const uint64_t bytes = a.in[0].bytes, n = bytes / 8;
  char* const numbers = own.room(bytes);
  std::memcpy(numbers, address(a.in[0]), bytes);
  for (uint64_t k = 1 + s.rng.below(2); k > 0; --k) {
    char* const at = numbers + 8 * s.rng.below(n);
    uint64_t number;
    std::memcpy(&number, at, 8);
    number = strange(s.rng, number);
    std::memcpy(at, &number, 8);
  }
  if (!s.rng.one_in(3)) {
    const auto [rank, size] = s.members[comm];
    const uint64_t part = a.coll == HVD_ALLGATHER ? bytes : bytes / static_cast<uint64_t>(size);
    const char* const right = address(a.in[0]) + (a.coll == HVD_ALLGATHER ? 0 : part * static_cast<uint64_t>(rank));
    restored->to = address(a.out[0]) + part * static_cast<uint64_t>(rank);
    restored->bytes.assign(right, right + part);
  }
  own.in = {{numbers, 0, bytes}};
  a.in = own.in.data();
}

// Another collective than the engine wants: another type, size, root, kind.
void spoil_call(State& s, hvd_comm comm, hvd_coll_args& a, Own& own) {
  Rng& rng = s.rng;
  const auto size = static_cast<uint64_t>(s.members[comm].second);
  const auto counts_of = [&](const uint64_t* from, uint64_t n) {
    std::vector<uint64_t> counts(from, from + (from ? n : 0));
    if (!counts.empty() && rng.one_in(2)) {
      uint64_t& one = counts[rng.below(counts.size())];
      one = rng.pick(std::vector<uint64_t>{0, 1, one + 1, one * 2, one / 2, rng.below(1000)});
    }
    return counts;
  };
  own.counts = counts_of(a.counts, a.n_bufs);
  own.in_counts = counts_of(a.in_counts, a.n_bufs * size);
  own.out_counts = counts_of(a.out_counts, a.n_bufs * size);
  if (rng.one_in(3)) a.dtype = static_cast<int32_t>(rng.below(HVD_DTYPE_COUNT));
  if (rng.one_in(5)) a.op = static_cast<int32_t>(rng.below(HVD_REDOP_COUNT));
  if (rng.one_in(5)) a.root = static_cast<int32_t>(rng.below(size));
  if (rng.one_in(6)) {
    a.coll = rng.pick(std::vector<int32_t>{HVD_ALLREDUCE, HVD_BROADCAST, HVD_ALLGATHER, HVD_ALLTOALL, HVD_REDUCE});
    own.in_counts.clear(), own.out_counts.clear();
  }
  // The backend refuses sums that do not agree with each other, which would be no attack.
  const auto total = [&](const std::vector<uint64_t>& table, uint64_t i) {
    uint64_t sum = 0;
    for (uint64_t r = 0; r < size; ++r) sum += table[i * size + r];
    return sum;
  };
  for (uint64_t i = 0; i < a.n_bufs; ++i) {
    if (a.coll == HVD_ALLTOALL && !own.in_counts.empty()) own.counts[i] = total(own.in_counts, i);
    if (a.coll == HVD_REDUCESCATTER && !own.out_counts.empty()) own.counts[i] = total(own.out_counts, i);
    if (a.coll == HVD_ALLGATHER && !own.out_counts.empty())
      own.counts[i] = own.out_counts[i * size + static_cast<uint64_t>(s.members[comm].first)];
    own.counts[i] = std::min(own.counts[i], kMostElements);
    uint64_t most = own.counts[i] * size;
    if (!own.out_counts.empty()) most = std::max(most, total(own.out_counts, i));
    for (auto* list : {&own.in, &own.out}) list->push_back({own.room(16 * most), 0, 16 * most});
  }
  a.in = own.in.data(), a.out = own.out.data(), a.counts = own.counts.data();
  a.in_counts = own.in_counts.empty() ? nullptr : own.in_counts.data();
  a.out_counts = own.out_counts.empty() ? nullptr : own.out_counts.data();
}

void put_right(State& s, hvd_req request) {
  const auto found = s.restored.find(request);
  if (found == s.restored.end()) return;
  std::memcpy(found->second.to, found->second.bytes.data(), found->second.bytes.size());
  s.restored.erase(found);
}

// The functions of the table, for the N-th library.
template <int N>
struct Before {
  static inline State* s = nullptr;

  static hvd_rc create(const hvd_comm_args* a, hvd_comm* out, hvd_error* error) {
    const hvd_rc rc = s->real->create(a, out, error);
    std::lock_guard lock(s->mutex);
    if (*out) s->members[*out] = {a->rank, a->size};
    return rc;
  }
  static hvd_rc collective(hvd_comm comm, const hvd_coll_args* args, hvd_req* request, hvd_error* error) {
    hvd_coll_args a = *args;
    Restored restored;
    {
      std::lock_guard lock(s->mutex);
      ++SpoiledBackend::calls;
      if (s->one_in > 0 && s->rng.one_in(s->one_in) && a.n_bufs > 0 && a.coll != HVD_SEND && a.coll != HVD_RECV) {
        ++SpoiledBackend::spoiled;
        Own& own = *s->own.emplace_back(std::make_unique<Own>());
        if (exchanges_numbers(a) && !s->rng.one_in(8))
          spoil_numbers(*s, comm, a, own, &restored);
        else
          spoil_call(*s, comm, a, own);
      }
    }
    const hvd_rc rc = s->real->collective(comm, &a, request, error);
    if (restored.to == nullptr) return rc;
    if (rc == HVD_OK) std::memcpy(restored.to, restored.bytes.data(), restored.bytes.size());
    std::lock_guard lock(s->mutex);
    if (rc == HVD_INPROGRESS) s->restored[*request] = std::move(restored);
    return rc;
  }
  static hvd_rc req_test(hvd_req request, hvd_error* error) {
    const hvd_rc rc = s->real->req_test(request, error);
    std::lock_guard lock(s->mutex);
    if (rc == HVD_OK) put_right(*s, request);
    return rc;
  }
  static hvd_rc req_wait(hvd_req request, int64_t deadline_ns, hvd_error* error) {
    const hvd_rc rc = s->real->req_wait(request, deadline_ns, error);
    std::lock_guard lock(s->mutex);
    if (rc == HVD_OK) put_right(*s, request);
    return rc;
  }
  static hvd_rc req_free(hvd_req request) {
    {
      std::lock_guard lock(s->mutex);
      s->restored.erase(request);
    }
    return s->real->req_free(request);
  }

  static hvd_rc entry(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
    void* const library = ::dlopen(s->path.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, s->path + " cannot be opened");
    const auto real = reinterpret_cast<hvd_backend_entry_fn>(::dlsym(library, "hvd_backend_entry_v1"));
    const hvd_backend_api* backend = nullptr;
    const hvd_rc rc = real(host, &backend, error);
    require(rc == HVD_OK, s->path + " has no table");
    s->backend = *backend;
    s->real = backend->comm;
    s->table = *s->real;
    s->table.create = &create;
    s->table.split = nullptr;
    s->table.collective = &collective;
    s->table.req_test = &req_test;
    s->table.req_wait = &req_wait;
    s->table.req_free = &req_free;
    s->backend.comm = &s->table;
    *out = &s->backend;
    return HVD_OK;
  }
};

}  // namespace

void SpoiledBackend::begin(uint64_t seed, uint64_t one_in) {
  for (auto& [path, s] : states()) {
    std::lock_guard lock(s->mutex);
    s->rng = Rng(seed);
    s->one_in = one_in;
    if (one_in > 0) continue;
    s->own.clear();
    s->restored.clear();
    s->members.clear();
  }
}

std::string SpoiledBackend::before(const std::string& path, const std::string& name) {
  auto& s = states()[path];
  hvd_backend_entry_fn entry = name == "shm" ? &Before<0>::entry : &Before<1>::entry;
  if (!s) {
    s = std::make_unique<State>();
    s->path = path;
    (name == "shm" ? Before<0>::s : Before<1>::s) = s.get();
  }
  char text[40];
  std::snprintf(text, sizeof text, "entry:%p", reinterpret_cast<void*>(entry));
  return text;
}

}  // namespace hvd::native
