// A library with one fault, which its own file name chooses: libfault_<fault>.so. For plugin_faults.py.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "hvd/backend_abi.h"

namespace {

std::string fault() {
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&fault), &here) == 0) return "";
  const std::string path = here.dli_fname, mark = "libfault_";
  const auto at = path.rfind(mark);
  return at == std::string::npos ? "" : path.substr(at + mark.size(), path.rfind(".so") - at - mark.size());
}

void hang() {
  for (;;) pause();
}

struct Loaded {
  Loaded() {
    const std::string name = fault();
    if (name == "constructor_crashes") raise(SIGSEGV);
    if (name == "constructor_exits") _exit(7);
    if (name == "constructor_hangs") hang();
    if (name == "constructor_throws") throw std::runtime_error("a constructor's exception");
  }
} loaded;

}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api*,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  const std::string name = fault();
  if (name == "entry_crashes") raise(SIGSEGV);
  if (name == "entry_aborts") std::abort();
  if (name == "entry_exits") std::exit(5);
  if (name == "entry_hangs") hang();
  if (name == "entry_throws") throw std::runtime_error("an exception that escapes");
  if (name == "entry_gives_nothing") {
    *out = nullptr;
    return HVD_OK;
  }
  if (name == "entry_gives_rubbish") {
    *out = reinterpret_cast<const hvd_backend_api*>(16);
    return HVD_OK;
  }
  if (name == "entry_answers_99") return 99;
  if (name == "entry_unavailable") {
    std::snprintf(error->text, sizeof error->text, "no widget is plugged in");
    return error->code = HVD_E_UNAVAILABLE;
  }
  std::snprintf(error->text, sizeof error->text, "the widget is on fire");
  return error->code = HVD_E_INTERNAL;
}
