// Memory of devices, which other backends open: whether MPI reads it, and copies that MPI does not make.
#pragma once

#include <hvd/backend.hpp>
#include <string>

// The device types that communicators may be asked for: those that MPI libraries know, and those of option `devices`.
// Known once the backend is loaded.
void load_device_types();
const char* mpi_device_types();

// Whether this MPI reads memory of that type: what option `devices` says, else what the library says of itself as it
// runs. Where MPI may be called.
bool mpi_reads(const std::string& type);

// "cuda", "cuda,rocm", or "": of which types it reads memory, as note_device_memory() has found where MPI may be
// called.
void note_device_memory();
std::string mpi_device_memory();

// A communicator's own way to move data on its device. Used by one thread at a time.
class DeviceCopy {
 public:
  // The device and the table that opened it outlive this. Throws what the table's calls answer.
  DeviceCopy(hvd_device device, const hvd_device_api* api);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;

  // Returns when it is done; throws TIMEOUT at the deadline.
  void run(const hvd_buf& to, const hvd_buf& from, uint64_t bytes, int64_t deadline_ns);

 private:
  const hvd_device_api* const api_;
  hvd_stream stream_ = nullptr;
};
