// The exchange of addresses through the store; see rendezvous.h.
#include "rendezvous.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "shared.h"
#include "wire_security/proof.h"

namespace hvd::tcp {
namespace {

constexpr uint64_t kVersion = 0x3130307063744856;  // "VHtcp001"
constexpr const char* kTableKey = "tcp/table";
constexpr uint32_t kMostSockets = 16, kMostKib = 65536;  // see the options

struct TableHead {
  uint64_t version;
  uint32_t size, ready;  // ready 0: `reason` says why there will be no communicator
  unsigned char secret[32];
  SharedSettings settings;
  char reason[512];
};

std::string key_of(int32_t rank) { return "tcp/addresses/" + std::to_string(rank); }

void publish(const CommInit& init, const TableHead& head, const std::vector<RankAddresses>& ranks) {
  std::string table(reinterpret_cast<const char*>(&head), sizeof head);
  if (!ranks.empty()) table.append(reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(RankAddresses));
  init.store.set(kTableKey, table);
}

// Deletes a key that has been read. The host deletes what is left with the rest of the communicator's keys.
void remove(const CommInit& init, const char* key) {
  try {
    init.store.del(key);
  } catch (const Error&) {
  }
}

RankAddresses fetch_addresses(const CommInit& init, int32_t r, int64_t deadline_ns) {
  const std::string key = key_of(r);
  RankAddresses addresses = {};
  std::string value;
  try {
    value = init.store.get(key.c_str(), deadline_ns, sizeof addresses);
  } catch (const Error& error) {
    if (error.code != HVD_E_TIMEOUT) throw;
    throw formatted_error(HVD_E_TIMEOUT, 0, "rank %d did not tell its address in time", world_rank(init, r));
  }
  remove(init, key.c_str());
  if (value.size() == sizeof addresses) std::memcpy(&addresses, value.data(), sizeof addresses);
  if (value.size() != sizeof addresses || addresses.count > kMaxEndpoints) {
    throw formatted_error(HVD_E_REMOTE, 0,
                          "rank %d told its addresses in %zu bytes instead of %zu: other version of this backend",
                          world_rank(init, r), value.size(), sizeof addresses);
  }
  addresses.reason[sizeof addresses.reason - 1] = '\0';
  if (addresses.count == 0) {
    throw formatted_error(HVD_E_REMOTE, 0, "rank %d: %s", world_rank(init, r), addresses.reason);
  }
  return addresses;
}

Directory collect(const CommInit& init, const RankAddresses& own, int64_t deadline_ns) {
  Directory directory;
  directory.ranks.assign(static_cast<size_t>(init.size), RankAddresses{});
  directory.ranks[0] = own;
  if (own.count == 0) throw Error(HVD_E_UNAVAILABLE, own.reason);
  for (int32_t r = 1; r < init.size; ++r) {
    RankAddresses& theirs = directory.ranks[static_cast<size_t>(r)];
    theirs = fetch_addresses(init, r, deadline_ns);
    if (theirs.encrypts != own.encrypts) {
      throw formatted_error(HVD_E_INVALID, 0, "HOROVOD_TLS=1 is set for rank %d, and not for rank %d",
                            world_rank(init, own.encrypts ? 0 : r), world_rank(init, own.encrypts ? r : 0));
    }
  }
  directory.settings = shared_settings();
  if (!random_bytes(directory.secret.data(), directory.secret.size())) {
    throw Error(HVD_E_UNAVAILABLE, "the system gives no random numbers for the communicator's secret");
  }
  return directory;
}

Directory exchange_as_first(const CommInit& init, const RankAddresses& own, int64_t deadline_ns) {
  TableHead head = {};
  head.version = kVersion;
  head.size = static_cast<uint32_t>(init.size);
  Directory directory;
  try {
    directory = collect(init, own, deadline_ns);
  } catch (const Error& error) {
    // The other ranks wait for the table, and would otherwise run into their deadline.
    head.reason[std::string_view(error.text).copy(head.reason, sizeof head.reason - 1)] = '\0';
    try {
      publish(init, head, {});
    } catch (const Error&) {
    }
    throw;
  }
  head.ready = 1;
  head.settings = directory.settings;
  std::copy(directory.secret.begin(), directory.secret.end(), head.secret);
  publish(init, head, directory.ranks);
  return directory;
}

Directory exchange_as_other(const CommInit& init, const RankAddresses& own, int64_t deadline_ns) {
  const std::string key = key_of(init.rank);
  init.store.set(key.c_str(), std::string(reinterpret_cast<const char*>(&own), sizeof own));
  if (own.count == 0) throw Error(HVD_E_UNAVAILABLE, own.reason);
  TableHead head = {};
  const size_t expected = sizeof head + static_cast<size_t>(init.size) * sizeof(RankAddresses);
  std::string table;
  try {
    table = init.store.get(kTableKey, deadline_ns, expected);
  } catch (const Error& error) {
    if (error.code != HVD_E_TIMEOUT) throw;
    remove(init, key.c_str());
    throw formatted_error(HVD_E_TIMEOUT, 0,
                          "rank %d did not publish all ranks' addresses in time; it, or a rank it waited for, is late",
                          world_rank(init, 0));
  }
  if (table.size() >= sizeof head) std::memcpy(&head, table.data(), sizeof head);
  if (table.size() < sizeof head || head.version != kVersion || head.size != static_cast<uint32_t>(init.size)) {
    throw formatted_error(HVD_E_REMOTE, 0,
                          "rank %d's table of addresses has another form (%zu bytes): the ranks run different versions "
                          "of this backend, or disagree about the communicator's size",
                          world_rank(init, 0), table.size());
  }
  if (head.ready == 0) {
    head.reason[sizeof head.reason - 1] = '\0';
    throw formatted_error(HVD_E_REMOTE, 0, "rank %d gave up: %s", world_rank(init, 0), head.reason);
  }
  if (table.size() != expected) {
    throw formatted_error(HVD_E_REMOTE, 0, "rank %d's table is incomplete", world_rank(init, 0));
  }
  Directory directory;
  directory.ranks.resize(static_cast<size_t>(init.size));
  std::memcpy(directory.ranks.data(), table.data() + sizeof head, directory.ranks.size() * sizeof(RankAddresses));
  std::copy(head.secret, head.secret + 32, directory.secret.begin());
  directory.settings = head.settings;
  const SharedSettings& s = head.settings;
  const bool usable = s.sockets_per_peer >= 1 && s.sockets_per_peer <= kMostSockets && s.chunk_kib >= 1 &&
                      s.chunk_kib <= kMostKib && s.small_kib <= kMostKib && s.ring_ranks >= 1;
  for (size_t r = 0; r < directory.ranks.size(); ++r) {
    RankAddresses& addresses = directory.ranks[r];
    addresses.reason[sizeof addresses.reason - 1] = '\0';
    if (usable && addresses.count >= 1 && addresses.count <= kMaxEndpoints) continue;
    throw formatted_error(HVD_E_REMOTE, 0, "rank %d's table has settings, or addresses of rank %d, that cannot be used",
                          world_rank(init, 0), world_rank(init, static_cast<int32_t>(r)));
  }
  return directory;
}

}  // namespace

int32_t world_rank(const CommInit& init, int32_t r) {
  return init.ranks.empty() ? r : init.ranks[static_cast<size_t>(r)];
}

Directory exchange_addresses(const CommInit& init, const RankAddresses& own, int64_t deadline_ns) {
  if (init.rank == 0) return exchange_as_first(init, own, deadline_ns);
  return exchange_as_other(init, own, deadline_ns);
}

void remove_addresses(const CommInit& init) { remove(init, kTableKey); }

}  // namespace hvd::tcp
