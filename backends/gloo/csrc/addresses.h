// Which address of this host a communicator listens at. Any thread.
//
// Gloo binds a communicator to one address, so the right one has to be known before any rank connects: every rank tells
// the others its addresses, and chooses among them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::gloo_backend {

// This host's addresses with their networks, "10.0.0.5/24 fd00::5/64 127.0.0.1/8": the likeliest to be reachable from
// elsewhere first. `wanted`: a comma list of interfaces, networks or addresses, any of which will do; empty: all.
// Throws HVD_E_INVALID, with the list of interfaces, if none matches; `source`: the setting that `wanted` comes from.
std::string list_addresses(const std::string& wanted, const std::string& source);

// The address for `rank` of a communicator whose members have `lists` and are on `hosts`.
std::string choose_address(const std::vector<std::string>& lists, const std::vector<int32_t>& hosts, int32_t rank,
                           bool wanted);

}  // namespace hvd::gloo_backend
