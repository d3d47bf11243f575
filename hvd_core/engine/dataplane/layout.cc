// See layout.h.
#include "engine/dataplane/layout.h"

#include <algorithm>
#include <map>

namespace hvd::dataplane {

Layout make_layout(std::vector<int32_t> members, const std::vector<int32_t>& world_hosts, int32_t my_world_rank) {
  Layout l;
  std::map<int32_t, int32_t> index;  // host index in the job -> index in hosts
  for (size_t r = 0; r < members.size(); ++r) {
    const int32_t host = world_hosts[static_cast<size_t>(members[r])];
    auto [at, fresh] = index.try_emplace(host, static_cast<int32_t>(l.hosts.size()));
    if (fresh) l.hosts.emplace_back();
    auto& there = l.hosts[static_cast<size_t>(at->second)];
    l.host_of.push_back(at->second);
    l.local_of.push_back(static_cast<int32_t>(there.size()));
    there.push_back(static_cast<int32_t>(r));
    if (members[r] == my_world_rank) l.me = static_cast<int32_t>(r);
  }
  l.members = std::move(members);
  if (!l.hosts.empty()) {
    const auto fewest = std::min_element(l.hosts.begin(), l.hosts.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    l.lanes = static_cast<int32_t>(fewest->size());
  }
  return l;
}

}  // namespace hvd::dataplane
