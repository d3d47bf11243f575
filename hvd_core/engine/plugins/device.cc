// See device.h.
#include "engine/plugins/device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/clock.h"
#include "engine/plugins/host_api.h"

namespace hvd::plugins {
namespace {

constexpr int64_t kLastWaitNs = 2'000'000'000;
// The size of the pool: at least this much, or this part of the device's memory. Freeing memory may wait for the
// device.
constexpr uint64_t kPoolBytes = uint64_t{512} << 20, kPoolPart = 16;

hvd_copy_item item_of(const hvd_buf& dst, const hvd_buf& src, uint64_t count, int32_t dtype, double scale) {
  hvd_copy_item item;
  std::memset(&item, 0, sizeof item);
  item.hdr = {sizeof item, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  item.dst = dst;
  item.src = src;
  item.count = count;
  item.src_dtype = item.dst_dtype = dtype;
  item.scale = scale == 1.0 ? 0.0 : scale;
  return item;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ marks

Mark::~Mark() {
  if (device_->abandoned()) return;
  std::lock_guard lock(device_->mutex_);
  // An event must not be recorded again before its stream has reached it.
  if (reached_.load(std::memory_order_relaxed))
    device_->recycle(event_);
  else
    device_->set_aside(event_);
}

// No mutex: event_query may come from any thread at any time.
bool Mark::reached() {
  if (reached_.load(std::memory_order_acquire)) return true;
  hvd_error error = empty_error();
  const hvd_rc rc =
      device_->ask(Call::device_event_query, &error, [&] { return device_->api_->event_query(event_, &error); });
  if (rc == HVD_INPROGRESS) return false;
  if (rc != HVD_OK) device_->fail("event_query", rc, error);
  reached_.store(true, std::memory_order_release);
  return true;
}

bool Mark::wait(int64_t deadline_ns) {
  if (reached()) return true;
  if (HVD_HAS(device_->api_, hvd_device_api, event_wait)) {
    hvd_error error = empty_error();
    const hvd_rc rc = device_->ask(Call::device_event_wait, &error,
                                   [&] { return device_->api_->event_wait(event_, deadline_ns, &error); });
    // A timeout of this wait is no failure of the operation.
    if (rc != HVD_OK && rc != HVD_INPROGRESS && rc != HVD_E_TIMEOUT) device_->fail("event_wait", rc, error);
    return reached();
  }
  int64_t pause_ns = 20'000;
  while (!reached()) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    const timespec pause{0, static_cast<long>(std::min(left, pause_ns))};
    nanosleep(&pause, nullptr);
    pause_ns = std::min<int64_t>(pause_ns * 2, 1'000'000);
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------- open and close

std::shared_ptr<Device> Device::open(std::shared_ptr<Backend> backend, int32_t ordinal) {
  std::shared_ptr<Device> made(new Device(std::move(backend)));
  made->begin(ordinal);
  return made;
}

void Device::begin(int32_t ordinal) {
  ordinal_ = ordinal;
  if (!HVD_HAS(api_, hvd_device_api, stream_create) || !HVD_HAS(api_, hvd_device_api, event_create) ||
      !HVD_HAS(api_, hvd_device_api, mem_alloc)) {
    throw BackendError(HVD_E_UNSUPPORTED, 0, 0,
                       backend_->name() +
                           ": open: its device table has no streams, events or memory, which the engine "
                           "needs for tensors on a device (UNSUPPORTED)");
  }
  hvd_error error = empty_error();
  hvd_rc rc = ask(Call::device_open, &error, [&] { return api_->open(ordinal, nullptr, &device_, &error); });
  if (rc != HVD_OK) {
    device_ = nullptr;
    fail("open", rc, error);
  }
  hvd_device_props props;
  std::memset(&props, 0, sizeof props);
  props.hdr = {sizeof props, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  rc = ask(Call::device_props, &error, [&] { return api_->props(device_, &props, &error); });
  if (rc != HVD_OK) fail("props", rc, error);
  batch_limit_ = props.batch_limit ? props.batch_limit : UINT32_MAX;
  handles_ = props.flags & HVD_DEVICE_HANDLES;
  pool_bytes_ = std::max(kPoolBytes, props.total_bytes / kPoolPart);
  if (props.alignment > kAlignment) alignment_ = std::bit_ceil(uint64_t{props.alignment});
  rc = ask(Call::device_stream_create, &error, [&] { return api_->stream_create(device_, 0, &stream_, &error); });
  if (rc != HVD_OK) {
    stream_ = nullptr;
    fail("stream_create", rc, error);
  }
}

int32_t Device::count(const Backend& backend) noexcept {
  const hvd_device_api* const api = backend.device_api();
  hvd_error ignored = empty_error();
  int32_t n = 0;
  if (!HVD_HAS(api, hvd_device_api, count) ||
      answer_of(Call::device_count, backend.name(), &ignored, [&] { return api->count(&n, &ignored); }) != HVD_OK)
    return 0;
  return n;
}

int32_t Device::owner(const Backend& backend, const void* data) noexcept {
  const hvd_device_api* const api = backend.device_api();
  hvd_error ignored = empty_error();
  int32_t kind = HVD_MEM_HOST, ordinal = -1;
  if (!HVD_HAS(api, hvd_device_api, mem_query) || answer_of(Call::device_mem_query, backend.name(), &ignored, [&] {
                                                    return api->mem_query(data, &kind, &ordinal, &ignored);
                                                  }) != HVD_OK)
    return -1;
  return kind == HVD_MEM_HOST ? -1 : ordinal;
}

Device::~Device() {
  if (abandoned() || !device_) return;
  hvd_error ignored = empty_error();
  const int64_t deadline = now_ns() + kLastWaitNs;
  bool quiet = !stream_ || ask(Call::device_stream_sync, &ignored,
                               [&] { return api_->stream_sync(stream_, deadline, &ignored); }) == HVD_OK;
  // Callers' streams may not have reached some marks and copies yet.
  while (quiet && in_use()) {
    const timespec pause{0, 200'000};
    if (now_ns() < deadline)
      nanosleep(&pause, nullptr);
    else
      quiet = false;
  }
  if (!quiet) {
    log(HVD_LOG_WARN, backend_->name(), __FILE__, __LINE__,
        "at the end of the job, the device is still busy or has failed; its streams and " +
            std::to_string(free_.size() + kept_.size()) + " blocks of memory are not freed");
    return;
  }
  free_blocks();
  for (hvd_event event : events_)
    ask(Call::device_event_destroy, &ignored, [&] { return api_->event_destroy(event, &ignored); });
  for (auto& [native, stream] : wrapped_)
    ask(Call::device_stream_destroy, &ignored, [&] { return api_->stream_destroy(stream, &ignored); });
  if (stream_) ask(Call::device_stream_destroy, &ignored, [&] { return api_->stream_destroy(stream_, &ignored); });
  ask(Call::device_close, &ignored, [&] { return api_->close(device_, &ignored); });
}

void Device::fail(const char* what, hvd_rc rc, const hvd_error& error) const {
  throw_backend_error(backend_->name(), what, rc, error);
}

// ---------------------------------------------------------------------------------------------------------- streams

bool Device::wraps_streams() const { return HVD_HAS(api_, hvd_device_api, stream_wrap); }
bool Device::orders_streams() const { return HVD_HAS(api_, hvd_device_api, stream_wait_event); }

hvd_stream Device::wrap(void* native) {
  std::lock_guard lock(mutex_);
  const auto at = wrapped_.find(native);
  if (at != wrapped_.end()) return at->second;
  if (!wraps_streams())
    throw BackendError(HVD_E_UNSUPPORTED, 0, 0,
                       backend_->name() +
                           ": stream_wrap: this backend cannot use a caller's stream; synchronise it and "
                           "pass no stream (UNSUPPORTED)");
  hvd_error error = empty_error();
  hvd_stream stream = nullptr;
  const hvd_rc rc =
      ask(Call::device_stream_wrap, &error, [&] { return api_->stream_wrap(device_, native, &stream, &error); });
  if (rc != HVD_OK) fail("stream_wrap", rc, error);
  return wrapped_[native] = stream;
}

MarkRef Device::mark(hvd_stream stream) {
  std::unique_lock lock(mutex_);
  const hvd_event event = record(stream);
  lock.unlock();
  return std::make_shared<Mark>(shared_from_this(), event);
}

hvd_event Device::record(hvd_stream stream) {
  hvd_error error = empty_error();
  // A few at each call, so that the list stays short.
  for (int i = 0; i < 4 && !doubtful_.empty() && is_over(doubtful_.front()); ++i) {
    recycle(doubtful_.front());
    doubtful_.pop_front();
  }
  hvd_event event = nullptr;
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
  } else if (const hvd_rc rc =
                 ask(Call::device_event_create, &error, [&] { return api_->event_create(device_, 0, &event, &error); });
             rc != HVD_OK) {
    fail("event_create", rc, error);
  }
  const hvd_rc rc = ask(Call::device_event_record, &error, [&] { return api_->event_record(event, stream, &error); });
  if (rc == HVD_OK) return event;
  recycle(event);
  fail("event_record", rc, error);
}

void Device::recycle(hvd_event event) noexcept { events_.push_back(event); }

void Device::set_aside(hvd_event event) noexcept { doubtful_.push_back(event); }

bool Device::is_over(hvd_event event) noexcept {
  hvd_error ignored = empty_error();
  return ask(Call::device_event_query, &ignored, [&] { return api_->event_query(event, &ignored); }) == HVD_OK;
}

void Device::order_after(hvd_stream stream, const Mark& mark) {
  hvd_error error = empty_error();
  std::lock_guard lock(mutex_);
  const hvd_rc rc = ask(Call::device_stream_wait_event, &error,
                        [&] { return api_->stream_wait_event(stream, mark.event(), &error); });
  if (rc != HVD_OK) fail("stream_wait_event", rc, error);
}

bool Device::drain(hvd_stream stream, int64_t deadline_ns) {
  hvd_error error = empty_error();
  const hvd_rc rc =
      ask(Call::device_stream_sync, &error, [&] { return api_->stream_sync(stream, deadline_ns, &error); });
  if (rc == HVD_INPROGRESS || rc == HVD_E_TIMEOUT) return false;
  if (rc != HVD_OK) fail("stream_sync", rc, error);
  return true;
}

// ----------------------------------------------------------------------------------------------------------- copies

void Device::batched(hvd_stream stream, const std::vector<hvd_copy_item>& items) {
  hvd_error error = empty_error();
  for (uint64_t at = 0; at < items.size(); at += batch_limit_) {
    const uint64_t n = std::min<uint64_t>(batch_limit_, items.size() - at);
    const hvd_rc rc = ask(Call::device_batched_copy_scale, &error,
                          [&] { return api_->batched_copy_scale(stream, items.data() + at, n, &error); });
    if (rc != HVD_OK) fail("batched_copy_scale", rc, error);
  }
}

void Device::copy_each(hvd_stream stream, const std::vector<Copy>& list) {
  std::lock_guard lock(mutex_);
  hvd_error error = empty_error();
  for (const Copy& c : list) {
    const hvd_rc rc = ask(Call::device_copy, &error, [&] { return api_->copy(stream, c.dst, c.src, c.bytes, &error); });
    if (rc != HVD_OK) fail("copy", rc, error);
  }
}

void Device::copy(hvd_stream stream, const std::vector<Copy>& list) {
  if (list.size() < 2 || batch_limit_ < 2 || !HVD_HAS(api_, hvd_device_api, batched_copy_scale))
    return copy_each(stream, list);
  std::lock_guard lock(mutex_);
  std::vector<hvd_copy_item> items;
  items.reserve(list.size());
  for (const Copy& c : list) items.push_back(item_of(c.dst, c.src, c.bytes, HVD_UINT8, 1.0));
  batched(stream, items);
}

// The table has no query for this, so it is tried on one element of scratch memory.
bool Device::scales(int32_t dtype) {
  {
    std::lock_guard lock(mutex_);
    const auto known = scales_.find(dtype);
    if (known != scales_.end()) return known->second;
  }
  bool able = false;
  if (HVD_HAS(api_, hvd_device_api, batched_copy_scale)) {
    const MemoryRef scratch = allocate(HVD_MEM_DEVICE, 2 * kAlignment);
    hvd_buf to = scratch->buf, from = scratch->buf;
    from.offset += kAlignment;
    from.bytes = to.bytes = kAlignment;
    const hvd_copy_item item = item_of(to, from, 1, dtype, 0.5);
    hvd_error error = empty_error();
    hvd_rc rc;
    {
      std::lock_guard lock(mutex_);
      rc = ask(Call::device_batched_copy_scale, &error,
               [&] { return api_->batched_copy_scale(stream_, &item, 1, &error); });
    }
    if (rc != HVD_OK && rc != HVD_E_UNSUPPORTED && rc != HVD_E_INVALID) fail("batched_copy_scale", rc, error);
    able = rc == HVD_OK;
    if (able) scratch->used_by(stream_);
  }
  std::lock_guard lock(mutex_);
  return scales_[dtype] = able;
}

void Device::copy_scaled(hvd_stream stream, const std::vector<ScaledCopy>& list) {
  std::vector<hvd_copy_item> items;
  items.reserve(list.size());
  for (const ScaledCopy& c : list)
    if (c.count) items.push_back(item_of(c.dst, c.src, c.count, c.dtype, c.scale));
  std::lock_guard lock(mutex_);
  batched(stream, items);
}

// The memory pool of a device: free blocks by size, and returned blocks that a stream still uses. See device.h.
namespace {

constexpr uint64_t kSmallestBlock = 4096;

}  // namespace

Memory::~Memory() {
  if (device_->abandoned()) return;
  std::lock_guard lock(device_->mutex_);
  const Device::Block block{kind_, mem_, all_};
  if (uses_.empty())
    device_->give_back(block);
  else
    device_->kept_.push_back({std::move(uses_), block});
}

void Memory::used_by(hvd_stream stream) {
  std::lock_guard lock(device_->mutex_);
  uses_.push_back(device_->record(stream));
}

MemoryRef Device::allocate(int32_t kind, uint64_t bytes, uint64_t alignment) {
  alignment = std::max(alignment, alignment_);
  // Rounds up to one of few sizes, so that the next training step finds the blocks of this one.
  const uint64_t needed = bytes + alignment;
  const uint64_t step = std::bit_floor(std::max(needed, kSmallestBlock)) / 4;
  const uint64_t wanted = (std::max(needed, kSmallestBlock) + step - 1) / step * step;
  Block block{kind, nullptr, {}};
  std::unique_lock lock(mutex_);
  collect_unused();
  if (const auto at = free_.find({kind, wanted}); at != free_.end()) {
    block = at->second;
    free_.erase(at);
    free_bytes_ -= wanted;
  } else {
    hvd_error error = empty_error();
    hvd_rc rc = ask(Call::device_mem_alloc, &error,
                    [&] { return api_->mem_alloc(device_, kind, wanted, &block.mem, &block.all, &error); });
    if (rc != HVD_OK && !free_.empty()) {  // the free blocks may take the memory
      free_blocks();
      error = empty_error();
      rc = ask(Call::device_mem_alloc, &error,
               [&] { return api_->mem_alloc(device_, kind, wanted, &block.mem, &block.all, &error); });
    }
    if (rc != HVD_OK) fail(kind == HVD_MEM_PINNED ? "mem_alloc of pinned memory" : "mem_alloc", rc, error);
    block.all.bytes = wanted;
  }
  lock.unlock();
  auto memory = std::make_shared<Memory>(shared_from_this(), kind, block.mem, block.all);
  // The memory of a handle is aligned by the device.
  const bool handle = handles_ && kind == HVD_MEM_DEVICE;
  const auto at = (handle ? 0 : reinterpret_cast<uintptr_t>(block.all.base)) + block.all.offset;
  memory->buf = {block.all.base, block.all.offset + (alignment - at % alignment) % alignment, bytes};
  return memory;
}

void Device::give_back(Block block) noexcept {
  if (block.all.bytes > pool_bytes_) {
    hvd_error ignored = empty_error();
    ask(Call::device_mem_free, &ignored, [&] { return api_->mem_free(block.mem, &ignored); });
    return;
  }
  // Frees the oldest blocks, so that sizes that are not used any more leave the pool.
  while (free_bytes_ + block.all.bytes > pool_bytes_) free_oldest();
  block.since = ++given_back_;
  free_.emplace(std::pair{block.kind, block.all.bytes}, block);
  free_bytes_ += block.all.bytes;
}

// Returns blocks to the pool that no stream uses any more.
void Device::collect_unused() noexcept {
  for (size_t i = 0; i < kept_.size();) {
    Kept& k = kept_[i];
    while (!k.uses.empty() && is_over(k.uses.back())) {
      recycle(k.uses.back());
      k.uses.pop_back();
    }
    if (!k.uses.empty()) {
      ++i;
      continue;
    }
    give_back(k.block);
    std::swap(k, kept_.back());
    kept_.pop_back();
  }
}

// Whether a stream has not reached a mark, or the last use of a block of memory, yet.
bool Device::in_use() noexcept {
  collect_unused();
  while (!doubtful_.empty() && is_over(doubtful_.front())) {
    recycle(doubtful_.front());
    doubtful_.pop_front();
  }
  return !kept_.empty() || !doubtful_.empty();
}

void Device::free_oldest() noexcept {
  const auto oldest =
      std::min_element(free_.begin(), free_.end(), [](auto& a, auto& b) { return a.second.since < b.second.since; });
  hvd_error ignored = empty_error();
  ask(Call::device_mem_free, &ignored, [&] { return api_->mem_free(oldest->second.mem, &ignored); });
  free_bytes_ -= oldest->second.all.bytes;
  free_.erase(oldest);
}

void Device::free_blocks() noexcept {
  hvd_error ignored = empty_error();
  for (auto& [key, block] : free_)
    ask(Call::device_mem_free, &ignored, [&] { return api_->mem_free(block.mem, &ignored); });
  free_.clear();
  free_bytes_ = 0;
}

}  // namespace hvd::plugins
