// The engine's side of the observer: the memory of its ring, the names of requests, and the switch of the timeline.
#include <utility>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

namespace {

constexpr uint32_t kOn = 1, kMarkCycles = 2, kAllRanks = 4;  // of Entry::Observe
constexpr size_t kMostShapes = 8;

// "float32|[3, 4]": the types and shapes of a request's tensors.
std::string described(const agreement::SignatureFields& f) {
  std::string types, shapes;
  for (size_t i = 0; i < f.tensors.size() && i < kMostShapes; ++i) {
    const auto& t = f.tensors[i];
    const char* type = base::dtype_name(t.dtype);
    if (i == 0 || t.dtype != f.tensors[i - 1].dtype) types += (i ? ", " : "") + std::string(type);
    shapes += i ? ", [" : "[";
    for (size_t d = 0; d < t.shape.size(); ++d)
      shapes += (d ? ", " : "") + (t.shape[d] < 0 ? std::string("*") : std::to_string(t.shape[d]));
    shapes += "]";
  }
  if (f.tensors.size() > kMostShapes) shapes += ", and " + std::to_string(f.tensors.size() - kMostShapes) + " more";
  return types + "|" + shapes;
}

}  // namespace

void Engine::make_observer() {
  // A late call of a backend may come when the engine has gone: the observer keeps the memory of its ring.
  std::shared_ptr<void> ring;
  std::string file;
  if (config_.observe.recorder && segment_) {
    ring = std::shared_ptr<void>(segment_, segment_->recorder(config_.bell_slot));
  } else if (config_.observe.recorder) {
    // A job of one process leaves no file behind, unless another process has to read it.
    const bool in_file = config_.size > 1 || config_.observe.watched;
    auto own = std::make_shared<recorder::MappedMemory>(recorder::map_ring(
        in_file ? config_.observe.flight_folder : "", config_.rank, agreement::Segment::kRecorderBytes));
    ring = std::shared_ptr<void>(own, own->get());
    file = own->path();
  }
  const auto rank = static_cast<size_t>(config_.rank);
  observer_ = std::make_shared<recorder::Observer>(
      config_.observe, config_.rank, config_.size, rank < config_.host_names.size() ? config_.host_names[rank] : "",
      std::move(ring), agreement::Segment::kRecorderBytes, std::move(file));
}

// With the inbox's mutex held.
void Engine::observe_submission(calls::Request& request) {
  if (!observer_->on()) return;
  const agreement::Signature& sig = *request.item.sig;
  const auto& f = sig.fields();
  // A signature does not know sizes that may differ between ranks, such as an allgather's first one.
  uint64_t bytes = 0;
  for (const auto& tensor : request.call.in) bytes += tensor.bytes();
  request.observed = observer_->submitted(request.set, f.kind, *request.item.name, f.repeats, bytes, sig.bytes(),
                                          [&] { return described(f); });
}

void Engine::observe_entry(agreement::SetId set, const std::vector<agreement::BatchItem>& items) {
  batch_names_.clear();
  for (const auto& item : items) {
    const bool known = item.request && item.request->observed.name != 0;
    // This rank has joined, or the observer was off when the request came.
    batch_names_.push_back(known ? item.request->observed
                                 : observer_->name_of(*item.item.name, item.item.sig->fields().repeats));
  }
  observer_->entry(batches_, set, items[0].item.sig->fields().kind, batch_names_);
}

// A neighbour on this host has died: what it did last is in its slot.
void Engine::save_ring_of(int32_t peer) {
  if (!segment_ || node_->is_closed()) return;
  for (const LinkConfig& l : config_.links)
    if (l.peer == peer && l.sock_fd < 0)
      observer_->save_of(segment_->recorder(l.is_parent ? 0 : l.slot), agreement::Segment::kRecorderBytes, peer);
}

// ----------------------------------------------------------------------------------------------------- the timeline

calls::RequestRef Engine::switch_timeline(const std::string& path, bool mark_cycles, bool all_ranks) {
  CallUnderWay under_way(*this);
  check_usable();
  auto request = new_request(0, "#timeline");
  if (config_.rank != 0) {
    request->complete();
    return request;
  }
  const uint32_t flags = path.empty() ? 0 : kOn | (mark_cycles ? kMarkCycles : 0) | (all_ranks ? kAllRanks : 0);
  push({.type = Command::Observe, .request = request, .set = flags, .text = path}, false);
  return request;
}

void Engine::observe(uint32_t flags, const std::string& path) {
  if (flags & kOn)
    observer_->start_timeline(
        {path, (flags & kMarkCycles) != 0, (flags & kAllRanks) != 0, config_.observe.timeline_max_bytes});
  else
    observer_->stop_timeline();
  if (timeline_requests_.empty()) return;
  auto request = std::move(timeline_requests_.front());
  timeline_requests_.pop_front();
  completed(request);
}

}  // namespace hvd
