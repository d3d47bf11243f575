// See stall.h.
#include "engine/observe/stall.h"

#include <map>
#include <string>

#include "engine/observe/log.h"

namespace hvd::observe {

bool report_stall(const std::vector<control::Stalled>& stalled, int64_t now, int64_t warn_ns, int64_t abort_ns) {
  constexpr size_t kNames = 6;
  struct Missing {
    std::vector<std::string> names;
    bool too_long = false;
  };
  std::map<int32_t, Missing> by_rank;
  bool too_long = false;
  for (const auto& s : stalled) {
    bool over = abort_ns > 0 && now - s.since >= abort_ns;
    too_long |= over;
    for (int32_t r : s.missing) {
      by_rank[r].names.push_back(s.name);
      by_rank[r].too_long |= over;
    }
  }
  std::string text =
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for "
      "remainder of ranks for more than " +
      std::to_string(warn_ns / 1'000'000'000) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of "
      "ranks is submitting tensors, which will cause deadlock. Missing ranks:";
  for (const auto& [rank, m] : by_rank) {
    text += "\n" + std::to_string(rank) + (m.too_long ? "!" : "") + ": [";
    for (size_t i = 0; i < m.names.size() && i < kNames; ++i) text += (i ? ", " : "") + m.names[i];
    text += m.names.size() > kNames ? " ...]" : "]";
  }
  log(Level::Warning, text);
  if (too_long)
    log(Level::Error, "One or more rank (marked by \"!\") is stalled for longer than " +
                          std::to_string(abort_ns / 1'000'000'000) + " seconds. Will shutdown.");
  return too_long;
}

}  // namespace hvd::observe
