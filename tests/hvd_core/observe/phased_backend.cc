// A backend for the timeline's tests: the library that PHASED_LIBRARY names, with a phase reported around each call of
// its function `collective`.
#include <dlfcn.h>
#include <hvd/backend_abi.h>

#include <cstdio>
#include <cstdlib>

namespace {
const hvd_host_api* host = nullptr;
const hvd_backend_api* real = nullptr;
hvd_backend_api table;
hvd_comm_api comm;

hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* request, hvd_error* error) {
  host->activity(c, args->seq, "PHASED_START", 1);
  const hvd_rc rc = real->comm->collective(c, args, request, error);
  host->activity(c, args->seq, "PHASED_START", 0);
  return rc;
}
}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host_api,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  const char* path = std::getenv("PHASED_LIBRARY");
  void* opened = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!opened) {
    std::snprintf(error->text, sizeof error->text, "PHASED_LIBRARY names no library");
    return error->code = HVD_E_INTERNAL;
  }
  host = host_api;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(opened, "hvd_backend_entry_v1"));
  const hvd_rc rc = entry(host_api, &real, error);
  if (rc != HVD_OK) return rc;
  table = *real;
  comm = *real->comm;
  comm.collective = collective;
  table.name = "phased";
  table.tag = "PHASED";
  table.comm = &comm;
  *out = &table;
  return HVD_OK;
}
