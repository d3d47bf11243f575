// The memory pool of a device: free blocks by size, and returned blocks that a stream still uses. See device.h.
#include <algorithm>
#include <bit>

#include "engine/plugin/device.h"
#include "engine/plugin/host_api.h"

namespace hvd::plugin {
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
    hvd_rc rc = ask("mem_alloc", &error,
                    [&] { return api_->mem_alloc(device_, kind, wanted, &block.mem, &block.all, &error); });
    if (rc != HVD_OK && !free_.empty()) {  // the free blocks may take the memory
      free_blocks();
      error = empty_error();
      rc = ask("mem_alloc", &error,
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
    ask("mem_free", &ignored, [&] { return api_->mem_free(block.mem, &ignored); });
    return;
  }
  // Frees the oldest blocks, so that sizes that are not used any more leave the pool.
  while (free_bytes_ + block.all.bytes > pool_bytes_) free_oldest();
  block.since = ++given_back_;
  try {
    free_.emplace(std::pair{block.kind, block.all.bytes}, block);
  } catch (const std::bad_alloc&) {
    hvd_error ignored = empty_error();
    ask("mem_free", &ignored, [&] { return api_->mem_free(block.mem, &ignored); });
    return;
  }
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
  ask("mem_free", &ignored, [&] { return api_->mem_free(oldest->second.mem, &ignored); });
  free_bytes_ -= oldest->second.all.bytes;
  free_.erase(oldest);
}

void Device::free_blocks() noexcept {
  hvd_error ignored = empty_error();
  for (auto& [key, block] : free_) ask("mem_free", &ignored, [&] { return api_->mem_free(block.mem, &ignored); });
  free_.clear();
  free_bytes_ = 0;
}

}  // namespace hvd::plugin
