// What the ranks of a communicator tell each other through the job's store before they are connected.
//
// Each rank gives a value to rank 0, which gives all of them to every rank: the store gets 2n requests, not n². For the
// thread that creates the communicator. Header-only, C++17.
#ifndef HVD_BACKEND_EXCHANGE_HPP_
#define HVD_BACKEND_EXCHANGE_HPP_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hvd/backend.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {

namespace detail {

inline std::string own_key(const std::string& key, size_t rank) { return key + "/" + std::to_string(rank); }

// The rank in the job of rank r of the communicator.
inline std::string job_rank(const CommInit& init, size_t r) {
  return "rank " + std::to_string(init.ranks.empty() ? static_cast<int32_t>(r) : init.ranks[r]);
}

inline std::string get_by(const CommInit& init, const std::string& key, int64_t deadline_ns, size_t expected,
                          const std::string& late) {
  try {
    return init.store.get(key.c_str(), deadline_ns, expected);
  } catch (const Error& error) {
    if (error.code != HVD_E_TIMEOUT) throw;
    throw Error(HVD_E_TIMEOUT, late);
  }
}

// 'T', then each value behind its length; or 'E' and the reason why there is no table.
inline std::string table_of(const std::vector<std::string>& values) {
  std::string table = "T";
  for (const std::string& value : values) {
    const uint64_t n = value.size();
    table.append(reinterpret_cast<const char*>(&n), sizeof n);
    table += value;
  }
  return table;
}

inline std::vector<std::string> values_of(const std::string& table) {
  std::vector<std::string> values;
  uint64_t n = 0;
  for (size_t at = 1; at + sizeof n <= table.size(); at += n) {
    std::memcpy(&n, table.data() + at, sizeof n);
    at += sizeof n;
    if (n > table.size() - at) break;
    values.push_back(table.substr(at, n));
  }
  return values;
}

inline std::vector<std::string> collect(const CommInit& init, const std::string& key, const std::string& mine,
                                        int64_t deadline_ns) {
  std::vector<std::string> values(static_cast<size_t>(init.size));
  values[0] = mine;
  for (size_t r = 1; r < values.size(); ++r) {
    const std::string own = own_key(key, r);
    values[r] =
        get_by(init, own, deadline_ns, mine.size() + 64, job_rank(init, r) + " did not come to the rendezvous in time");
    init.store.del(own.c_str());
  }
  return values;
}

}  // namespace detail

// The values of all ranks, by rank; collective. `key`: of this exchange, within the communicator's part of the store.
// Throws HVD_E_TIMEOUT, which names the late rank, or HVD_E_REMOTE with rank 0's reason if rank 0 has given up.
inline std::vector<std::string> exchange(const CommInit& init, const std::string& key, const std::string& mine,
                                         int64_t deadline_ns) {
  if (init.size == 1) return {mine};
  const std::string first = detail::job_rank(init, 0);
  if (init.rank == 0) {
    // A little earlier than the other ranks give up, so that the reason reaches them.
    const int64_t now = now_ns();
    const bool limited = deadline_ns > now && deadline_ns != HVD_NO_DEADLINE;
    const int64_t until = limited ? deadline_ns - (deadline_ns - now) / 16 : deadline_ns;
    try {
      const std::vector<std::string> values = detail::collect(init, key, mine, until);
      init.store.set(key.c_str(), detail::table_of(values));
      return values;
    } catch (const Error& error) {
      // The other ranks wait for the table, and would otherwise run into their deadline.
      init.store.set(key.c_str(), "E" + error.text);
      throw;
    }
  }
  init.store.set(detail::own_key(key, static_cast<size_t>(init.rank)).c_str(), mine);
  const std::string table =
      detail::get_by(init, key, deadline_ns, static_cast<size_t>(init.size) * (mine.size() + 64),
                     first + " has not answered in time; it, or a rank that it waited for, is late");
  if (!table.empty() && table[0] == 'E') throw Error(HVD_E_REMOTE, first + " gave up: " + table.substr(1));
  std::vector<std::string> values = detail::values_of(table);
  if (values.size() != static_cast<size_t>(init.size)) {
    throw Error(HVD_E_REMOTE, first + " sent " + std::to_string(values.size()) + " values for " +
                                  std::to_string(init.size) +
                                  " ranks: the ranks run different versions of this backend");
  }
  return values;
}

// Deletes the exchange from the store, on rank 0: once all ranks are known to have come further.
inline void forget_exchange(const CommInit& init, const std::string& key) {
  if (init.rank == 0 && init.size > 1) init.store.del(key.c_str());
}

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_EXCHANGE_HPP_
