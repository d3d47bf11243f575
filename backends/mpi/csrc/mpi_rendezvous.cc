// See mpi_rendezvous.h.
#include "mpi_rendezvous.h"

#include <hvd/backend_exchange.hpp>
#include <sstream>
#include <vector>

#include "mpi_api.h"
#include "mpi_device.h"
#include "mpi_process.h"

namespace {

// The facts that a rank tells the others.
struct Member {
  int world_size = 0, world_rank = 0, any_thread = 0, reads_device = 0;
  int64_t blocking_from = 0;
  std::string trouble;  // why it cannot use MPI; "" when it can
};

std::string text_of(const Member& m) {
  std::ostringstream out;
  out << m.world_size << ' ' << m.world_rank << ' ' << m.any_thread << ' ' << m.reads_device << ' ' << m.blocking_from
      << ' ' << m.trouble;
  return out.str();
}

Member member_of(const std::string& text) {
  std::istringstream in(text);
  Member m;
  in >> m.world_size >> m.world_rank >> m.any_thread >> m.reads_device >> m.blocking_from;
  in.get();
  std::getline(in, m.trouble, '\0');
  return m;
}

Member introduce(const hvd::CommInit& init, int64_t deadline_ns, int64_t blocking_from) {
  Member me;
  try {
    begin_mpi(deadline_ns);
    with_mpi([&] {
      check_mpi(mpi().Comm_size(mpi().comm_world, &me.world_size), "Comm_size");
      check_mpi(mpi().Comm_rank(mpi().comm_world, &me.world_rank), "Comm_rank");
      note_device_memory();
      me.reads_device = init.device_api != nullptr && mpi_reads(init.device_api->device_type);
    });
    me.any_thread = mpi_any_thread();
    me.blocking_from = blocking_from;
  } catch (const hvd::Error& error) {
    me.trouble = error.text;
  }
  return me;
}

constexpr const char* kKey = "mpi/members";  // of the store

void check(const hvd::CommInit& init, const std::vector<Member>& all) {
  for (int32_t r = 0; r < init.size; ++r) {
    const std::string& trouble = all[static_cast<size_t>(r)].trouble;
    if (trouble.empty()) continue;
    throw hvd::Error(HVD_E_UNAVAILABLE,
                     "rank " + std::to_string(init.ranks[static_cast<size_t>(r)]) + " cannot use MPI: " + trouble);
  }
  bool one_job = true;
  std::vector<bool> seen(static_cast<size_t>(all[0].world_size));
  for (const Member& m : all) {
    one_job = one_job && m.world_size == all[0].world_size && !seen[static_cast<size_t>(m.world_rank)];
    if (one_job) seen[static_cast<size_t>(m.world_rank)] = true;
  }
  if (one_job) return;
  const Member& me = all[static_cast<size_t>(init.rank)];
  throw hvd::Error(HVD_E_UNAVAILABLE,
                   "MPI does not see the " + std::to_string(init.size) + " ranks as one job: on rank " +
                       std::to_string(init.ranks[static_cast<size_t>(init.rank)]) + " MPI_COMM_WORLD has " +
                       std::to_string(me.world_size) + (me.world_size == 1 ? " process" : " processes") + " (" +
                       mpi_vendor_lib() +
                       "). The processes were not started by this MPI's launcher: start with its mpirun, or with "
                       "horovodrun --mpi");
}

// A tag that is the same on all members, and rarely that of another communicator; at most 32767, which every MPI takes.
int tag_of(const std::string& key) {
  uint32_t hash = 2166136261u;
  for (unsigned char c : key) hash = (hash ^ c) * 16777619u;
  return static_cast<int>(hash % 32749);
}

// Owns all objects it refers to, since its thread may be abandoned.
struct Joining {
  std::vector<int> ranks;
  int tag = 0;
  Handle comm = 0;

  void run() {
    const MpiApi& m = mpi();
    Handle world = 0, group = 0, made = 0;
    check_mpi(m.Comm_group(m.comm_world, &world), "Comm_group");
    check_mpi(m.Group_incl(m.written(world), static_cast<int>(ranks.size()), ranks.data(), &group), "Group_incl");
    check_mpi(m.Comm_create_group(m.comm_world, m.written(group), tag, &made), "Comm_create_group");
    comm = m.written(made);
    check_mpi(m.Comm_set_errhandler(comm, m.errors_return), "Comm_set_errhandler");
    m.Group_free(&group);
    m.Group_free(&world);
  }
};

}  // namespace

Rendezvous rendezvous(const hvd::CommInit& init, int64_t blocking_from) {
  const int64_t deadline_ns = init.deadline_ns > 0 ? init.deadline_ns : hvd::now_ns() + hvd::kDefaultWaitNs;
  const std::string mine = text_of(introduce(init, deadline_ns, blocking_from));
  std::vector<Member> all;
  for (const std::string& text : hvd::exchange(init, kKey, mine, init.deadline_ns)) all.push_back(member_of(text));
  check(init, all);
  auto joining = std::make_shared<Joining>();
  joining->tag = tag_of(init.key);
  Rendezvous met;
  met.any_thread = met.reads_device = true;
  met.blocking_from = all[0].blocking_from;
  for (const Member& m : all) {
    joining->ranks.push_back(m.world_rank);
    met.any_thread = met.any_thread && m.any_thread;
    met.reads_device = met.reads_device && m.reads_device;
  }
  if (!with_mpi_until(deadline_ns, [joining] { joining->run(); })) {
    mpi_is_damaged();
    throw hvd::Error(HVD_E_TIMEOUT, "not all ranks came to MPI_Comm_create_group by the deadline", HVD_EF_COMM_DEAD);
  }
  met.comm = joining->comm;
  hvd::forget_exchange(init, kKey);  // all have read it, or they would not have come
  return met;
}
