// The entry point of the shm backend: collectives between processes of one host, and the host device itself.
//
// Called once by the loader, before anything else. Everything it hands out is static.
#include "backend.h"

#include "host_kernels/device_cpu.h"
#include "host_kernels/options.h"
#include "shared.h"

namespace hvd::shm {
namespace {

constexpr hvd_option kOptions[] = {
    {header_of(sizeof(hvd_option)), "spin_us", "int", "50", "0..1000000",
     "Microseconds to look for a peer before sleeping. 0 where there are more ranks than processors."},
    {header_of(sizeof(hvd_option)), "chunk_kib", "int", "64", "4..65536",
     "KiB of a large operation handed over at a time; each rank has 8 such slots. Rank 0's value counts."},
    {header_of(sizeof(hvd_option)), "small_kib", "int", "8", "1..1024",
     "KiB up to which two ranks exchange everything in one step. Rank 0's value counts."},
    kIsaOption,
};

const hvd_backend_api kBackend = {
    header_of(sizeof(hvd_backend_api)),   "shm",  "SHM", "1.0.0", "", &kCpuDevice, &kCommunicator, kOptions,
    sizeof kOptions / sizeof kOptions[0], nullptr};

}  // namespace
}  // namespace hvd::shm

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* err) {
  using namespace hvd::shm;
  if (const hvd_rc rc = enter(host, out, err); rc != HVD_OK) return rc;
  *out = &kBackend;
  return HVD_OK;
}
