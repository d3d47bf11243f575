// MPI in this process: its initialisation and its end, the level of threads, and the thread that makes the calls.
//
// MPI is initialised once. If the program has done it (mpi4py), this backend uses it and never ends it. Else the first
// communicator initialises it, on a thread of this backend that also ends MPI when the process exits. With
// MPI_THREAD_MULTIPLE any thread calls MPI; below that, only that one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

// Makes MPI usable. Throws HVD_E_UNAVAILABLE if MPI is finalized, or the program has initialised it with a level of
// threads that forbids this backend's calls; HVD_E_TIMEOUT if MPI_Init has not returned by deadline_ns. One thread at a
// time.
void begin_mpi(int64_t deadline_ns);

// May any thread call MPI? Known once begin_mpi() has returned.
bool mpi_any_thread();

// Runs `body`, which calls MPI, on a thread that may call it, and returns when it has run. Throws its exceptions, and
// HVD_E_INVALID if the program has finalized MPI meanwhile. Any thread.
void with_mpi(const std::function<void()>& body);

// The same for a body that waits for other ranks: false when it has not returned by deadline_ns. It then goes on by
// itself, so it must own all objects that it refers to.
bool with_mpi_until(int64_t deadline_ns, std::function<void()> body);

// "single", "funneled", "serialized", "multiple"; "" before MPI is initialised.
std::string mpi_thread_level();

// For the end of MPI: some rank may not come to MPI_Finalize, or a thread is still inside of a call.
void mpi_is_damaged();
void mpi_call_is_stuck(int change);  // +1 when a blocking call begins, -1 when it has returned
