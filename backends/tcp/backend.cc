// The entry point of the tcp backend: collectives between processes on any hosts, and the host device itself.
//
// Called once by the loader, before anything else. Everything it hands out is static.
#include "backend.h"

#include "host_kernels/device_cpu.h"
#include "host_kernels/options.h"
#include "settings.h"
#include "shared.h"

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* err) {
  using namespace hvd::tcp;
  static const hvd_backend_api kBackend = {header_of(sizeof(hvd_backend_api)),
                                           "tcp",
                                           "TCP",
                                           "1.0.0",
                                           "",
                                           &kCpuDevice,
                                           &kCommunicator,
                                           kOptions,
                                           kOptionCount,
                                           nullptr};
  if (const hvd_rc rc = enter(host, out, err); rc != HVD_OK) return rc;
  *out = &kBackend;
  return HVD_OK;
}
