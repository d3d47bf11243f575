// Which members of a process set share a host. A value, equal on all members except for `me`.
//
// Host order is the order of each host's first member; within a host, members stand in the set's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::dataplane {

struct Layout {
  int32_t me = 0;                           // this process's rank within the set
  std::vector<int32_t> members;             // world rank by set rank
  std::vector<std::vector<int32_t>> hosts;  // set ranks by host
  std::vector<int32_t> host_of, local_of;   // by set rank: index into hosts, index within that host
  // The number of lanes: the fewest members that any host has. Lane j connects the j-th members of all hosts. A member
  // with a higher local index is in no lane.
  int32_t lanes = 0;

  int32_t size() const { return static_cast<int32_t>(members.size()); }
  int32_t host_count() const { return static_cast<int32_t>(hosts.size()); }
  int32_t my_host() const { return host_of[static_cast<size_t>(me)]; }
  int32_t my_local() const { return local_of[static_cast<size_t>(me)]; }
  const std::vector<int32_t>& neighbours() const { return hosts[static_cast<size_t>(my_host())]; }
};

// `members`: world ranks in set order; `world_hosts`: host index by world rank; `my_world_rank` is among the members.
Layout make_layout(std::vector<int32_t> members, const std::vector<int32_t>& world_hosts, int32_t my_world_rank);

}  // namespace hvd::dataplane
