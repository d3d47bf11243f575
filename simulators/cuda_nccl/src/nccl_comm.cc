// Life of communicators: making, splitting, failing, ending.
#include "nccl_comm.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "runtime.h"
#include "settings.h"

namespace cusim {
namespace {

struct Communicators {
  std::mutex mutex;
  std::map<const void*, NcclRef> by_handle;
};

Communicators& communicators() {
  static auto* all = new Communicators;
  return *all;
}

// Where a rank is, as NCCL compares it: two ranks that have all of it in common would share a device.
struct Place {
  char host[64];
  int32_t device;
};

Place own_place(int device) {
  Place place{};
  const char* told = getenv("NCCL_HOSTID");
  if (told != nullptr && *told != '\0') {
    strncpy(place.host, told, sizeof place.host - 1);
  } else {
    gethostname(place.host, sizeof place.host - 1);
  }
  place.device = sim::settings().devices[static_cast<size_t>(device)];
  return place;
}

sim::Failure lost(int peer) { return {ncclRemoteError, "rank " + std::to_string(peer) + " went away"}; }

// All ranks' `mine`, in rank order.
template <class T>
std::vector<T> gather(const std::vector<sim::Socket>& peers, int rank, const T& mine) {
  const auto deadline = sim::Clock::now() + sim::settings().quiet;
  std::vector<T> all(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    if (static_cast<int>(i) != rank && !sim::send_all(peers[i].fd(), &mine, sizeof mine, deadline)) throw lost(rank);
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    if (static_cast<int>(i) == rank) {
      all[i] = mine;
    } else if (!sim::receive_all(peers[i].fd(), &all[i], sizeof(T), deadline)) {
      throw lost(static_cast<int>(i));
    }
  }
  return all;
}

void refuse_shared_devices(const std::vector<Place>& places, int rank) {
  if (settings().multi_rank) return;
  for (size_t i = 0; i < places.size(); ++i) {
    if (static_cast<int>(i) == rank || memcmp(&places[i], &places[static_cast<size_t>(rank)], sizeof(Place)) != 0) {
      continue;
    }
    throw sim::Failure{ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " +
                                             std::to_string(i) + " both on CUDA device " +
                                             std::to_string(places[i].device)};
  }
}

void take_a_while() { std::this_thread::sleep_for(std::chrono::milliseconds(settings().connect_ms)); }

// Of each rank, for a split.
struct Wish {
  int32_t color, key;
  sim::Token token;  // that of the lowest rank of a color is taken
  sim::Address address;
};

}  // namespace

ncclComm_t add(const NcclRef& nccl) {
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  communicators().by_handle[nccl.get()] = nccl;
  return nccl.get();
}

NcclRef find(ncclComm_t handle) {
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  const auto at = communicators().by_handle.find(handle);
  return at == communicators().by_handle.end() ? nullptr : at->second;
}

NcclRef take(ncclComm_t handle) {
  NcclRef found = find(handle);
  const std::lock_guard<std::mutex> lock(communicators().mutex);
  communicators().by_handle.erase(handle);
  return found;
}

ncclResult_t Nccl::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (busy_) return ncclInProgress;
  if (failure_ != ncclSuccess || comm_ == nullptr) return failure_;
  return comm_->state();
}

std::string Nccl::text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return text_.empty() && comm_ != nullptr ? comm_->failure_text() : text_;
}

