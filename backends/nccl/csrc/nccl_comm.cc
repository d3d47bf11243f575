// See nccl_comm.h: creation, and the answers to query and info. The collectives are in nccl_collectives.cc.
#include "nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "nccl_types.h"

namespace {

// NCCL's kernels for 8-bit floats are for devices from here on ("sm_90").
constexpr int kFloat8Arch = 90;

// This rank's options, which answer query before there is a communicator; set when the backend is loaded.
Agreement g_best;

bool device_has_float8(CudaDevice& device) {
  const std::string arch = device.props().arch;
  const size_t digits = arch.find_first_of("0123456789");
  return digits != std::string::npos && std::atoi(arch.c_str() + digits) >= kFloat8Arch;
}

hvd_coll_caps answer(const hvd::Coll& c, const Agreement& agreed) {
  hvd_coll_caps caps{};
  const bool reduces = c.kind() == HVD_ALLREDUCE || c.kind() == HVD_REDUCE || c.kind() == HVD_REDUCESCATTER;
  const NcclApi* const api = nccl_if_found();
  // Without the library: the answers for the oldest supported version.
  if (reduces && !nccl_reduces(c, api != nullptr ? api->version : kNcclLeastVersion)) return caps;
  if (reduces && is_float8(c.dtype()) && !agreed.float8) return caps;
  if (reduces && agreed.exact && nccl_loses_nan(c)) return caps;
  caps.support = HVD_NATIVE;
  caps.score = 90;
  // Data that are only moved may lie at any address, elements that are reduced at multiples of their size.
  caps.alignment = reduces ? static_cast<uint32_t>(c.element_bytes()) : 1;
  caps.pack_below = agreed.pack_below;
  return caps;
}

// Without the option `nonblocking` the field stays unset, and NCCL_COMM_BLOCKING decides.
ncclConfig_t config_of(const Agreement& agreed) {
  ncclConfig_t config;
  if (agreed.nonblocking) config.blocking = 0;
  return config;
}

}  // namespace

void NcclComm::load() {
  load_nccl();
  g_best = options_of_this_rank();
  g_best.float8 = true;
}

// Passes: L0.query
hvd_coll_caps NcclComm::query(const hvd::Coll& c) { return answer(c, g_best); }

// Passes: L2.query
hvd_coll_caps NcclComm::query_made(const hvd::Coll& c) const { return answer(c, agreed_); }

// Passes: L2.allreduce
void NcclComm::id_create(void* id) { NCCL(ncclGetUniqueId(static_cast<ncclUniqueId*>(id))); }

// All ranks of the parent call this; ranks that are in no part have a size of 0.
//
// Passes: L4.split
NcclComm::NcclComm(NcclComm& parent, const hvd::CommInit& init) : Comm(init), agreed_(parent.agreed_) {
  const NcclApi& api = nccl();
  if (api.ncclCommSplit == nullptr) throw hvd::Error(HVD_E_UNSUPPORTED, "this NCCL has no ncclCommSplit");
  constexpr int kNoColor = -1;
  const auto least = std::min_element(init.ranks.begin(), init.ranks.end());  // parts share no rank
  const int color = init.size == 0 ? kNoColor : *least, rank = init.rank;
  handle_->begin(
      device(), "ncclCommSplit", init.deadline_ns,
      [&api, from = parent.handle_, color, rank, config = config_of(agreed_)](ncclComm_t* comm) mutable {
        return api.ncclCommSplit(from->raw(), color, rank, comm, &config);
      },
      parent.handle_);
}

// Passes: L2.allreduce, L2.process_sets, L4.create_deadline
NcclComm::NcclComm(const hvd::CommInit& init) : Comm(init) {
  const NcclApi& api = nccl();
  agreed_ = agree(init, api.version >= kNcclFloat8Version && device_has_float8(device()));
  const int32_t rank = init.rank, size = init.size;
  ncclUniqueId id;
  if (init.id.size() != sizeof(id)) throw hvd::Error(HVD_E_INVALID, "the communicator's id has the wrong size");
  std::memcpy(&id, init.id.data(), sizeof(id));
  if (api.ncclCommInitRankConfig == nullptr) {
    handle_->begin(device(), "ncclCommInitRank", init.deadline_ns,
                   [&api, id, rank, size](ncclComm_t* comm) { return api.ncclCommInitRank(comm, size, id, rank); });
    return;
  }
  handle_->begin(device(), "ncclCommInitRankConfig", init.deadline_ns,
                 [&api, id, rank, size, config = config_of(agreed_)](ncclComm_t* comm) mutable {
                   return api.ncclCommInitRankConfig(comm, size, id, rank, &config);
                 });
}

void* NcclComm::mem_register(const hvd_buf& buf) {
  if (nccl().ncclCommRegister == nullptr || nccl().ncclCommDeregister == nullptr)
    throw hvd::Error(HVD_E_UNSUPPORTED, "this NCCL registers no memory");
  void* registered = nullptr;
  handle_->run("ncclCommRegister", 0, [&](NcclHandle::Calls& calls) {
    COMM_CALL(calls, ncclCommRegister(calls.comm(), static_cast<char*>(buf.base) + buf.offset, buf.bytes, &registered));
  });
  return registered;
}

void NcclComm::mem_deregister(void* registered) {
  if (registered == nullptr || handle_->leaving()) return;  // NCCL deregisters it with the communicator
  // With a short deadline, since the communicator ends and must not wait long for a call that does not return.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  handle_->run("ncclCommDeregister", std::chrono::nanoseconds(until.time_since_epoch()).count(),
               [&](NcclHandle::Calls& calls) { COMM_CALL(calls, ncclCommDeregister(calls.comm(), registered)); });
}
