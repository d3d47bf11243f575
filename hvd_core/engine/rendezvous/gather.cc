// See gather.h.
#include "engine/rendezvous/gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd::rendezvous {
namespace {

void put_number(std::string& to, size_t number) {
  const auto v = static_cast<uint32_t>(number);
  to.append(reinterpret_cast<const char*>(&v), sizeof v);
}

// Reads numbers and texts from the front of `rest`; `fine` turns false where they go beyond its end.
struct Reader {
  std::string_view rest;
  bool fine = true;

  uint32_t number() {
    uint32_t v = 0;
    if (rest.size() < sizeof v) return fine = false, v;
    std::memcpy(&v, rest.data(), sizeof v);
    rest.remove_prefix(sizeof v);
    return v;
  }
  std::string_view text(size_t n) {
    if (rest.size() < n) return fine = false, std::string_view();
    const std::string_view found = rest.substr(0, n);
    rest.remove_prefix(n);
    return found;
  }
};

}  // namespace

std::optional<Gather::Part> Gather::parse(std::string_view payload) {
  Reader from{payload};
  Part part;
  part.of = from.number();
  const uint32_t count = from.number();
  if (!from.fine || part.of > kMostMembers || count == 0 || count > payload.size() / sizeof(uint32_t)) return {};
  for (uint32_t i = 0; i < count; ++i) part.members.push_back(from.number());
  std::vector<uint32_t> sorted = part.members;
  std::ranges::sort(sorted);
  if (sorted.back() >= kMostMembers || std::ranges::adjacent_find(sorted) != sorted.end()) return {};
  part.label = from.text(from.number());
  part.common = from.text(from.number());
  part.own = from.rest;
  if (!from.fine) return {};
  return part;
}

bool Gather::add(const Part& part) {
  if (std::ranges::any_of(part.members, [this](uint32_t m) { return has(m); })) return false;
  here_.resize(std::max<size_t>(here_.size(), *std::ranges::max_element(part.members) + size_t{1}));
  for (const uint32_t m : part.members) here_[m] = true;
  count_ += static_cast<uint32_t>(part.members.size());
  return true;
}

void Gather::keep(Part part) {
  if (taken_) return;
  if (std::ranges::find(part.members, 0u) != part.members.end()) of_ = part.of;
  parts_.push_back(std::move(part));
}

bool Gather::is_complete() const {
  if (taken_ || of_ == 0 || count_ < of_) return false;
  return std::all_of(here_.begin(), here_.begin() + of_, [](bool here) { return here; });
}

std::map<std::string, std::string> Gather::take() {
  taken_ = true;
  std::ranges::sort(parts_, {}, [](const Part& part) { return part.members.front(); });
  std::map<std::string_view, std::vector<uint32_t>> by_common;
  for (const Part& part : parts_) {
    auto& members = by_common[part.common];
    members.insert(members.end(), part.members.begin(), part.members.end());
  }
  std::string commons;
  put_number(commons, by_common.size());
  for (auto& [common, members] : by_common) {
    std::ranges::sort(members);
    std::vector<std::pair<uint32_t, uint32_t>> runs;
    for (const uint32_t m : members)
      if (runs.empty() || m != runs.back().first + runs.back().second)
        runs.emplace_back(m, 1);
      else
        ++runs.back().second;
    put_number(commons, runs.size());
    for (const auto& [first, count] : runs) put_number(commons, first), put_number(commons, count);
    put_number(commons, common.size());
    commons += common;
  }
  std::map<std::string, std::string> values{{"", commons}};
  for (const Part& part : parts_) {
    std::string& value = values.try_emplace(part.label, commons).first->second;
    if (part.own.empty()) continue;
    put_number(value, part.members.size());
    for (const uint32_t m : part.members) put_number(value, m);
    put_number(value, part.own.size());
    value += part.own;
  }
  parts_ = {};
  return values;
}

}  // namespace hvd::rendezvous
