// See observer.h.
#include "engine/recorder/observer.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "engine/base/operations.h"
#include "engine/recorder/timeline.h"

namespace hvd::recorder {
namespace {

constexpr std::string_view kRankMark = "{rank}";

}  // namespace

std::string timeline_path(const TimelineSettings& settings, int32_t rank) {
  std::string path = settings.path;
  const std::string number = std::to_string(rank);
  if (size_t at = path.find(kRankMark); at != std::string::npos) {
    for (; at != std::string::npos; at = path.find(kRankMark, at + number.size()))
      path.replace(at, kRankMark.size(), number);
    return path;
  }
  if (rank == 0) return path;
  if (!settings.all_ranks) return "";
  // "t.json" -> "t.rank1.json"
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  const bool suffix = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1) && dot > 0;
  return path.insert(suffix ? dot : path.size(), ".rank" + number);
}

Observer::Observer(ObserverSettings settings, int32_t rank, int32_t size, std::string host, std::shared_ptr<void> ring,
                   uint64_t ring_bytes, std::string ring_file)
    : settings_(std::move(settings)),
      rank_(rank),
      size_(size),
      host_(std::move(host)),
      ring_memory_(std::move(ring)),
      ring_bytes_(ring_bytes),
      ring_file_(std::move(ring_file)),
      texts_([this](uint32_t id, std::string_view text) {
        if (recorder_) recorder_->add_text(id, text);
      }) {
  if (settings_.recorder && ring_memory_) {
    recorder_.emplace(ring_memory_.get(), ring_bytes, kRecorderCapacity);
    recorder_->claim(rank_, size_, host_, settings_.job);
    on_ = true;
    put({.kind = EventKind::Started,
         .a = static_cast<uint64_t>(wall_clock_ns()),
         .b = static_cast<uint64_t>(settings_.clock_offset_ns)});
  }
  if (settings_.timeline) start_timeline(*settings_.timeline);
}

Observer::~Observer() {
  stop_timeline();
  await_stopped_timelines();
}

std::string_view Observer::split(std::string_view name, uint64_t* number) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot + 1 == name.size() || name.size() - dot > 19) return name;
  uint64_t n = 0;
  for (const char c : name.substr(dot + 1)) {
    if (c < '0' || c > '9') return name;
    n = n * 10 + static_cast<uint64_t>(c - '0');
  }
  *number = n;
  return n == 0 ? name : name.substr(0, dot);
}

RequestName Observer::name_of(std::string_view name, bool repeats) {
  RequestName n;
  if (!repeats) name = split(name, &n.number);
  n.name = texts_.id(name);
  return n;
}

void Observer::failed(uint32_t set, const RequestName& n, base::Failure failure, const std::string& error) {
  if (!on()) return;
  const uint32_t what = texts_.id(error);
  if (recorder_) add(recorder_->counts().failures, 1);
  put({.kind = EventKind::Failed,
       .detail = static_cast<uint8_t>(failure),
       .set = static_cast<uint16_t>(set),
       .name = n.name,
       .what = what,
       .b = n.number});
}

void Observer::aborted(const std::string& cause) {
  if (!on()) return;
  const uint32_t name = texts_.id_of_last(cause, [this](uint32_t id, std::string_view text) {
    if (recorder_) recorder_->add_text(id, text, true);
  });
  put({.kind = EventKind::Aborted, .name = name});
}

void Observer::entry(uint64_t batch, uint32_t set, base::OpKind kind, const std::vector<RequestName>& requests) {
  const int64_t now = base::now_ns();
  if (recorder_) {
    add(recorder_->counts().batches, 1);
    add(recorder_->counts().requests, requests.size());
  }
  put({.time = now,
       .kind = EventKind::Entry,
       .detail = static_cast<uint8_t>(kind),
       .set = static_cast<uint16_t>(set),
       .name = requests[0].name,
       .what = static_cast<uint32_t>(requests.size()),
       .a = batch,
       .b = requests[0].number});
  uint32_t ids[6] = {};
  size_t n = 0;
  const auto put_members = [&] {
    if (n == 0) return;
    put({.time = now,
         .kind = EventKind::Members,
         .set = static_cast<uint16_t>(set),
         .name = ids[0],
         .what = ids[1],
         .a = ids[2] | uint64_t{ids[3]} << 32,
         .b = ids[4] | uint64_t{ids[5]} << 32});
    std::fill(std::begin(ids), std::end(ids), 0);
    n = 0;
  };
  for (size_t i = 1; i < requests.size(); ++i) {
    if (requests[i].number != 0) {
      put({.time = now,
           .kind = EventKind::Member,
           .set = static_cast<uint16_t>(set),
           .name = requests[i].name,
           .b = requests[i].number});
      continue;
    }
    ids[n++] = requests[i].name;
    if (n == 6) put_members();
  }
  put_members();
}

