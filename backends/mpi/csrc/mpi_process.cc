// See mpi_process.h.
#include "mpi_process.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <hvd/backend.hpp>

#include "mpi_api.h"
#include "work_thread.h"

namespace {

enum Level { kUnknown, kSingle, kFunneled, kSerialized, kMultiple };

std::atomic<Level> g_level{kUnknown};
std::atomic<bool> g_one_thread{true};
std::atomic<bool> g_damaged{false};
std::atomic<int> g_stuck{0};
pid_t g_owner = 0;  // the process in which this backend has initialised MPI, and has to finalize it

// Never destroyed: its thread lives as long as the process.
WorkThread& mpi_thread() {
  static WorkThread* thread = new WorkThread;
  return *thread;
}

bool is(int (*question)(int*)) {
  int flag = 0;
  question(&flag);
  return flag != 0;
}

Level level_of(int provided) {
  if (provided >= mpi().thread_multiple) return kMultiple;
  if (provided >= mpi().thread_serialized) return kSerialized;
  return provided >= mpi().thread_funneled ? kFunneled : kSingle;
}

bool threads_disabled() {
  const char* text = std::getenv("HOROVOD_MPI_THREADS_DISABLE");
  return text != nullptr && std::atoi(text) != 0;
}

const char* name_of(Level level) {
  constexpr const char* kNames[] = {"", "single", "funneled", "serialized", "multiple"};
  return kNames[level];
}

// A rank that fails must not wait for the others in MPI_Finalize: the launcher sees that it has gone without, and
// ends the job. A rank that succeeds waits for the ranks that still work, as MPI programs do: if it ended without
// MPI_Finalize, Open MPI would kill the others as failed, and MPICH would end them with the exit status of success.
void end_mpi(int status, void*) {
  if (getpid() != g_owner || status != 0 || g_stuck.load() != 0 || is(mpi().Finalized)) return;
  constexpr int64_t kPatience = 3'000'000'000;
  try {
    mpi_thread().run_until(g_damaged.load() ? hvd::now_ns() + kPatience : HVD_NO_DEADLINE, [] { mpi().Finalize(); });
  } catch (...) {
    // The process ends: there is no caller to tell.
  }
}

void initialise(int64_t deadline_ns) {
  const int wanted = threads_disabled() ? mpi().thread_single : mpi().thread_multiple;
  auto provided = std::make_shared<int>(0);
  const bool over = mpi_thread().run_until(deadline_ns, [provided, wanted] {
    check_mpi(mpi().Init_thread(nullptr, nullptr, wanted, provided.get()), "Init_thread");
    // The program does not use MPI, so this backend decides: errors are returned, and do not end the process.
    mpi().Comm_set_errhandler(mpi().comm_world, mpi().errors_return);
  });
  if (!over) {
    mpi_is_damaged();
    throw hvd::Error(HVD_E_TIMEOUT, "MPI_Init_thread did not return: not all processes of the job have come to it");
  }
  g_owner = getpid();
  on_exit(end_mpi, nullptr);
  g_level = level_of(*provided);
}

// The program has initialised MPI (mpi4py). Below SERIALIZED only the program's own thread may call MPI.
void adopt() {
  int provided = 0;
  check_mpi(mpi().Query_thread(&provided), "Query_thread");
  const Level level = level_of(provided);
  if (level < kSerialized) {
    throw hvd::Error(HVD_E_UNAVAILABLE,
                     std::string("the program has initialised MPI with the thread level '") + name_of(level) +
                         "', which allows calls of its own thread only. Initialise it with MPI_THREAD_MULTIPLE "
                         "(mpi4py: rc.thread_level = 'multiple', the default), or let hvd.init() come first");
  }
  g_level = level;
}

}  // namespace

void begin_mpi(int64_t deadline_ns) {
  if (g_level.load() != kUnknown && !is(mpi().Finalized)) return;
  if (is(mpi().Finalized)) {
    throw hvd::Error(HVD_E_UNAVAILABLE,
                     "the program has called MPI_Finalize, after which MPI cannot be used again in this process");
  }
  if (is(mpi().Initialized)) {
    adopt();
  } else {
    initialise(deadline_ns);
  }
  g_one_thread = threads_disabled() || g_level.load() != kMultiple;
}

bool mpi_any_thread() { return !g_one_thread.load(); }

void with_mpi(const std::function<void()>& body) {
  const auto checked = [&body] {
    if (is(mpi().Finalized)) {
      throw hvd::Error(HVD_E_INVALID,
                       "the program has called MPI_Finalize while Horovod was still using MPI; call "
                       "hvd.shutdown() before it",
                       HVD_EF_COMM_DEAD);
    }
    body();
  };
  mpi_any_thread() ? checked() : mpi_thread().run(checked);
}

bool with_mpi_until(int64_t deadline_ns, std::function<void()> body) {
  return mpi_any_thread() ? WorkThread().run_until(deadline_ns, std::move(body))
                          : mpi_thread().run_until(deadline_ns, std::move(body));
}

std::string mpi_thread_level() { return name_of(g_level.load()); }

void mpi_is_damaged() { g_damaged = true; }
void mpi_call_is_stuck(int change) { g_stuck += change; }
