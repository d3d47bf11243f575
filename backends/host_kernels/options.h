// A backend's own options, as the host knows them, and the one that all of these backends have. Any thread; after
// entry.
#pragma once

#include <cstdint>
#include <string>

#include "hvd/backend_abi.h"

namespace hvd::host_kernels {

// The option's text; false when it is unset.
bool text_option(const char* key, std::string* text);
// The option as a number within its range, or the fallback, with a warning when it is set to something else.
uint64_t number_option(const char* key, uint64_t fallback, uint64_t low, uint64_t high);
// Takes the kernels that option `isa` names. At entry, once the host is known.
void choose_kernels_by_option();

// What every entry function begins with: keeps the host's table, or says what is missing from it.
hvd_rc enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* err);

constexpr hvd_hdr header_of(uint32_t size) { return {size, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr}; }
constexpr hvd_option kIsaOption = {header_of(sizeof(hvd_option)),
                                   "isa",
                                   "str",
                                   "auto",
                                   "auto, base, avx2, avx512",
                                   "Instruction set of the reduction kernels. For tests; all ranks the same."};

}  // namespace hvd::host_kernels
