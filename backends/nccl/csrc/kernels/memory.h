// Reading and writing memory from a warp: groups of elements in registers, 16 bytes at a time where addresses allow it.
//
// For device and host alike. Every thread reads exactly those elements that it writes, all of a group before the first
// is written, so that both sides may be the same memory. Element types are dispatched per group, not per element.
#pragma once

#include "elements.h"
#include "kernel_args.h"

namespace hvd_kernels {

// A word of memory that is read or written at once.
template <uint32_t bytes>
struct Word;
template <>
struct Word<1> {
  using Type = uint8_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint64_t;
};
struct alignas(16) Words {
  uint32_t w[4];
};
template <>
struct Word<16> {
  using Type = Words;
};

// An address in the device's memory, or in the host's as far as the device reads it.
template <class T>
HVD_BOTH T* global(uint64_t p) {
#ifdef __CUDA_ARCH__
  return static_cast<T*>(__cvta_global_to_generic(p));
#else
  return reinterpret_cast<T*>(p);
#endif
}

// p is a multiple of sizeof(T) here. On the host memcpy says that other types of the same memory are meant, too.
template <class T>
HVD_BOTH T read(uint64_t p) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 16) {
    return bits_as<T>(*global<const uint4>(p));
  } else {
    return *global<const T>(p);
  }
#else
  T v;
  std::memcpy(&v, global<const void>(p), sizeof(T));
  return v;
#endif
}
template <class T>
HVD_BOTH void write(uint64_t p, T v) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 16) {
    *global<uint4>(p) = bits_as<uint4>(v);
  } else {
    *global<T>(p) = v;
  }
#else
  std::memcpy(global<void>(p), &v, sizeof(T));
#endif
}

// One element at any address.
template <class T>
HVD_BOTH T read_anywhere(uint64_t p) {
  if (p % sizeof(T) == 0) return read<T>(p);
  uint8_t bytes[sizeof(T)];
  HVD_UNROLL
  for (uint32_t i = 0; i < sizeof(T); ++i) bytes[i] = read<uint8_t>(p + i);
  T v;
  memcpy(&v, bytes, sizeof(T));
  return v;
}
template <class T>
HVD_BOTH void write_anywhere(uint64_t p, T v) {
  if (p % sizeof(T) == 0) return write(p, v);
  uint8_t bytes[sizeof(T)];
  memcpy(bytes, &v, sizeof(T));
  HVD_UNROLL
  for (uint32_t i = 0; i < sizeof(T); ++i) write(p + i, bytes[i]);
}

// ------------------------------------------------------------------------------------------------ groups of elements

// A thread has kRounds times kChunk elements of a group; those of a chunk lie together, the chunks of a warp's threads
// side by side.
constexpr uint32_t kChunk = 4, kRounds = 4;
constexpr uint32_t kGroup = kLanes * kChunk * kRounds;  // elements

// What a group's address must be a multiple of.
HVD_BOTH uint32_t group_alignment(uint32_t element_bytes) {
  return element_bytes * kChunk < 16 ? element_bytes * kChunk : 16;
}

// Types that tensors usually are of have groups; the others go one by one wherever they are computed in double, and in
// reductions, to keep the kernels small.
template <class E>
constexpr bool kHasGroups =
    std::is_floating_point_v<typename E::Value>
        ? sizeof(typename E::Mem) > 1
        : std::is_same_v<E, Plain<uint8_t>> || std::is_same_v<E, Plain<int32_t>> || std::is_same_v<E, Plain<int64_t>>;
template <class W>
HVD_BOTH bool has_groups(int32_t dtype) {
  return std::is_same_v<W, float> || dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 ||
         dtype == HVD_FLOAT64 || dtype == HVD_UINT8 || dtype == HVD_INT32 || dtype == HVD_INT64;
}

template <class W>
struct Group {
  W v[kRounds][kChunk];
};

template <class E, class W>
HVD_BOTH void load_group(Group<W>& group, uint64_t from, uint32_t lane) {
  using Mem = typename E::Mem;
  constexpr uint32_t kBytes = sizeof(Mem) * kChunk, kWord = kBytes < 16 ? kBytes : 16, kWords = kBytes / kWord;
  using Part = typename Word<kWord>::Type;
  struct Parts {
    Part part[kWords];
  };
  struct Elements {
    Mem at[kChunk];
  };
  Parts raw[kRounds];
  HVD_UNROLL
  for (uint32_t r = 0; r < kRounds; ++r) {
    HVD_UNROLL
    for (uint32_t i = 0; i < kWords; ++i) {
      raw[r].part[i] = read<Part>(from + (r * kLanes + lane) * uint64_t{kBytes} + i * kWord);
    }
  }
  HVD_UNROLL
  for (uint32_t r = 0; r < kRounds; ++r) {
    const Elements elements = bits_as<Elements>(raw[r]);
    HVD_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) group.v[r][i] = wide<E, W>(elements.at[i]);
  }
}

template <class E, class W>
HVD_BOTH void store_group(const Group<W>& group, uint64_t to, uint32_t lane) {
  using Mem = typename E::Mem;
  constexpr uint32_t kBytes = sizeof(Mem) * kChunk, kWord = kBytes < 16 ? kBytes : 16, kWords = kBytes / kWord;
  using Part = typename Word<kWord>::Type;
  struct Parts {
    Part part[kWords];
  };
  struct Elements {
    Mem at[kChunk];
  };
  HVD_UNROLL
  for (uint32_t r = 0; r < kRounds; ++r) {
    Elements elements;
    HVD_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) elements.at[i] = stored<E>(group.v[r][i]);
    const Parts raw = bits_as<Parts>(elements);
    HVD_UNROLL
    for (uint32_t i = 0; i < kWords; ++i) {
      write(to + (r * kLanes + lane) * uint64_t{kBytes} + i * kWord, raw.part[i]);
    }
  }
}

template <class W>
HVD_BOTH void load_group(Group<W>& group, int32_t dtype, uint64_t from, uint32_t lane) {
  with_element<W>(dtype, [&](auto element) {
    using E = decltype(element);
    if constexpr (std::is_same_v<W, float> || kHasGroups<E>) load_group<E>(group, from, lane);
  });
}
template <class W>
HVD_BOTH void store_group(const Group<W>& group, int32_t dtype, uint64_t to, uint32_t lane) {
  with_element<W>(dtype, [&](auto element) {
    using E = decltype(element);
    if constexpr (std::is_same_v<W, float> || kHasGroups<E>) store_group<E>(group, to, lane);
  });
}

// One element, where groups do not fit: at the beginning, at the end, and at addresses that are not aligned.
template <class W>
HVD_BOTH W load_one(int32_t dtype, uint64_t from) {
  W v = 0;
  with_element<W>(dtype, [&](auto element) {
    using E = decltype(element);
    v = wide<E, W>(read_anywhere<typename E::Mem>(from));
  });
  return v;
}
template <class W>
HVD_BOTH void store_one(int32_t dtype, uint64_t to, W v) {
  with_element<W>(dtype, [&](auto element) { write_anywhere(to, stored<decltype(element)>(v)); });
}

}  // namespace hvd_kernels
