// The messages on an authenticated connection: a header and a payload. Little-endian, as both ends are.
#pragma once

#include <bit>
#include <cstdint>

#include "host_kernels/collective.h"

namespace hvd::tcp {

static_assert(std::endian::native == std::endian::little, "the wire format is the memory's");

constexpr uint32_t kWireMagic = 0x4d505448;    // "HTPM"
constexpr uint32_t kFailureNotice = 0xfa4e;    // the peer gives the communicator up; the payload is the reason
constexpr uint64_t kFailureNoticeBytes = 700;  // at most

struct Header {
  uint32_t magic;
  uint32_t kind;   // of payload, in the schedule's terms; or kFailureNotice, and `slice` is the error code
  uint32_t slice;  // which part of the whole
  uint32_t reserved;
  uint64_t seq;                          // number of the operation on this communicator
  uint64_t hash;                         // digest of the operation; the same on all ranks
  uint64_t at;                           // position of the payload within the part
  uint64_t bytes;                        // of payload that follow
  uint64_t total;                        // bytes of the part
  uint64_t words[host_kernels::kWords];  // the operation in words, for the message when ranks disagree
};
static_assert(sizeof(Header) == 96);

}  // namespace hvd::tcp
