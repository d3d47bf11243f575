// See process_sets.h.
#include "engine/calls/process_sets.h"

#include <algorithm>
#include <utility>

#include "engine/base/operations.h"

namespace hvd::calls {

std::string ProcessSet::next_unnamed(base::OpKind kind) {
  // Both are calls of allreduce; ranks that disagree about the reduction shall meet under one name and hear it.
  if (kind == base::OpKind::Adasum) kind = base::OpKind::Allreduce;
  return std::string(base::op_name(kind)) + ".noname." +
         std::to_string(unnamed[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_relaxed));
}

bool ProcessSet::includes(int32_t rank) const { return std::binary_search(ranks.begin(), ranks.end(), rank); }

std::string ProcessSet::message_name(int32_t from, int32_t to, const std::optional<std::string>& given) {
  std::string name;
  if (given) {
    name = *given;
  } else {
    std::lock_guard lock(mutex_);
    name =
        std::string(base::op_name(base::OpKind::Send)) + ".noname." + std::to_string(unnamed_messages_[{from, to}]++);
  }
  return agreement::message_name(name, from, to, id);
}

void ProcessSet::restart_counters() {
  for (auto& n : unnamed) n = 0;
  std::lock_guard lock(mutex_);
  unnamed_messages_.clear();
}

ProcessSetRef ProcessSets::find(int32_t number, const std::string& what) const {
  std::lock_guard lock(mutex_);
  auto it = sets_.find(number);
  if (it == sets_.end())
    throw InvalidRequest(what + ": Process set provided does not exist, or has not been registered. Its number is " +
                         std::to_string(number) + ".");
  return it->second;
}

std::map<int32_t, std::vector<int32_t>> ProcessSets::all() const {
  std::lock_guard lock(mutex_);
  std::map<int32_t, std::vector<int32_t>> found;
  for (const auto& [number, set] : sets_)
    if (number < kFirstOfMembers) found[number] = set->ranks;
  return found;
}

int32_t ProcessSets::number_of(agreement::SetId id) const {
  std::lock_guard lock(mutex_);
  for (const auto& [number, set] : sets_)
    if (set->id == id) return number;
  return -1;
}

int32_t ProcessSets::add(agreement::SetId id, std::vector<int32_t> ranks, bool by_members) {
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  if (auto it = std::find(ranks.begin(), ranks.end(), my_rank_); it != ranks.end())
    set->my_rank = static_cast<int32_t>(it - ranks.begin());
  set->ranks = std::move(ranks);
  std::lock_guard lock(mutex_);
  if (by_members) {
    set->number = next_of_members_++;
  } else if (free_.empty()) {
    set->number = next_++;
  } else {
    set->number = free_.front();
    free_.pop_front();
  }
  sets_[set->number] = set;
  return set->number;
}

void ProcessSets::remove(agreement::SetId id) {
  std::lock_guard lock(mutex_);
  auto it = std::find_if(sets_.begin(), sets_.end(), [&](const auto& s) { return s.second->id == id; });
  if (it == sets_.end()) return;
  if (it->first < kFirstOfMembers) free_.push_back(it->first);
  sets_.erase(it);
}

void ProcessSets::restart_counters() {
  std::lock_guard lock(mutex_);
  for (auto& [number, set] : sets_) set->restart_counters();
}

}  // namespace hvd::calls