void Observer::step(bool begins, std::string_view tag, std::string_view what, uint64_t batch) {
  if (!on()) return;
  if (last_step_.name == 0 || last_step_.tag != tag || last_step_.what != what)
    last_step_ = {std::string(tag), std::string(what), step_name(tag, what)};
  if (begins && recorder_) count_step(last_step_.name);
  put({.kind = EventKind::Step, .detail = begins, .name = last_step_.name, .a = batch});
}

uint32_t Observer::step_name(std::string_view tag, std::string_view what) {
  // "SHM" and "allreduce" become SHM_ALLREDUCE.
  char text[64];
  size_t n = 0;
  const auto add = [&](std::string_view part) {
    for (const char c : part)
      if (n < sizeof text) text[n++] = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  };
  add(tag);
  if (!tag.empty()) add("_");
  add(what);
  return texts_.id({text, n});
}

void Observer::count_step(uint32_t name) {
  if (name == 0) return;  // there are too many texts
  for (auto& step : recorder_->counts().steps) {
    if (step.name.load(std::memory_order_relaxed) == 0) step.name.store(name, std::memory_order_relaxed);
    if (step.name.load(std::memory_order_relaxed) == name) return add(step.count, 1);
  }
}

void Observer::phase(bool begins, std::string_view phase, uint64_t batch) {
  if (on()) put({.kind = EventKind::Phase, .detail = begins, .name = texts_.id(phase), .a = batch});
}

void Observer::start_timeline(TimelineSettings settings) {
  stop_timeline();
  const std::string path = timeline_path(settings, rank_);
  if (path.empty()) return;
  std::lock_guard lock(timelines_mutex_);
  if (!timeline_ring_) {
    const uint64_t bytes = EventRing::bytes_for(kTimelineCapacity);
    timeline_memory_.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (!timeline_memory_)
      return base::log(base::Level::Warning, "no timeline is written: out of memory for its events");
    std::memset(timeline_memory_.get(), 0, bytes);
    timeline_ring_.emplace(timeline_memory_.get(), bytes, kTimelineCapacity);
  }
  try {
    timeline_ =
        std::make_shared<Timeline>(settings, path, *this, size_, *timeline_ring_, timeline_ring_->next(), texts_);
  } catch (const std::exception& e) {  // the job goes on without it
    base::log(base::Level::Warning, std::string("no timeline is written: ") + e.what());
    return;
  }
  marks_cycles_ = settings.mark_cycles;
  timeline_on_ = true;
  on_ = true;
}

void Observer::stop_timeline() {
  std::lock_guard lock(timelines_mutex_);
  if (!timeline_) return;
  timeline_on_ = marks_cycles_ = false;
  on_ = recorder_.has_value();
  timeline_->finish(timeline_ring_->next());
  stopped_.push_back(std::move(timeline_));
}

void Observer::await_stopped_timelines() {
  std::vector<std::shared_ptr<Timeline>> stopped;
  {
    std::lock_guard lock(timelines_mutex_);
    stopped.swap(stopped_);
  }
  for (const auto& t : stopped) t->await_end();
}

void Observer::flush() {
  std::lock_guard lock(timelines_mutex_);
  if (timeline_) timeline_->wake();
}

void Observer::save() const {
  if (recorder_) save_of(ring_memory_.get(), ring_bytes_, rank_);
}

void Observer::save_of(const void* memory, uint64_t bytes, int32_t rank) const {
  if (settings_.flight_folder.empty()) return;
  // A rank that died before it had an engine has left no ring.
  if (static_cast<const RingHeader*>(memory)->version != kRingVersion) return;
  std::string why;
  const std::string path = save_ring(memory, bytes, settings_.flight_folder, rank, &why);
  if (!path.empty())
    base::log(base::Level::Info, "the flight recorder of rank " + std::to_string(rank) + " was saved: " + path);
  else
    base::log(base::Level::Debug, "the flight recorder of rank " + std::to_string(rank) + " was not saved: " + why);
}

void Observer::end_in_order() {
  if (recorder_) recorder_->header().ended = 1;
  if (!ring_file_.empty()) remove_ring(ring_file_);
}

}  // namespace hvd::recorder
