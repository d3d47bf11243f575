// See weights_check.h.
#include "engine/agreement/weights_check.h"

#include <algorithm>

#include "engine/base/rank_list.h"

namespace hvd::agreement {
namespace {

constexpr size_t kNames = 6, kGroups = 8;

std::string ranks_text(const std::vector<Rank>& ranks) {
  return (ranks.size() > 1 ? "ranks " : "rank ") + base::rank_list(ranks);
}

// "one value on ranks 0, 1; another on rank 2"
std::string groups_text(const std::vector<std::vector<Rank>>& groups) {
  std::string text;
  const size_t shown = std::min(groups.size(), kGroups);
  for (size_t i = 0; i < shown; ++i) text += (i ? "; another on " : "one value on ") + ranks_text(groups[i]);
  if (groups.size() > shown) text += "; " + std::to_string(groups.size() - shown) + " more values on other ranks";
  return text;
}

}  // namespace

void WeightsCheck::compare(SetId set, const std::string& name, const std::vector<std::pair<Rank, SigRef>>& said) {
  struct Values {
    Rank named_by = -1;
    std::string parameter;
    uint64_t elements = 0;
    std::map<uint64_t, std::vector<Rank>> ranks;  // by digest
  };
  // By their places in the request: names may differ, as a rank that has made one more model numbers the next ones
  // differently. Ranks that announce other numbers of weights are compared by names.
  const bool alike = std::ranges::all_of(said, [&](const auto& one) {
    return one.second->fields().weights.size() == said.front().second->fields().weights.size();
  });
  std::map<std::pair<size_t, std::string>, Values> by_parameter;
  std::string remedy;
  for (const auto& [rank, sig] : said) {
    if (remedy.empty()) remedy = sig->fields().remedy;
    size_t place = 0;
    for (const WeightDigest& w : sig->fields().weights) {
      Values& v = by_parameter[alike ? std::pair(place++, std::string()) : std::pair(size_t{0}, w.parameter)];
      if (v.named_by < 0 || rank < v.named_by) v.named_by = rank, v.parameter = w.parameter;
      v.elements = w.elements;
      v.ranks[w.digest].push_back(rank);
    }
  }
  compared_[set] += by_parameter.size();
  for (auto& [key, values] : by_parameter) {
    if (values.ranks.size() < 2) continue;
    Finding found{name, values.parameter, values.elements, {}};
    for (auto& [digest, ranks] : values.ranks) {
      std::sort(ranks.begin(), ranks.end());
      found.groups.push_back(std::move(ranks));
    }
    std::sort(found.groups.begin(), found.groups.end());
    OfSet& of = findings_[set];
    of.remedy = remedy;
    of.findings.push_back(std::move(found));
  }
}

void WeightsCheck::agreed(const Signature& request) {
  if (request.fields().kind != base::OpKind::Broadcast) return;
  for (const TensorSpec& t : request.fields().tensors) {
    uint64_t elements = 1;
    for (int64_t d : t.shape) elements *= static_cast<uint64_t>(d);
    for (auto& [set, of] : findings_)
      std::erase_if(of.findings, [&](const Finding& f) { return f.elements == elements; });
  }
  std::erase_if(findings_, [](const auto& x) { return x.second.findings.empty(); });
}

std::string WeightsCheck::submitted_again(SetId set, const std::string& name) {
  const auto of = findings_.find(set);
  if (of == findings_.end()) return {};
  const auto& all = of->second.findings;
  if (std::none_of(all.begin(), all.end(), [&](const Finding& f) { return f.name == name; })) return {};
  return take(set);
}

std::vector<std::string> WeightsCheck::take_all() {
  std::vector<std::string> texts;
  while (!findings_.empty()) texts.push_back(take(findings_.begin()->first));
  return texts;
}

std::string WeightsCheck::take(SetId set) {
  const OfSet of = std::move(findings_.extract(set).mapped());
  std::string text = "The ranks began to train with different weights: " + std::to_string(of.findings.size()) + " of " +
                     std::to_string(compared_[set]) +
                     " parameters differed when their gradients were reduced for the first time.";
  // As a rule the same ranks differ in all parameters: one line for those.
  std::map<std::vector<std::vector<Rank>>, std::vector<std::string>> by_groups;
  for (const Finding& f : of.findings) by_groups[f.groups].push_back(f.parameter);
  for (const auto& [groups, parameters] : by_groups) {
    text += "\n  ";
    for (size_t i = 0; i < parameters.size() && i < kNames; ++i) text += (i ? ", " : "") + parameters[i];
    if (parameters.size() > kNames) text += " and " + std::to_string(parameters.size() - kNames) + " more";
    text += ": " + groups_text(groups);
  }
  text +=
      "\nThe ranks add the same gradients to different weights, so each rank trains a model of its own. Give all ranks "
      "the weights of one rank before the first step:\n    " +
      of.remedy;
  return text;
}

}  // namespace hvd::agreement
