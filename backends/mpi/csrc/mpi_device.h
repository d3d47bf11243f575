// Memory of foreign devices: can MPI read it, and the copies that MPI does not make.
#pragma once

#include <hvd/backend.hpp>
#include <string>

// The device types that communicators declare: those that MPI libraries know, and those of option `devices`.
// Known once the backend is loaded.
void load_device_types();
const char* mpi_device_types();

// Does this MPI read memory of that type? By option `devices` if it is set, else by the running library's own answer.
// Call it where MPI may be called.
bool mpi_reads(const std::string& type);

// The device types whose memory MPI reads, as found by note_device_memory(): "cuda", "cuda,rocm", or "".
void note_device_memory();
std::string mpi_device_memory();

// A communicator's own way to move data on its device. Used by one thread at a time.
class DeviceCopy {
 public:
  // The device and the table that opened it outlive this object. Throws the errors of the table's calls.
  DeviceCopy(hvd_device device, const hvd_device_api* api);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;

  // Returns when the copy is done; throws TIMEOUT at the deadline.
  void run(const hvd_buf& to, const hvd_buf& from, uint64_t bytes, int64_t deadline_ns);

 private:
  const hvd_device_api* const api_;
  hvd_stream stream_ = nullptr;
};
