// Ranks as text in messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::base {

// "0-2, 5": the ranks in ascending order, as ranges.
std::string rank_list(std::vector<int32_t> ranks);

}  // namespace hvd::base
