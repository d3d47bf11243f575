// See nccl_agreement.h. No state; any thread.
#include "nccl_agreement.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool is_on(const std::string& text) { return text == "1" || text == "true" || text == "yes" || text == "on"; }

// "4MiB", "4m", "4194304". hvd-core has checked the text; a host that has not gets the error.
uint64_t bytes_of(const std::string& text) {
  char* rest = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &rest, 10);
  const std::string unit = lower(rest);
  for (const auto& [letter, shift] : {std::pair{'k', 10}, {'m', 20}, {'g', 30}, {'t', 40}})
    if (!unit.empty() && unit[0] == letter) return number << shift;
  if (rest != text.c_str() && (unit.empty() || unit == "b")) return number;
  throw hvd::Error(HVD_E_INVALID, "option pack_below = '" + text + "' is not a number of bytes, such as 4194304 or 4m");
}

}  // namespace

Agreement options_of_this_rank() {
  Agreement m;
  m.nonblocking = is_on(lower(hvd::option("nonblocking", "0")));
  m.exact = lower(hvd::option("minmax", "exact")) != "native";
  m.pack_below = bytes_of(hvd::option("pack_below", "4m"));
  return m;
}

Agreement agree(const hvd::CommInit& init, bool float8) {
  Agreement m = options_of_this_rank();
  m.float8 = float8;
  if (init.size == 1) return m;
  hvd::Store& store = init.store;
  if (init.rank == 0) {
    std::ostringstream out;
    out << m.nonblocking << ' ' << m.exact << ' ' << m.pack_below;
    store.set("nccl.options", out.str());
  }
  store.add("nccl.float8", float8 ? 1 : 0);
  if (store.add("nccl.here", 1) == init.size) {
    store.set("nccl.all", store.add("nccl.float8", 0) == init.size ? "1" : "0");
  }
  m.float8 = store.get("nccl.all", init.deadline_ns) == "1";
  std::istringstream in(store.get("nccl.options", init.deadline_ns));
  in >> m.nonblocking >> m.exact >> m.pack_below;
  if (store.add("nccl.gone", 1) == init.size) {
    for (const char* key : {"nccl.options", "nccl.float8", "nccl.here", "nccl.all", "nccl.gone"}) store.del(key);
  }
  return m;
}
