// See mpi_comm.h. Only the constructor waits.
#include "mpi_comm.h"

#include <cstdlib>
#include <cstring>

#include "mpi_process.h"
#include "mpi_reduction.h"
#include "mpi_rendezvous.h"

namespace {

// MPI counts with an int; some libraries compute sizes in bytes with it as well.
constexpr uint64_t kMostBytes = 0x7fffffff;
// From this size on, copying a buffer costs more than a call of its own.
constexpr uint64_t kPackBelow = 64 << 10;

bool reduces(int32_t kind) { return kind == HVD_ALLREDUCE || kind == HVD_REDUCE || kind == HVD_REDUCESCATTER; }

// "524288", "512k", "1M".
int64_t bytes_of(const std::string& text) {
  char* rest = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &rest, 10);
  const char unit = static_cast<char>(*rest | 0x20);
  const int shift = unit == 'k' ? 10 : unit == 'm' ? 20 : unit == 'g' ? 30 : 0;
  if (rest != text.c_str() && number >= 0) return number << shift;
  throw hvd::Error(HVD_E_INVALID,
                   "option blocking_from = '" + text + "' is no number of bytes, such as 524288 or 512k");
}

// FNV-1a, over numbers.
struct Signature {
  uint64_t value = 14695981039346656037u;
  void add(uint64_t number) { value = (value ^ number) * 1099511628211u; }
};

class MpiRequest : public hvd::Request {
 public:
  MpiRequest(std::shared_ptr<Channel> channel, std::shared_ptr<Operation> operation)
      : channel_(std::move(channel)), operation_(std::move(operation)) {}
  ~MpiRequest() override { channel_->abandon(operation_); }
  bool test() override { return channel_->test(*operation_); }
  bool wait(int64_t deadline_ns) override { return channel_->wait(*operation_, deadline_ns); }

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Operation> operation_;
};

int number(uint64_t count) {
  if (count > kMostBytes) throw hvd::Error(HVD_E_INVALID, "more elements than max_count of query");
  return static_cast<int>(count);
}

// Where each rank's part begins.
std::vector<int> places_of(const std::vector<int>& counts) {
  std::vector<int> places;
  uint64_t at = 0;
  for (int count : counts) {
    places.push_back(number(at));
    at += static_cast<uint64_t>(count);
  }
  return places;
}

std::vector<int> numbers(const uint64_t* counts, int32_t size) {
  std::vector<int> all;
  for (int32_t r = 0; counts != nullptr && r < size; ++r) all.push_back(number(counts[r]));
  return all;
}

uint64_t sum(const uint64_t* counts, int32_t size) {
  uint64_t all = 0;
  for (int32_t r = 0; r < size; ++r) all += counts[r];
  return all;
}

}  // namespace

hvd_coll_caps MpiComm::query(const hvd::Coll& c) {
  hvd_coll_caps caps{};
  if (reduces(c.kind())) {
    if (!mpi_reduces(c.dtype(), c.op())) return caps;
    if ((c.prescale() != 1 || c.postscale() != 1) && !mpi_scales(c.dtype())) return caps;
    caps.alignment = static_cast<uint32_t>(c.element_bytes());
  }
  caps.support = HVD_NATIVE;
  caps.score = 50;
  if (c.element_bytes() != 0) caps.max_count = kMostBytes / c.element_bytes();
  caps.pack_below = kPackBelow;
  return caps;
}

void MpiComm::load() {
  load_mpi();
  load_device_types();
  device_types = mpi_device_types();
}

std::string MpiComm::info(const std::string& key) {
  if (key == "library") return mpi().version;
  if (key == "threads") return mpi_thread_level();
  if (key == "device_memory") return mpi_device_memory();
  return "";
}

