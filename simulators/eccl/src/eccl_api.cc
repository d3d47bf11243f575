// The eccl* functions for communicators, groups and errors (eccl.h); eccl_calls.cc has the operations.
#include <eccl.h>

#include <cstring>

#include "communicators.h"
#include "device.h"
#include "group.h"
#include "rendezvous.h"
#include "runtime.h"

using sim::refuse;

namespace sim {
namespace {

struct Communicators {
  std::mutex mutex;
  std::map<const void*, CommRef> by_handle;
};

Communicators& communicators() {
  static auto* all = new Communicators;
  return *all;
}

ecclComm_t add_comm(CommRef comm) {
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  void* handle = comm.get();
  communicators().by_handle[handle] = std::move(comm);
  return static_cast<ecclComm_t>(handle);
}

CommRef take_comm(ecclComm_t handle) {
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  const auto at = communicators().by_handle.find(handle);
  if (at == communicators().by_handle.end()) return nullptr;
  CommRef comm = std::move(at->second);
  communicators().by_handle.erase(at);
  return comm;
}

}  // namespace

CommRef find_comm(ecclComm_t handle) {
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  const auto at = communicators().by_handle.find(handle);
  return at == communicators().by_handle.end() ? nullptr : at->second;
}

ecclResult_t enter_eccl() {
  const topsError_t error = enter();
  return error == topsSuccess ? ecclSuccess : refuse(ecclUnhandledTopsError, topsGetErrorString(error));
}

}  // namespace sim

namespace {

constexpr const char* kNoComm = "not a communicator, or one that was destroyed or aborted";

ecclResult_t create(ecclComm_t* out, int size, const ecclUniqueId& id, int rank, int device) {
  try {
    auto peers = sim::meet(id, size, rank, sim::Clock::now() + sim::settings().quiet);
    *out = sim::add_comm(std::make_shared<sim::Comm>(rank, device, std::move(peers)));
    return ecclSuccess;
  } catch (const sim::Failure& why) {
    return refuse(why.code, why.text);
  }
}

template <class Get>
ecclResult_t ask(ecclComm_t handle, int* out, Get&& get) {
  const sim::CommRef comm = sim::find_comm(handle);
  if (comm == nullptr || out == nullptr) return refuse(ecclInvalidArgument, kNoComm);
  *out = get(*comm);
  return ecclSuccess;
}

}  // namespace

extern "C" {

ecclResult_t ecclGetVersion(int* version) {
  if (version == nullptr) return refuse(ecclInvalidArgument, "version is NULL");
  *version = ECCL_VERSION_CODE;
  return ecclSuccess;
}

const char* ecclGetErrorString(ecclResult_t result) {
  switch (result) {
    case ecclSuccess:
      return "no error";
    case ecclUnhandledTopsError:
      return "the device runtime failed";
    case ecclSystemError:
      return "the operating system refused";
    case ecclInternalError:
      return "internal error";
    case ecclInvalidArgument:
      return "invalid argument";
    case ecclInvalidUsage:
      return "invalid usage";
    case ecclRemoteError:
      return "a peer failed, went away or does something else";
    case ecclInProgress:
      return "in progress";
    default:
      return "unknown result";
  }
}

const char* ecclGetLastError(ecclComm_t handle) {
  thread_local std::string text;
  const sim::CommRef comm = sim::find_comm(handle);
  text = comm == nullptr ? std::string() : comm->failure_text();
  if (text.empty()) text = sim::last_text();
  return text.c_str();
}

ecclResult_t ecclGetUniqueId(ecclUniqueId* id) {
  if (id == nullptr) return refuse(ecclInvalidArgument, "id is NULL");
  const ecclResult_t error = sim::enter_eccl();
  if (error != ecclSuccess) return error;
  try {
    sim::open_rendezvous(id);
    return ecclSuccess;
  } catch (const sim::Failure& why) {
    return refuse(why.code, why.text);
  }
}

ecclResult_t ecclCommInitRank(ecclComm_t* comm, int nranks, ecclUniqueId id, int rank) {
  if (comm == nullptr) return refuse(ecclInvalidArgument, "comm is NULL");
  *comm = nullptr;
  if (nranks < 1 || rank < 0 || rank >= nranks) return refuse(ecclInvalidArgument, "no such rank");
  const ecclResult_t error = sim::enter_eccl();
  if (error != ecclSuccess) return error;
  const int device = sim::current_device();
  if (!sim::is_device(device)) return refuse(ecclUnhandledTopsError, "no device is visible");
  return sim::submit_creation([=] { return create(comm, nranks, id, rank, device); });
}

ecclResult_t ecclCommDestroy(ecclComm_t handle) {
  const ecclResult_t error = sim::enter_eccl();
  if (error != ecclSuccess) return error;
  const sim::CommRef comm = sim::take_comm(handle);
  if (comm == nullptr) return refuse(ecclInvalidArgument, kNoComm);
  comm->drain();
  return ecclSuccess;
}

ecclResult_t ecclCommAbort(ecclComm_t handle) {
  const ecclResult_t error = sim::enter_eccl();
  if (error != ecclSuccess) return error;
  const sim::CommRef comm = sim::take_comm(handle);
  if (comm == nullptr) return refuse(ecclInvalidArgument, kNoComm);
  comm->fail({ecclRemoteError, "aborted"});
  return ecclSuccess;
}

ecclResult_t ecclCommGetAsyncError(ecclComm_t handle, ecclResult_t* error) {
  const sim::CommRef comm = sim::find_comm(handle);
  if (comm == nullptr || error == nullptr) return refuse(ecclInvalidArgument, kNoComm);
  *error = comm->state();
  return ecclSuccess;
}

ecclResult_t ecclCommCount(const ecclComm_t comm, int* count) {
  return ask(comm, count, [](const sim::Comm& c) { return c.size(); });
}

ecclResult_t ecclCommDevice(const ecclComm_t comm, int* device) {
  return ask(comm, device, [](const sim::Comm& c) { return c.device(); });
}

ecclResult_t ecclCommUserRank(const ecclComm_t comm, int* rank) {
  return ask(comm, rank, [](const sim::Comm& c) { return c.rank(); });
}

ecclResult_t ecclGroupStart(void) {
  sim::group_start();
  return ecclSuccess;
}

ecclResult_t ecclGroupEnd(void) { return sim::group_end(); }

}  // extern "C"
