// The entry point of the shm backend: collectives between processes of one host, and the host device itself.
//
// Called once by the loader, before anything else. Everything it hands out is static.
#include "backend.h"

#include "kernels.h"
#include "support.h"

namespace hvd::shm {
namespace {

constexpr hvd_hdr header(uint32_t size) { return {size, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr}; }

constexpr hvd_option kOptions[] = {
    {header(sizeof(hvd_option)), "spin_us", "int", "50", "0..1000000",
     "Microseconds to look for a peer before sleeping. 0 where there are more ranks than processors."},
    {header(sizeof(hvd_option)), "chunk_kib", "int", "64", "4..65536",
     "KiB of a large operation handed over at a time; each rank has 8 such slots. Rank 0's value counts."},
    {header(sizeof(hvd_option)), "small_kib", "int", "8", "1..1024",
     "KiB up to which two ranks exchange everything in one step. Rank 0's value counts."},
    {header(sizeof(hvd_option)), "isa", "str", "auto", "auto, base, avx2, avx512",
     "Instruction set of the reduction kernels. For tests; all ranks the same."},
};

void choose_kernels_by_option(const hvd_host_api& host) {
  char name[16] = "auto";
  uint64_t n = sizeof name - 1;
  if (host.option("isa", name, &n) == HVD_OK) name[n < sizeof name ? n : sizeof name - 1] = '\0';
  if (choose_kernels(name)) return;
  host.log(HVD_LOG_WARN, __FILE__, __LINE__, "option isa names kernels that this processor cannot run; using the best");
}

const hvd_backend_api kBackend = {
    header(sizeof(hvd_backend_api)),     "shm", "SHM", "1.0.0", "", &kCpuDevice, &kCommunicator, kOptions,
    sizeof kOptions / sizeof kOptions[0]};

}  // namespace
}  // namespace hvd::shm

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* err) {
  using namespace hvd::shm;
  constexpr size_t kNeeded = offsetof(hvd_host_api, option) + sizeof(host->option);
  if (out == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the table is NULL");
  if (host == nullptr || host->hdr.struct_size < kNeeded || !host->log || !host->store_set || !host->store_get ||
      !host->store_del || !host->option) {
    return fail(err, HVD_E_ABI, 0, "the host's table lacks log, store_set, store_get, store_del or option (ABI 1.0)");
  }
  set_host(host);
  choose_kernels_by_option(*host);
  *out = &kBackend;
  return HVD_OK;
}
