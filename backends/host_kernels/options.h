// The options of a backend for host memory, and the option that all of these backends have. Any thread; after entry.
#pragma once

#include <cstdint>

#include "hvd/backend.hpp"

namespace hvd::host_kernels {

// The option as a number from `low` to `high`. If the option is set to anything else: `fallback`, with a warning.
uint64_t number_option(const char* key, uint64_t fallback, uint64_t low, uint64_t high);
// Takes the kernels that the option `isa` names. At entry.
void choose_kernels_by_option();

constexpr hvd_option kIsaOption =
    make_option("isa", "str", "auto", "auto, base, avx2, avx512",
                "Instruction set of the reduction kernels. For tests; all ranks the same.");

}  // namespace hvd::host_kernels
