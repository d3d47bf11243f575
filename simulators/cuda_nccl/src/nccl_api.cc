// The nccl* functions for communicators, groups and errors; nccl_calls.cc has the operations.
#include <set>

#include "addresses.h"
#include "counters.h"
#include "nccl_comm.h"
#include "runtime.h"
#include "settings.h"

namespace {

using namespace cusim;

constexpr const char* kNoComm = "comm argument is NULL, or a communicator that was destroyed or aborted";

// The CUDA runtime inside NCCL notes the current device and sets it again: a thread without a context is on the first
// device, and gets a context there.
CUresult runtime() {
  if (current() != nullptr) return CUDA_SUCCESS;
  const CUresult made = retain(0);
  if (made == CUDA_SUCCESS) push(&primary(0));
  return made;
}

// The device of a new communicator.
ncclResult_t device(Context** context) {
  if (initialise() != CUDA_SUCCESS) return refuse(ncclUnhandledCudaError, "Cuda failure 'initialization error'");
  if (runtime() != CUDA_SUCCESS) return refuse(ncclUnhandledCudaError, "Cuda failure 'no device'");
  *context = current();
  const int broken = (*context)->broken;
  return broken == 0 ? ncclSuccess : refuse(ncclUnhandledCudaError, "Cuda failure " + std::to_string(broken));
}

ncclResult_t is_blocking(const ncclConfig_t* config, bool fallback, bool* blocking) {
  *blocking = fallback;
  if (config == nullptr) return ncclSuccess;
  if (config->magic != kConfigMagic) {
    return refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking == kConfigUnset) return ncclSuccess;
  if (config->blocking != 0 && config->blocking != 1) {
    return refuse(ncclInvalidArgument, "Invalid config blocking attribute value " + std::to_string(config->blocking));
  }
  *blocking = config->blocking == 1;
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  if (out == nullptr) return refuse(ncclInvalidArgument, "comm argument is NULL");
  *out = nullptr;
  if (size < 1 || rank < 0 || rank >= size) {
    return refuse(ncclInvalidArgument, "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(size));
  }
  auto nccl = std::make_shared<Nccl>();
  nccl->rank = rank;
  nccl->size = size;
  ncclResult_t result = is_blocking(config, true, &nccl->blocking);
  if (result == ncclSuccess) result = device(&nccl->context);
  if (result != ncclSuccess) return result;
  *out = add(nccl);
  result = submit(nccl, [nccl, id] { return create(nccl, id); });
  if (result != ncclSuccess && result != ncclInProgress) {
    take(*out);
    *out = nullptr;
  }
  return result;
}

// Ends the communicator behind everything that was issued.
ncclResult_t drain(const NcclRef& nccl) {
  if (nccl->comm() != nullptr) nccl->comm()->drain();
  return ncclSuccess;
}

template <class Get>
ncclResult_t ask(ncclComm_t handle, int* out, Get&& get) {
  const NcclRef nccl = find(handle);
  if (nccl == nullptr || out == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  const ncclResult_t result = nccl->ready();
  if (result == ncclSuccess) *out = get(*nccl);
  return result;
}

// Handles of registered memory, so that one that is not known is found out.
struct Registered {
  std::mutex mutex;
  std::set<void*> handles;
};
Registered& registered() {
  static auto* all = new Registered;
  return *all;
}

}  // namespace

SIM_EXPORT ncclResult_t ncclGetVersion(int* version) {
  SIM_CALLED;
  if (version == nullptr) return refuse(ncclInvalidArgument, "version argument is NULL");
  *version = settings().nccl_version;
  return ncclSuccess;
}

SIM_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                    "internal error - please report this issue to the NCCL developers",
                                    "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                    "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return static_cast<unsigned>(result) < std::size(kTexts) ? kTexts[result] : "unknown result code";
}

SIM_EXPORT const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  const NcclRef nccl = find(handle);
  text = nccl == nullptr ? std::string() : nccl->text();
  if (text.empty()) text = last_text();
  if (!text.empty()) text = "simulated NCCL: " + text;
  return text.c_str();
}

SIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  SIM_CALLED;
  if (id == nullptr) return refuse(ncclInvalidArgument, "out argument is NULL");
  if (sim::enter() != topsSuccess) return refuse(ncclUnhandledCudaError, "Cuda failure 'initialization error'");
  try {
    sim::open_rendezvous(id);
    return ncclSuccess;
  } catch (const sim::Failure& why) {
    return refuse(why.code, why.text);
  }
}

SIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  SIM_CALLED;
  return init(comm, size, id, rank, nullptr);
}

SIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                               ncclConfig_t* config) {
  SIM_CALLED;
  return init(comm, size, id, rank, config);
}

// The child's handle is there once the parent is no longer in progress, and not before.
SIM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  SIM_CALLED;
  const NcclRef parent = find(handle);
  if (parent == nullptr || out == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  *out = nullptr;
  bool blocking = false;
  ncclResult_t result = parent->ready();
  if (result == ncclSuccess) result = is_blocking(config, parent->blocking, &blocking);
  if (result == ncclSuccess && (color < -1 || key < 0)) result = refuse(ncclInvalidArgument, "color or key");
  if (result != ncclSuccess) return result;
  return submit(parent, [=] {
    NcclRef child;
    const ncclResult_t made = split(parent, color, key, &child, blocking);
    if (child != nullptr) *out = add(child);
    return made;
  });
}

SIM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  SIM_CALLED;
  const NcclRef nccl = find(handle);
  if (nccl == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  runtime();
  const ncclResult_t result = nccl->ready();
  if (result != ncclSuccess) return result;
  nccl->finalized = true;
  return nccl->perform([nccl] { return drain(nccl); });
}

SIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  SIM_CALLED;
  const NcclRef nccl = find(handle);
  if (nccl == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  if (nccl->state() == ncclInProgress) return nccl->ready();
  runtime();
  take(handle);
  return drain(nccl);
}

// Returns when nothing of the communicator is left in any stream, after all work before it there.
SIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
  SIM_CALLED;
  const NcclRef nccl = take(handle);
  if (nccl == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  runtime();
  nccl->abort();
  return drain(nccl);
}

SIM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  SIM_CALLED;
  const NcclRef nccl = find(handle);
  if (nccl == nullptr || error == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  *error = nccl->state();
  return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return ask(comm, count, [](const Nccl& c) { return c.size; });
}

SIM_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return ask(comm, device, [](const Nccl& c) { return c.context->device; });
}

SIM_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return ask(comm, rank, [](const Nccl& c) { return c.rank; });
}

SIM_EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  SIM_CALLED;
  const NcclRef nccl = find(comm);
  if (nccl == nullptr || handle == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  const ncclResult_t result = nccl->ready();
  if (result != ncclSuccess) return result;
  sim::Span span;
  if (!reachable(buffer, bytes, &span)) return refuse(ncclInvalidArgument, "buffer is not device memory");
  const std::lock_guard<std::mutex> lock(registered().mutex);
  *handle = new char;
  registered().handles.insert(*handle);
  return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  SIM_CALLED;
  const NcclRef nccl = find(comm);
  if (nccl == nullptr) return refuse(ncclInvalidArgument, kNoComm);
  if (nccl->finalized) return refuse(ncclInvalidUsage, "its proxy was stopped by ncclCommFinalize");
  const std::lock_guard<std::mutex> lock(registered().mutex);
  if (registered().handles.erase(handle) == 0) return refuse(ncclInvalidArgument, "no such registration");
  delete static_cast<char*>(handle);
  return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclGroupStart(void) {
  SIM_CALLED;
  group_start();
  return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclGroupEnd(void) {
  SIM_CALLED;
  return group_end();
}
