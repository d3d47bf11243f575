// See mesh.h.
//
// Gloo's own rendezvous could connect the ranks, but it does not name a missing rank, has a timeout instead of a
// deadline, and leaves its keys in the store.
#include "mesh.h"

#include <gloo/barrier.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <hvd/backend_exchange.hpp>
#include <map>
#include <mutex>

#include "addresses.h"
#include "errors.h"
#include "signals.h"

namespace hvd::gloo_backend {
namespace {

namespace tcp = ::gloo::transport::tcp;
using std::chrono::milliseconds;

constexpr int64_t kNsPerMs = 1000000;
constexpr const char *kHosts = "gloo/hosts", *kPairs = "gloo/pairs";  // keys of the store
constexpr milliseconds kForever = std::chrono::hours(100);

milliseconds until(int64_t deadline_ns) {
  if (deadline_ns == HVD_NO_DEADLINE) return kForever;
  if (deadline_ns <= 0) return milliseconds(kDefaultWaitNs / kNsPerMs);
  return milliseconds(std::max<int64_t>((deadline_ns - now_ns()) / kNsPerMs, 1));
}

// One device, which is a thread that polls sockets, for all communicators at one address.
std::shared_ptr<::gloo::transport::Device> device_at(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<::gloo::transport::Device>> devices;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<::gloo::transport::Device> device = devices[address].lock();
  if (device == nullptr) {
    SignalsBlocked blocked;
    tcp::attr attr;
    attr.hostname = address;
    device = tcp::CreateDevice(attr);
    devices[address] = device;
  }
  return device;
}

}  // namespace

Settings settings() {
  Settings s;
  const auto legacy = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  s.iface = option("iface", "");
  s.iface_source = "option iface (HOROVOD_BACKEND_GLOO_IFACE)";
  if (s.iface.empty() && !legacy("HOROVOD_GLOO_IFACE").empty()) {
    s.iface = legacy("HOROVOD_GLOO_IFACE");
    s.iface_source = "HOROVOD_GLOO_IFACE";
  }
  for (const std::string& text : {legacy("HOROVOD_GLOO_TIMEOUT_SECONDS"), option("timeout_s", "")}) {
    if (!text.empty())
      s.timeout_s = static_cast<int32_t>(std::clamp(std::ceil(std::strtod(text.c_str(), nullptr)), 0.0, 86400.0));
  }
  s.algorithm = option("algorithm", "auto");
  for (char& c : s.algorithm) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

std::string Mesh::create_pairs(const std::string& address, milliseconds left) {
  device_ = device_at(address);
  const auto tcp_context = device_->createContext(rank, size);
  tcp_context->setTimeout(std::max(left / 5, milliseconds(1)));  // a pair waits five times as long to connect
  transport_ = std::make_shared<Transport>(tcp_context);
  transportContext_ = transport_;
  std::string all;
  for (int r = 0; r < size; ++r) {
    std::vector<char> bytes;
    if (r != rank) bytes = transportContext_->createPair(r)->address().bytes();
    const uint64_t n = bytes.size();
    all.append(reinterpret_cast<const char*>(&n), sizeof n);
    all.append(bytes.begin(), bytes.end());
  }
  return all;
}

namespace {

// The addresses that create_pairs() of a peer has written for `rank`.
std::vector<char> address_for(const std::string& all, int rank) {
  size_t at = 0;
  for (int r = 0;; ++r) {
    uint64_t n = 0;
    if (at + sizeof n > all.size()) break;
    std::memcpy(&n, all.data() + at, sizeof n);
    at += sizeof n;
    if (n > all.size() - at) break;
    if (r == rank)
      return std::vector<char>(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at + n));
    at += n;
  }
  throw Error(HVD_E_REMOTE, "a peer's list of Gloo addresses is incomplete: it runs another version of this backend");
}

}  // namespace

void Mesh::connect_pairs(const CommInit& init, const std::vector<std::string>& theirs, const std::string& address) {
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    try {
      getPair(r)->connect(address_for(theirs[static_cast<size_t>(r)], rank));
    } catch (...) {
      const Failure failure = failure_of(
          std::current_exception(), "rank " + std::to_string(init.ranks[static_cast<size_t>(rank)]) + " at " + address +
                                        " and rank " + std::to_string(init.ranks[static_cast<size_t>(r)]) +
                                        " could not connect (option iface chooses other interfaces)");
      failure.raise();
    }
  }
}

std::shared_ptr<Mesh> Mesh::connect(const CommInit& init, Settings* settings) {
  auto mesh = std::make_shared<Mesh>(init.rank, init.size);
  const std::string own = list_addresses(settings->iface, settings->iface_source);
  // Each rank's addresses, and with them rank 0's choice of the algorithm.
  std::vector<std::string> lists = exchange(init, kHosts, settings->algorithm + "\n" + own, init.deadline_ns);
  settings->algorithm = lists[0].substr(0, lists[0].find('\n'));
  for (std::string& list : lists) list.erase(0, list.find('\n') + 1);
  const std::string address = choose_address(lists, init.hosts, init.rank, !settings->iface.empty());
  std::string pairs;
  try {
    pairs = mesh->create_pairs(address, until(init.deadline_ns));
  } catch (...) {
    throw Error(HVD_E_UNAVAILABLE, failure_of(std::current_exception(), "Gloo cannot listen at " + address).text);
  }
  mesh->connect_pairs(init, exchange(init, kPairs, pairs, init.deadline_ns), address);
  mesh->setTimeout(kForever);
  // This rank has all its connections, but the other ranks may not.
  try {
    ::gloo::BarrierOptions options(mesh);
    mesh->set_limits(Transport::Clock::time_point::max(), until(init.deadline_ns));
    ::gloo::barrier(options);
  } catch (...) {
    failure_of(std::current_exception(), "a rank was lost while the communicator was made").raise();
  }
  mesh->transport_->post_sentinels();
  for (const char* key : {kHosts, kPairs}) forget_exchange(init, key);
  return mesh;
}

}  // namespace hvd::gloo_backend
