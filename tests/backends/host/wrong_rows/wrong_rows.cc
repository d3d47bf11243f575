// A backend that says wrong numbers of rows: the embedded one of HVD_TEST_WRONG_OVER. Where the engine exchanges them
// (an allgather or alltoall of int64 in one buffer), the first number that rank HVD_TEST_WRONG_RANK sends is
// HVD_TEST_WRONG_ROWS. That rank itself goes on with its right numbers as far as the exchange lets it.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hvd/backend_abi.h"

namespace {

const hvd_comm_api* inner;
int32_t world_rank = -1;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

hvd_rc create(const hvd_comm_args* args, hvd_comm* comm, hvd_error* error) {
  world_rank = args->ranks[args->rank];
  return inner->create(args, comm, error);
}

hvd_rc collective(hvd_comm comm, const hvd_coll_args* args, hvd_req* request, hvd_error* error) {
  const bool moves = args->coll == HVD_ALLGATHER || args->coll == HVD_ALLTOALL;
  if (!moves || args->dtype != HVD_INT64 || args->n_bufs != 1 || args->in[0].bytes < sizeof(int64_t) ||
      variable("HVD_TEST_WRONG_RANK") != std::to_string(world_rank))
    return inner->collective(comm, args, request, error);
  static std::vector<int64_t> numbers;  // one collective at a time
  numbers.resize(args->in[0].bytes / sizeof(int64_t));
  std::memcpy(numbers.data(), static_cast<const char*>(args->in[0].base) + args->in[0].offset, args->in[0].bytes);
  numbers[0] = std::stoll(variable("HVD_TEST_WRONG_ROWS"));
  const hvd_buf in = {numbers.data(), 0, args->in[0].bytes};
  hvd_coll_args wrong = *args;
  wrong.in = &in;
  return inner->collective(comm, &wrong, request, error);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out,
                                                                              hvd_error* error) {
  void* library = dlopen(variable("HVD_TEST_WRONG_OVER").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return HVD_E_UNAVAILABLE;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  const hvd_backend_api* found = nullptr;
  if (const hvd_rc rc = entry(host, &found, error); rc != HVD_OK) return rc;
  inner = found->comm;
  static hvd_comm_api comm;
  static hvd_backend_api api;
  comm = *inner;
  comm.create = create;
  comm.split = nullptr;
  comm.collective = collective;
  api = *found;
  api.name = "wrong_rows";
  api.tag = "WRONG";
  api.comm = &comm;
  *out = &api;
  return HVD_OK;
}
