// The entry function: loads the backend that HVD_MUTANT_LIBRARY names, copies its tables, and makes the fault that
// HVD_MUTANT names (none: "" or unset, for the control).
#include "shim.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace mutants {

const hvd_backend_api* real = nullptr;
const hvd_host_api* host = nullptr;
hvd_host_api our_host;
Tables ours;
int world_rank = 0;

std::map<std::string, Fault>& faults() {
  static std::map<std::string, Fault> all;
  return all;
}

namespace {

// The tables of the backend's own, and a copy of them that a backend takes for its own when it is given our device
// table.
const hvd_backend_api* vendor = nullptr;
Tables as_is;

hvd_comm_args translated(const hvd_comm_args* a) {
  hvd_comm_args mine = *a;
  if (mine.device_api == &ours.device) mine.device_api = vendor->device;
  return mine;
}

void take() {
  as_is.backend = *vendor;
  if (vendor->comm) {
    as_is.comm = *vendor->comm;
    as_is.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
      const hvd_comm_args mine = translated(a);
      return vendor->comm->create(&mine, out, e);
    };
    if (as_is.comm.split) {
      as_is.comm.split = [](hvd_comm c, const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
        const hvd_comm_args mine = translated(a);
        return vendor->comm->split(c, &mine, out, e);
      };
    }
    as_is.backend.comm = &as_is.comm;
  }
  real = &as_is.backend;
}

hvd_rc refuse(hvd_error* error, const std::string& text) {
  std::snprintf(error->text, sizeof error->text, "%s", text.c_str());
  return error->code = HVD_E_INTERNAL;
}

}  // namespace
}  // namespace mutants

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host_api,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  using namespace mutants;
  const char* library = std::getenv("HVD_MUTANT_LIBRARY");
  const char* name = std::getenv("HVD_MUTANT");
  const std::string fault = name ? name : "";
  if (!library) return refuse(error, "HVD_MUTANT_LIBRARY does not say which backend to spoil");
  if (!fault.empty() && !faults().count(fault)) return refuse(error, "there is no fault '" + fault + "'");
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!opened) return refuse(error, dlerror());
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(opened, "hvd_backend_entry_v1"));
  host = host_api;
  our_host = *host_api;
  if (!fault.empty() && faults()[fault].early) faults()[fault].early();
  const hvd_rc rc = entry(&our_host, &vendor, error);
  if (rc != HVD_OK) return rc;
  take();
  ours.backend = *real;
  if (real->comm) {
    ours.comm = *real->comm;
    ours.backend.comm = &ours.comm;
  }
  if (real->device) {
    ours.device = *real->device;
    ours.backend.device = &ours.device;
  }
  if (!fault.empty() && faults()[fault].apply) faults()[fault].apply();
  *out = &ours.backend;
  return HVD_OK;
}
