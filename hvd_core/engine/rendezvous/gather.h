// A value that the members of a group put together: each member brings a part, and when all parts are there the store
// publishes them as one value. A start of many ranks needs one request of each rank for it, and one of each reader.
//
// A part has bytes that are usually equal for all members (`common`), which the value holds once with the members that
// brought them, and bytes of its own. Parts with a label make a value of their own, for the readers of that label.
// The bytes of both are described in hvd_core/_bootstrap/store/__init__.py. Belongs to the store's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::rendezvous {

inline constexpr uint32_t kMostMembers = 1u << 20;

class Gather {
 public:
  struct Part {
    uint32_t of = 0;                // how many members the group has, as this part's sender says
    std::vector<uint32_t> members;  // whose part it is: one or more
    std::string label, common, own;
  };

  // Nothing for bytes of a wrong form.
  static std::optional<Part> parse(std::string_view payload);

  // Notes the part's members. False, and nothing has changed, if one of them is here already.
  bool add(const Part& part);
  void keep(Part part);
  bool has(uint32_t member) const { return member < here_.size() && here_[member]; }
  // Whether all members are here, as many as member 0 says, for the first time.
  bool is_complete() const;
  // The values by label, "" for the parts without one. The parts are let go.
  std::map<std::string, std::string> take();

 private:
  std::vector<bool> here_;
  uint32_t count_ = 0, of_ = 0;
  bool taken_ = false;
  std::vector<Part> parts_;
};

}  // namespace hvd::rendezvous
