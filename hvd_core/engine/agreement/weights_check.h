// HOROVOD_CHECK_CONSISTENCY: finds ranks that begin training with different weights, because the first broadcast is
// missing. The first request that reduces the gradient of a weight carries a digest of that weight (SignatureFields).
//
// A difference is a finding, and never fails a request. A program may broadcast its weights after the first step (some
// callbacks do), so a finding is reported when the program submits the same name again: the second step has
// begun. A broadcast of as many elements withdraws the finding. Used by the coordinator only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/messages.h"

namespace hvd::agreement {

class WeightsCheck {
 public:
  // Compares the weights that ranks have sent with their submissions of one name.
  void compare(SetId set, const std::string& name, const std::vector<std::pair<Rank, SigRef>>& said);
  // Ranks have agreed on this request.
  void agreed(const Signature& request);

  bool has_findings() const { return !findings_.empty(); }
  // A rank has submitted `name` again. Returns the warning about the findings in that set, whose findings are then
  // forgotten; empty if there is no finding about `name`.
  std::string submitted_again(SetId set, const std::string& name);
  // The job ends: the warnings that are left.
  std::vector<std::string> take_all();

 private:
  struct Finding {
    std::string name;  // of the request
    std::string parameter;
    uint64_t elements = 0;
    std::vector<std::vector<Rank>> groups;  // ranks with equal values, in order of their first ranks
  };
  struct OfSet {
    std::string remedy;
    std::vector<Finding> findings;
  };

  std::string take(SetId set);

  std::map<SetId, uint64_t> compared_;  // number of weights
  std::map<SetId, OfSet> findings_;
};

}  // namespace hvd::agreement