// In device memory MPI moves data, and reduces with operators of its own only, in blocking calls only (Open MPI's
// nonblocking reductions do not check whose memory it is). This backend does not scale there.
hvd_coll_caps MpiComm::query_made(const hvd::Coll& c) const {
  hvd_coll_caps caps = query(c);
  if (device_type_.empty()) return caps;
  if (!reads_device_) {
    throw hvd::Error(HVD_E_UNSUPPORTED,
                     mpi().version + " does not read " + device_type_ +
                         " memory here, as the library itself reports (option devices would overrule it)");
  }
  const bool plain = c.prescale() == 1 && c.postscale() == 1;
  if (reduces(c.kind()) && !(any_thread_ && plain && mpi_reduces_alone(c.dtype(), c.op()))) return {};
  return caps;
}

MpiComm::MpiComm(const hvd::CommInit& init) : Comm(init) {
  const Rendezvous met = rendezvous(init, bytes_of(hvd::option("blocking_from", "0")));
  any_thread_ = met.any_thread;
  int64_t blocking_from = met.any_thread ? met.blocking_from : HVD_NO_DEADLINE;
  if (init.device_api != nullptr) {
    device_type_ = init.device_api->device_type;
    reads_device_ = met.reads_device;
    if (reads_device_) device_copy_ = std::make_unique<DeviceCopy>(init.device, init.device_api);
    if (met.any_thread) blocking_from = 0;
  }
  channel_ = std::make_shared<Channel>(met.comm, blocking_from, init.notify_token);
}

// The common part of all collectives. Each of them completes the signature.
std::shared_ptr<Operation> MpiComm::prepare(const hvd::Coll& c) const {
  auto o = std::make_shared<Operation>();
  o->call.kind = c.kind();
  o->dtype = c.dtype();
  o->deadline_ns = c.args().deadline_ns > 0 ? c.args().deadline_ns : hvd::now_ns() + hvd::kDefaultWaitNs;
  o->agreed = (c.args().flags & HVD_COLL_AGREED) != 0;
  o->call.type = mpi().byte;
  o->call.root = c.args().root;
  o->call.peer = c.args().peer;
  if (o->agreed) return o;
  Signature s;
  for (int32_t n : {c.kind(), c.dtype(), c.op(), c.args().root}) s.add(static_cast<uint64_t>(n));
  const bool uneven = c.args().out_counts != nullptr && c.kind() != HVD_ALLTOALL;
  for (int32_t r = 0; uneven && r < size(); ++r) s.add(c.args().out_counts[r]);
  if (c.buffers() != 0 && c.args().out_counts == nullptr && c.args().in_counts == nullptr) s.add(c.count(0));
  o->signature = s.value;
  return o;
}

// The part of reductions: type, operator, and the factors before and after.
void MpiComm::reducing(Operation& o, const hvd::Coll& c, uint64_t in_count, void* result, uint64_t result_count) const {
  o.call.type = mpi().types[c.dtype()];
  o.call.op = mpi_op(c.dtype(), c.op());
  o.postscale = c.postscale();
  if (c.op() == HVD_AVG) o.divisor = static_cast<uint32_t>(size());
  o.result = result;
  o.result_count = result_count;
  o.prescale = c.prescale();
  if (o.prescale == 1) return;
  o.work_count = in_count;
  o.work_bytes = in_count * c.element_bytes();
  if (c.kind() == HVD_ALLREDUCE) {
    o.work = c.out(0);
    o.in_place = true;
  } else {
    o.scratch.reset(new char[o.work_bytes + 1]);
    o.work = o.scratch.get();
  }
}

hvd::Work MpiComm::go(const std::shared_ptr<Operation>& o) {
  channel_->post(o);
  auto request = std::make_unique<MpiRequest>(channel_, o);
  if (request->test()) return hvd::Work::done();
  return hvd::Work(std::move(request));
}

hvd::Work MpiComm::allreduce(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t n = c.count(0);
  o->bytes = n * c.element_bytes();
  o->call.in = c.in(0) == c.out(0) ? mpi().in_place : c.in(0);
  o->call.out = c.out(0);
  o->call.in_count = number(n);
  reducing(*o, c, n, c.out(0), n);
  if (o->prescale != 1) o->call.in = c.in(0);
  return go(o);
}

