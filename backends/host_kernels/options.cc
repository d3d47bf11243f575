// Options and the common part of the entry functions; see options.h.
#include "options.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "kernels.h"
#include "support.h"

namespace hvd::host_kernels {

bool text_option(const char* key, std::string* text) {
  char room[512] = "";
  uint64_t n = sizeof room - 1;
  const hvd_rc rc = host()->option(key, room, &n);
  if (rc == HVD_E_UNAVAILABLE) return false;
  if (rc != HVD_OK) {
    char line[160];
    std::snprintf(line, sizeof line, "option %s cannot be read (it may be longer than %zu bytes); ignored", key,
                  sizeof room - 1);
    host()->log(HVD_LOG_WARN, __FILE__, __LINE__, line);
    return false;
  }
  room[n < sizeof room ? n : sizeof room - 1] = '\0';
  *text = room;
  return true;
}

uint64_t number_option(const char* key, uint64_t fallback, uint64_t low, uint64_t high) {
  std::string text;
  if (!text_option(key, &text)) return fallback;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (end != text.c_str() && *end == '\0' && value >= low && value <= high) return value;
  char line[700];
  std::snprintf(line, sizeof line, "option %s = '%s' is not a number from %llu to %llu; using %llu", key, text.c_str(),
                (unsigned long long)low, (unsigned long long)high, (unsigned long long)fallback);
  host()->log(HVD_LOG_WARN, __FILE__, __LINE__, line);
  return fallback;
}

void choose_kernels_by_option() {
  std::string name = "auto";
  text_option("isa", &name);
  if (choose_kernels(name.c_str())) return;
  host()->log(HVD_LOG_WARN, __FILE__, __LINE__,
              "option isa names kernels that this processor cannot run; using the best");
}

hvd_rc enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* err) {
  constexpr size_t kNeeded = offsetof(hvd_host_api, option) + sizeof(host->option);
  if (out == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the table is NULL");
  if (host == nullptr || host->hdr.struct_size < kNeeded || !host->log || !host->store_set || !host->store_get ||
      !host->store_del || !host->option) {
    return fail(err, HVD_E_ABI, 0, "the host's table lacks log, store_set, store_get, store_del or option (ABI 1.0)");
  }
  set_host(host);
  choose_kernels_by_option();
  return HVD_OK;
}

}  // namespace hvd::host_kernels
