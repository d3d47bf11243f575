// MPI as a whole in this process: who initialises and ends it, with which level of threads, and on which thread calls
// are made.
//
// MPI is initialised once. Where the program has done it (mpi4py), that is used and left alone. Else the first
// communicator does it, on a thread of ours that also ends MPI when the process exits. With MPI_THREAD_MULTIPLE calls
// are made by whichever thread has something to call; below that, all on that one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

// Makes MPI usable. Throws HVD_E_UNAVAILABLE: MPI is finalized, or was initialised by the program with a level that
// does not let us call it. HVD_E_TIMEOUT: MPI_Init did not return until deadline_ns. One thread at a time.
void begin_mpi(int64_t deadline_ns);

// Whether any thread may call MPI. Known once begin_mpi() has returned.
bool mpi_any_thread();

// Runs a piece of MPI calls where they may be made, and returns when it has run. Throws what it throws, and
// HVD_E_INVALID when the program has finalized MPI meanwhile. Any thread.
void with_mpi(const std::function<void()>& body);

// The same for a body that waits for other ranks: false when it has not returned by deadline_ns. It then goes on by
// itself, so it must own all objects that it refers to.
bool with_mpi_until(int64_t deadline_ns, std::function<void()> body);

// "single", "funneled", "serialized", "multiple"; "" before MPI is initialised.
std::string mpi_thread_level();

// For the end of MPI: some rank may not come to MPI_Finalize, or a thread is still inside of a call.
void mpi_is_damaged();
void mpi_call_is_stuck(int change);  // +1 when a blocking call begins, -1 when it has returned
