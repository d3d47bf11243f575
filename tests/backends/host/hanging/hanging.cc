// A backend that hangs: the embedded one of HVD_TEST_HANG_OVER, whose call HVD_TEST_HANG_CALL (or each of several, with
// commas between) does not come back on
// rank HVD_TEST_HANG_RANK ("all": on each), from the HVD_TEST_HANG_FROM-th on (1 by default). With
// HVD_TEST_HANG_UNTIL=abort it comes back after an abort of any communicator; with HVD_TEST_HANG_UNTIL=PATH when that
// file exists, and PATH.begun exists as soon as the call hangs; without, never. "abort" as the call comes never back.
// "never" as the call: requests are never complete. "group_begin": the backend has groups, which fail after the abort.
//
// With HVD_TEST_HANG_HOW=throw, crash, exit, exit0 or thread_exit0 the call does that in place of hanging; with "flush"
// it lets the thread flush denormals to zero, and goes on.
//
// With HVD_TEST_SPLIT=FOLDER the backend has split, and FOLDER gets a file RANK.CALL.SIZE for each create and split. A
// split waits for all ranks; with HVD_TEST_SPLIT_UNSUPPORTED it answers that the library cannot do that.
#include <dlfcn.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "hvd/backend_abi.h"

namespace {

const hvd_comm_api* inner;
const hvd_host_api* host_api;
std::atomic<int> calls{0};
std::atomic<bool> aborted{false};
int32_t world_rank = -1, world_size = 0;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool asked(const char* call) {
  const std::string rank = variable("HVD_TEST_HANG_RANK");
  const std::string named = "," + variable("HVD_TEST_HANG_CALL") + ",";
  return named.find("," + std::string(call) + ",") != std::string::npos &&
         (rank == "all" || rank == std::to_string(world_rank)) &&
         ++calls >= std::max(1, std::atoi(variable("HVD_TEST_HANG_FROM").c_str()));
}

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#endif
}

void hang(const char* call) {
  if (!asked(call)) return;
  const std::string how = variable("HVD_TEST_HANG_HOW");
  if (how == "throw") throw std::out_of_range("the 7th element of 3");
  if (how == "crash") std::signal(SIGSEGV, SIG_DFL), std::raise(SIGSEGV);
  if (how == "exit") std::exit(5);
  if (how == "flush") return flush_denormals();
  if (how == "exit0") std::exit(0);
  if (how == "thread_exit0") std::thread([] { std::exit(0); }).join();
  const std::string until = variable("HVD_TEST_HANG_UNTIL");
  if (until.empty() || until == "abort") {
    while (until.empty() || !aborted) usleep(2000);
    return;
  }
  std::ofstream(until + ".begun").put('x');
  while (access(until.c_str(), F_OK) != 0 && !aborted) usleep(2000);
}

void note(const char* call, int32_t size) {
  const std::string folder = variable("HVD_TEST_SPLIT");
  if (folder.empty()) return;
  std::ofstream(folder + "/" + std::to_string(world_rank) + "." + call + "." + std::to_string(size)).put('x');
}

hvd_rc create(const hvd_comm_args* args, hvd_comm* comm, hvd_error* error) {
  world_rank = args->ranks[args->rank];
  world_size = std::max(world_size, args->size);
  hang("create");
  note("create", args->size);
  return inner->create(args, comm, error);
}
// Makes the part anew. Looks first for a key that no rank sets: a deadline in the past ends that at once.
hvd_rc split(hvd_comm, const hvd_comm_args* args, hvd_comm* comm, hvd_error* error) {
  note("split", args->size);
  *comm = nullptr;
  if (!variable("HVD_TEST_SPLIT_UNSUPPORTED").empty()) return HVD_E_UNSUPPORTED;
  char value[8] = {};
  uint64_t n = sizeof value;
  hvd_error missing{};
  missing.hdr = {sizeof missing, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  if (host_api->store_get(args->store, "nothing", value, &n, 1, &missing) != HVD_E_TIMEOUT) return HVD_E_INTERNAL;
  int64_t come = 0;
  if (const hvd_rc rc = host_api->store_add(args->store, "come", 1, &come, error); rc != HVD_OK) return rc;
  if (come == world_size) host_api->store_set(args->store, "all", value, 1, &missing);
  n = sizeof value;
  if (const hvd_rc rc = host_api->store_get(args->store, "all", value, &n, args->deadline_ns, error); rc != HVD_OK)
    return rc;
  return args->size == 0 ? HVD_OK : inner->create(args, comm, error);
}
hvd_rc collective(hvd_comm comm, const hvd_coll_args* args, hvd_req* request, hvd_error* error) {
  hang("collective");
  return inner->collective(comm, args, request, error);
}
hvd_rc req_test(hvd_req request, hvd_error* error) {
  hang("req_test");
  if (asked("never") && !aborted) return HVD_INPROGRESS;
  return inner->req_test(request, error);
}
hvd_rc req_wait(hvd_req request, int64_t deadline_ns, hvd_error* error) {
  hang("req_wait");
  if (asked("never") && !aborted) {
    usleep(1000);
    return HVD_INPROGRESS;
  }
  return inner->req_wait(request, deadline_ns, error);
}
hvd_rc req_free(hvd_req request) {
  hang("req_free");
  return inner->req_free(request);
}
hvd_rc group_begin(hvd_comm, hvd_error*) {
  hang("group_begin");
  return HVD_E_ABORTED;
}
hvd_rc group_end(hvd_comm, hvd_error*) { return HVD_E_ABORTED; }
hvd_rc abort_comm(hvd_comm comm, hvd_error* error) {
  aborted = true;
  while (asked("abort")) usleep(2000);
  return inner->abort(comm, error);
}
hvd_rc query(hvd_comm comm, const hvd_coll_args* args, hvd_coll_caps* caps, hvd_error* error) {
  hang("query");
  return inner->query(comm, args, caps, error);
}
hvd_rc destroy(hvd_comm comm, hvd_error* error) {
  hang("destroy");
  return inner->destroy(comm, error);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  const std::string rank = variable("HOROVOD_RANK");
  world_rank = rank.empty() ? -1 : std::atoi(rank.c_str());
  hang("load");
  void* library = dlopen(variable("HVD_TEST_HANG_OVER").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return HVD_E_UNAVAILABLE;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  const hvd_backend_api* found = nullptr;
  if (const hvd_rc rc = entry(host, &found, error); rc != HVD_OK) return rc;
  inner = found->comm;
  host_api = host;
  static hvd_comm_api comm;
  static hvd_backend_api api;
  comm = *inner;
  comm.create = create;
  comm.collective = collective;
  if (!variable("HVD_TEST_SPLIT").empty()) comm.split = split;
  comm.req_test = req_test;
  comm.req_wait = req_wait;
  comm.req_free = req_free;
  comm.abort = abort_comm;
  comm.query = query;
  comm.destroy = destroy;
  if (variable("HVD_TEST_HANG_CALL") == "group_begin") {
    comm.caps = (comm.caps & ~static_cast<uint64_t>(HVD_CAP_VECTORED)) | HVD_CAP_GROUP_SAME;
    comm.group_begin = group_begin;
    comm.group_end = group_end;
  }
  api = *found;
  api.name = "hanging";
  api.tag = "HANGING";
  api.comm = &comm;
  *out = &api;
  return HVD_OK;
}
