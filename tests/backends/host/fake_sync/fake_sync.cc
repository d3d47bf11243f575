// The fake device "fake_sync": a device table without communicators, without streams of the program's own, and
// without events that streams wait for.
#include "../fake_device/fake_device.h"

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  return hvd::guarded(error, [&]() -> hvd_rc {
    static hvd_backend_api api;
    hvd::host = host;
    std::memset(&api, 0, sizeof(api));
    api.hdr = {sizeof(api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    api.name = "fake_sync";
    api.tag = "FAKE_SYNC";
    api.version = "0.1";
    api.vendor_lib = "";
    static const hvd_device_api device = FakeDevice::make("fake_sync", false);
    api.device = &device;
    *out = &api;
    return HVD_OK;
  });
}

#include "../fake_device/program_side.h"
