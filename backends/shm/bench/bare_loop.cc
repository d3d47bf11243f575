// A hand-written two-process allreduce; see bare_loop.h. Spins for the peer, which must have a processor of its own.
#include "bare_loop.h"

#include <algorithm>
#include <cstring>

namespace hvd::shm_bench {
namespace {

// Whole lines that the other process has read last are overwritten; see copy.cc of the backend.
void copy(void* to, const void* from, uint64_t n) {
#ifdef __x86_64__
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
#else
  std::memcpy(to, from, n);
#endif
}

void spin_until(const std::atomic<uint64_t>& word, uint64_t value) {
  while (word.load(std::memory_order_acquire) < value) {
  }
}

}  // namespace

void bare_allreduce(BareSegment* segment, int rank, float* data, uint64_t n, uint64_t* at) {
  BareSide& mine = segment->side[rank];
  BareSide& theirs = segment->side[1 - rank];
  const uint64_t per_chunk = std::min(kBareChunk / sizeof(float), std::max<uint64_t>((n / 8 + 31) / 32 * 32, 8192));
  const uint64_t chunks = (n + per_chunk - 1) / per_chunk;
  const auto begin = [&](uint64_t k) { return data + k * per_chunk; };
  const auto length = [&](uint64_t k) { return std::min(per_chunk, n - k * per_chunk); };
  for (uint64_t i = 0; i < chunks + 2; ++i) {
    if (i < chunks) {                                                                   // show the peer's half
      if (*at + i >= kBareSlots) spin_until(theirs.reduced, *at + i - kBareSlots + 3);  // then it has left that slot
      const uint64_t half = length(i) / 2, from = rank == 0 ? half : 0, to = rank == 0 ? length(i) : half;
      copy(mine.slot[(*at + i) % kBareSlots] + from * 4, begin(i) + from, (to - from) * 4);
      mine.shown.store(*at + i + 1, std::memory_order_release);
    }
    if (i >= 1 && i - 1 < chunks) {  // add up the own half
      const uint64_t k = i - 1;
      spin_until(theirs.shown, *at + k + 1);
      const uint64_t half = length(k) / 2, from = rank == 0 ? 0 : half, to = rank == 0 ? half : length(k);
      const float* other = reinterpret_cast<const float*>(theirs.slot[(*at + k) % kBareSlots]);
      float* result = reinterpret_cast<float*>(mine.slot[(*at + k) % kBareSlots]);
      float* own = begin(k);
      for (uint64_t j = from; j < to; j += 2048) {  // by blocks that stay in the first-level cache
        const uint64_t end = std::min(to, j + 2048);
#pragma GCC ivdep
        for (uint64_t i = j; i < end; ++i) own[i] += other[i];
        copy(result + j, own + j, (end - j) * 4);
      }
      mine.reduced.store(*at + k + 1, std::memory_order_release);
    }
    if (i >= 2) {  // take the peer's half
      const uint64_t k = i - 2;
      spin_until(theirs.reduced, *at + k + 1);
      const uint64_t half = length(k) / 2, from = rank == 0 ? half : 0, to = rank == 0 ? length(k) : half;
      copy(begin(k) + from, theirs.slot[(*at + k) % kBareSlots] + from * 4, (to - from) * 4);
    }
  }
  *at += chunks;
}

}  // namespace hvd::shm_bench
