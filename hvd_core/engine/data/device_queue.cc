// See device_queue.h.
#include "engine/data/device_queue.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/observe/log.h"
#include "engine/plugin/errors.h"

namespace hvd::data {

namespace {
constexpr int64_t kLastWaitNs = 2'000'000'000;
constexpr uint64_t kAlignment = 64;
}  // namespace

DeviceQueue::DeviceQueue(std::shared_ptr<plugin::Backend> backend, hvd_device device)
    : backend_(std::move(backend)), api_(backend_->device_api()), device_(device) {
  if (!HVD_HAS(api_, hvd_device_api, stream_create) || !HVD_HAS(api_, hvd_device_api, event_create) ||
      !HVD_HAS(api_, hvd_device_api, mem_alloc)) {
    throw plugin::BackendError(
        HVD_E_UNSUPPORTED, 0, 0,
        "backend '" + backend_->name() + "' has no streams, events or pinned memory to stage its device's memory with");
  }
  hvd_device_props props;
  std::memset(&props, 0, sizeof props);
  props.hdr = {sizeof props, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  hvd_error error = plugin::empty_error();
  hvd_rc rc = api_->props(device_, &props, &error);
  if (rc != HVD_OK) fail("props", rc, error);
  batch_limit_ = props.batch_limit ? props.batch_limit : UINT32_MAX;
  rc = api_->stream_create(device_, 0, &stream_, &error);
  if (rc != HVD_OK) fail("stream_create", rc, error);
  for (hvd_event& event : events_) {
    rc = api_->event_create(device_, 0, &event, &error);
    if (rc == HVD_OK) continue;
    hvd_error ignored = plugin::empty_error();
    for (hvd_event made : events_)
      if (made) api_->event_destroy(made, &ignored);
    api_->stream_destroy(stream_, &ignored);
    fail("event_create", rc, error);
  }
}

DeviceQueue::~DeviceQueue() {
  hvd_error ignored = plugin::empty_error();
  bool quiet = api_->stream_sync(stream_, observe::now_ns() + kLastWaitNs, &ignored) == HVD_OK;
  // Marks may stand in a stream that is not ours.
  for (hvd_event event : events_) quiet = quiet && api_->event_query(event, &ignored) == HVD_OK;
  if (!quiet) return;
  free_pinned();
  for (hvd_event event : events_) api_->event_destroy(event, &ignored);
  api_->stream_destroy(stream_, &ignored);
}

void DeviceQueue::fail(const char* what, hvd_rc rc, const hvd_error& error) const {
  plugin::throw_backend_error(backend_->name(), what, rc, error);
}

void DeviceQueue::copy(hvd_stream stream, const std::vector<Copy>& list) {
  stream = or_own(stream);
  hvd_error error = plugin::empty_error();
  if (list.size() < 2 || batch_limit_ < 2 || !HVD_HAS(api_, hvd_device_api, batched_copy_scale)) {
    for (const Copy& c : list) {
      const hvd_rc rc = api_->copy(stream, c.dst, c.src, c.bytes, &error);
      if (rc != HVD_OK) fail("copy", rc, error);
    }
    return;
  }
  std::vector<hvd_copy_item> items;
  for (const Copy& c : list) {
    hvd_copy_item item;
    std::memset(&item, 0, sizeof item);
    item.hdr = {sizeof item, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    item.src = c.src;
    item.dst = c.dst;
    item.count = c.bytes;
    item.src_dtype = item.dst_dtype = HVD_UINT8;
    items.push_back(item);
  }
  for (uint64_t at = 0; at < items.size(); at += batch_limit_) {
    const uint64_t n = std::min<uint64_t>(batch_limit_, items.size() - at);
    const hvd_rc rc = api_->batched_copy_scale(stream, items.data() + at, n, &error);
    if (rc != HVD_OK) fail("batched_copy_scale", rc, error);
  }
}

void DeviceQueue::mark(hvd_stream stream, size_t which) {
  hvd_error error = plugin::empty_error();
  const hvd_rc rc = api_->event_record(events_[which], or_own(stream), &error);
  if (rc != HVD_OK) fail("event_record", rc, error);
}

bool DeviceQueue::reached(size_t which) {
  hvd_error error = plugin::empty_error();
  const hvd_rc rc = api_->event_query(events_[which], &error);
  if (rc == HVD_INPROGRESS) return false;
  if (rc != HVD_OK) fail("event_query", rc, error);
  return true;
}

void DeviceQueue::wait(size_t which, int64_t deadline_ns) {
  hvd_error error = plugin::empty_error();
  if (HVD_HAS(api_, hvd_device_api, event_wait)) {
    const hvd_rc rc = api_->event_wait(events_[which], deadline_ns, &error);
    // That this wait is over is no failure of the operation.
    if (rc != HVD_OK && rc != HVD_INPROGRESS && rc != HVD_E_TIMEOUT) fail("event_wait", rc, error);
    return;
  }
  int64_t pause_ns = 20'000;
  while (!reached(which)) {
    const int64_t left = deadline_ns - observe::now_ns();
    if (left <= 0) return;
    const timespec pause{0, static_cast<long>(std::min(left, pause_ns))};
    nanosleep(&pause, nullptr);
    pause_ns = std::min<int64_t>(pause_ns * 2, 1'000'000);
  }
}

void DeviceQueue::drain(hvd_stream stream, int64_t deadline_ns) {
  hvd_error error = plugin::empty_error();
  const hvd_rc rc = api_->stream_sync(or_own(stream), deadline_ns, &error);
  if (rc != HVD_OK) fail("stream_sync", rc, error);
}

hvd_buf DeviceQueue::pinned(uint64_t bytes) {
  if (memory_ && area_.bytes >= bytes) return area_;
  free_pinned();
  hvd_error error = plugin::empty_error();
  hvd_buf all{};
  const hvd_rc rc = api_->mem_alloc(device_, HVD_MEM_PINNED, bytes + kAlignment, &memory_, &all, &error);
  if (rc != HVD_OK) {
    memory_ = nullptr;
    fail("mem_alloc of pinned memory", rc, error);
  }
  const auto at = reinterpret_cast<uintptr_t>(all.base) + all.offset;
  const uint64_t skip = (kAlignment - at % kAlignment) % kAlignment;
  area_ = {all.base, all.offset + skip, bytes};
  return area_;
}

void DeviceQueue::free_pinned() {
  hvd_error ignored = plugin::empty_error();
  if (memory_) api_->mem_free(std::exchange(memory_, nullptr), &ignored);
  area_ = {};
}

}  // namespace hvd::data
