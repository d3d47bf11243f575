// See exchange.h.
#include "exchange.h"

#include <cstring>

namespace hvd::gloo_backend {
namespace {

std::string card_key(const std::string& name, size_t rank) { return "gloo/" + name + "/" + std::to_string(rank); }
std::string table_key(const std::string& name) { return "gloo/" + name; }

// A table begins with 'T' and holds each text behind its length; one that begins with 'E' holds a reason instead.
std::string pack(const std::vector<std::string>& texts) {
  std::string table = "T";
  for (const std::string& text : texts) {
    const uint64_t n = text.size();
    table.append(reinterpret_cast<const char*>(&n), sizeof n);
    table += text;
  }
  return table;
}

std::vector<std::string> unpack(const std::string& table) {
  std::vector<std::string> texts;
  uint64_t n = 0;
  for (size_t at = 1; at + sizeof n <= table.size(); at += n) {
    std::memcpy(&n, table.data() + at, sizeof n);
    at += sizeof n;
    if (n > table.size() - at) break;
    texts.push_back(table.substr(at, n));
  }
  return texts;
}

}  // namespace

std::vector<std::string> Exchange::collect(const std::string& name, const std::string& mine) {
  std::vector<std::string> texts(init_.ranks.size());
  texts[0] = mine;
  for (size_t r = 1; r < texts.size(); ++r) {
    const std::string key = card_key(name, r);
    try {
      texts[r] = init_.store.get(key.c_str(), init_.deadline_ns);
    } catch (const Error& e) {
      if (e.code != HVD_E_TIMEOUT) throw;
      throw Error(e.code, "rank " + std::to_string(init_.ranks[r]) + " did not come to Gloo's rendezvous in time",
                  HVD_EF_COMM_DEAD);
    }
    init_.store.del(key.c_str());
  }
  return texts;
}

std::vector<std::string> Exchange::round(const std::string& name, const std::string& mine) {
  const std::string table = table_key(name), card = card_key(name, static_cast<size_t>(init_.rank));
  if (init_.rank == 0) {
    try {
      const std::vector<std::string> texts = collect(name, mine);
      init_.store.set(table.c_str(), pack(texts));
      tables_.push_back(table);
      return texts;
    } catch (const Error& e) {
      // The other ranks wait for the table, and would otherwise run into their deadline.
      init_.store.set(table.c_str(), "E" + e.text);
      throw;
    }
  }
  init_.store.set(card.c_str(), mine);
  std::string got;
  try {
    got = init_.store.get(table.c_str(), init_.deadline_ns);
  } catch (const Error& e) {
    init_.store.del(card.c_str());
    if (e.code != HVD_E_TIMEOUT) throw;
    throw Error(e.code,
                "rank " + std::to_string(init_.ranks[0]) +
                    " did not publish all ranks' addresses in time; it, or one it waited for, is late",
                HVD_EF_COMM_DEAD);
  }
  if (got[0] == 'E') {
    throw Error(HVD_E_REMOTE, "rank " + std::to_string(init_.ranks[0]) + " gave up: " + got.substr(1),
                HVD_EF_COMM_DEAD);
  }
  const std::vector<std::string> texts = unpack(got);
  if (texts.size() != init_.ranks.size()) {
    throw Error(HVD_E_REMOTE,
                "rank " + std::to_string(init_.ranks[0]) + "'s table of addresses holds " +
                    std::to_string(texts.size()) + " entries for " + std::to_string(init_.ranks.size()) +
                    " ranks: the ranks run different versions of this backend",
                HVD_EF_COMM_DEAD);
  }
  return texts;
}

void Exchange::forget() {
  for (const std::string& table : tables_) init_.store.del(table.c_str());
  tables_.clear();
}

}  // namespace hvd::gloo_backend