hvd::Work MpiComm::reduce(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t n = c.count(0);
  const bool root = rank() == c.args().root;
  o->bytes = n * c.element_bytes();
  o->call.in = c.in(0);
  o->call.out = root ? c.out(0) : nullptr;
  o->call.in_count = number(n);
  reducing(*o, c, n, o->call.out, n);
  if (root && c.in(0) == c.out(0) && o->prescale == 1) o->call.in = mpi().in_place;
  return go(o);
}

hvd::Work MpiComm::broadcast(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t bytes = c.count(0) * c.element_bytes();
  const bool root = rank() == c.args().root;
  const bool has_out = c.args().out != nullptr && c.args().out[0].base != nullptr;
  o->bytes = bytes;
  o->call.in_count = number(bytes);
  o->call.out = root && !has_out ? const_cast<void*>(c.in(0)) : c.out(0);
  if (root && has_out && c.in(0) != c.out(0) && bytes != 0) {
    if (device_copy_) {
      device_copy_->run(c.args().out[0], c.args().in[0], bytes, o->deadline_ns);
    } else {
      std::memcpy(c.out(0), c.in(0), bytes);
    }
  }
  return go(o);
}

hvd::Work MpiComm::allgather(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t own = c.count(0), width = c.element_bytes();
  o->call.type = mpi().types[c.dtype()];
  o->call.in = c.in(0) == c.out(0) ? mpi().in_place : c.in(0);
  o->call.out = c.out(0);
  o->call.in_count = number(own);
  o->call.out_counts = numbers(c.args().out_counts, size());
  o->call.out_places = places_of(o->call.out_counts);
  o->bytes = (c.args().out_counts ? sum(c.args().out_counts, size()) : own * static_cast<uint64_t>(size())) * width;
  return go(o);
}

hvd::Work MpiComm::reducescatter(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t own = c.out_count(0, rank(), size(), c.count(0) / static_cast<uint64_t>(size()));
  if (c.in(0) == c.out(0) && c.count(0) != 0) throw hvd::Error(HVD_E_UNSUPPORTED, "a reducescatter in place");
  o->call.in = c.in(0);
  o->call.out = c.out(0);
  o->call.out_count = number(own);
  o->call.out_counts = numbers(c.args().out_counts, size());
  o->bytes = c.count(0) * c.element_bytes();
  reducing(*o, c, c.count(0), c.out(0), own);
  return go(o);
}

hvd::Work MpiComm::alltoall(const hvd::Coll& c) {
  const auto o = prepare(c);
  const uint64_t each = c.count(0) / static_cast<uint64_t>(size());
  if (c.in(0) == c.out(0) && c.count(0) != 0) throw hvd::Error(HVD_E_UNSUPPORTED, "an alltoall in place");
  o->call.type = mpi().types[c.dtype()];
  o->call.in = c.in(0);
  o->call.out = c.out(0);
  o->call.in_count = o->call.out_count = number(each);
  o->bytes = c.count(0) * c.element_bytes();
  if (c.args().in_counts == nullptr && c.args().out_counts == nullptr) return go(o);
  const std::vector<uint64_t> even(static_cast<size_t>(size()), each);
  const uint64_t* out = c.args().out_counts ? c.args().out_counts : even.data();
  o->call.in_counts = numbers(c.args().in_counts ? c.args().in_counts : even.data(), size());
  o->call.out_counts = numbers(out, size());
  o->call.in_places = places_of(o->call.in_counts);
  o->call.out_places = places_of(o->call.out_counts);
  o->bytes = std::max(o->bytes, sum(out, size()) * c.element_bytes());
  return go(o);
}

hvd::Work MpiComm::send(const hvd::Coll& c) {
  const auto o = prepare(c);
  o->call.in = c.in(0);
  o->call.in_count = number(c.count(0) * c.element_bytes());
  return go(o);
}

hvd::Work MpiComm::recv(const hvd::Coll& c) {
  const auto o = prepare(c);
  o->call.out = c.out(0);
  o->call.in_count = number(c.count(0) * c.element_bytes());
  return go(o);
}

hvd::Work MpiComm::barrier(const hvd::Coll& c) { return go(prepare(c)); }