ncclResult_t Nccl::ready() {
  const ncclResult_t now = state();
  if (now == ncclInProgress) {
    return refuse(ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  return now == ncclSuccess ? ncclSuccess : refuse(now, text());
}

ncclResult_t Nccl::perform(std::function<ncclResult_t()> job) {
  if (blocking) {
    const ncclResult_t result = job();
    if (result != ncclSuccess) fail(result, last_text());
    return result;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_ = true;
  }
  std::thread([self = shared_from_this(), job = std::move(job)] {
    take_a_while();
    const ncclResult_t result = job();
    if (result != ncclSuccess) self->fail(result, last_text());
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->busy_ = false;
  }).detach();
  return ncclInProgress;
}

sim::CommRef Nccl::comm() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return comm_;
}

void Nccl::set_comm(sim::CommRef comm) {
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = std::move(comm);
  if (aborted_) comm_->fail({ncclInvalidUsage, "aborted"});
}

void Nccl::fail(ncclResult_t code, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != ncclSuccess) return;
  failure_ = code;
  text_ = text;
}

void Nccl::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  if (comm_ != nullptr) comm_->fail({ncclInvalidUsage, "aborted"});
}

bool Nccl::connect(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !connected_.insert(peer).second;
}

ncclResult_t create(const NcclRef& nccl, const ncclUniqueId& id) {
  try {
    const auto deadline = sim::Clock::now() + sim::settings().quiet;
    auto peers = sim::meet(id, nccl->size, nccl->rank, deadline);
    refuse_shared_devices(gather(peers, nccl->rank, own_place(nccl->context->device)), nccl->rank);
    nccl->set_comm(std::make_shared<sim::Comm>(nccl->rank, nccl->context->device, std::move(peers)));
    return ncclSuccess;
  } catch (const sim::Failure& why) {
    return refuse(why.code, why.text);
  }
}

ncclResult_t split(const NcclRef& parent, int color, int key, NcclRef* out, bool blocking) {
  const sim::CommRef comm = parent->comm();
  ncclResult_t result = ncclSuccess;
  const auto work = [&] {
    sim::Listener listener;
    if (!listener.open(parent->size)) throw sim::Failure{ncclSystemError, "cannot open a socket to listen at"};
    const Wish mine{color, key, sim::random_token(), listener.address()};
    // The parent's connections are free: operations before this one are over, those behind it wait.
    const auto deadline = sim::Clock::now() + sim::settings().quiet;
    std::vector<Wish> wishes(static_cast<size_t>(parent->size), mine);
    for (int r = 0; r < parent->size; ++r) {
      if (r != parent->rank && !sim::send_all(comm->peer_fd(r), &mine, sizeof mine, deadline)) throw lost(r);
    }
    for (int r = 0; r < parent->size; ++r) {
      Wish& theirs = wishes[static_cast<size_t>(r)];
      if (r != parent->rank && !sim::receive_all(comm->peer_fd(r), &theirs, sizeof theirs, deadline)) throw lost(r);
    }
    if (color < 0) return;
    std::vector<int> members;
    for (int r = 0; r < parent->size; ++r) {
      if (wishes[static_cast<size_t>(r)].color == color) members.push_back(r);
    }
    const sim::Token token = wishes[static_cast<size_t>(members.front())].token;
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return wishes[static_cast<size_t>(a)].key < wishes[static_cast<size_t>(b)].key;
    });
    std::vector<sim::Address> addresses;
    for (const int r : members) addresses.push_back(wishes[static_cast<size_t>(r)].address);
    auto child = std::make_shared<Nccl>();
    child->rank = static_cast<int>(std::find(members.begin(), members.end(), parent->rank) - members.begin());
    child->size = static_cast<int>(members.size());
    child->context = parent->context;
    child->blocking = blocking;
    child->set_comm(std::make_shared<sim::Comm>(child->rank, child->context->device,
                                                sim::connect_ranks(listener, addresses, token, child->rank, deadline)));
    *out = child;
  };
  uint64_t mine = 0;
  comm->issue([&](uint64_t place) { mine = place; });
  comm->run(mine, [&] {
    try {
      work();
    } catch (const sim::Failure& why) {
      result = refuse(why.code, why.text);
      throw;
    }
  });
  if (result == ncclSuccess && comm->state() != ncclSuccess) result = refuse(comm->state(), comm->failure_text());
  return result;
}

}  // namespace cusim
