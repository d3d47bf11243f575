// See allocator.h. Blocks and bookkeeping are never destroyed: tensors may outlive static objects.
#include "allocator.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "devices.h"

namespace torch_gcu {
namespace {

constexpr size_t kGranularity = 512;

struct Block {
  void* address;
  size_t bytes;
  c10::DeviceIndex device;
  c10::StreamId stream;
  std::set<c10::StreamId> users;     // other streams, from record_stream()
  std::vector<topsEvent_t> pending;  // freed, but these are not over yet
};

class Pool final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device();
    const auto stream = current_stream(device);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(kType, device)};
    std::lock_guard lock(mutex_);
    Block* block = take(device, stream.id(), (bytes + kGranularity - 1) / kGranularity * kGranularity);
    auto& stats = stats_[device];
    stats.allocated += static_cast<int64_t>(block->bytes);
    stats.peak = std::max(stats.peak, stats.allocated);
    return {block->address, block, &release, c10::Device(kType, device)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    const auto stream = current_stream(-1);
    TORCH_GCU_CALL(topsMemcpyAsync, to, from, bytes, topsMemcpyDeviceToDevice, native(stream));
  }

  void record(const c10::DataPtr& data, const c10::Stream& stream) {
    if (data.get_deleter() != &release) return;
    auto* block = static_cast<Block*>(data.get_context());
    std::lock_guard lock(mutex_);
    if (stream.id() != block->stream) block->users.insert(stream.id());
  }

  void empty_cache() {
    std::lock_guard lock(mutex_);
    trim();
  }

  MemoryStats stats(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    return stats_[device];
  }

  static Pool& instance() {
    static auto& pool = *new Pool;
    return pool;
  }

 private:
  static void release(void* context) {
    // In a forked child the mutex may be held by a thread that does not exist; at exit the library may be gone.
    if (context != nullptr && vendor_usable()) instance().put_back(static_cast<Block*>(context));
  }

  void put_back(Block* block) {
    std::lock_guard lock(mutex_);
    stats_[block->device].allocated -= static_cast<int64_t>(block->bytes);
    if (!block->users.empty()) {
      OnDevice on(block->device);
      for (const auto user : block->users) {
        topsEvent_t event = nullptr;
        TORCH_GCU_CALL(topsEventCreateWithFlags, &event, topsEventDisableTiming);
        TORCH_GCU_CALL(topsEventRecord, event, reinterpret_cast<topsStream_t>(static_cast<intptr_t>(user)));
        block->pending.push_back(event);
      }
      block->users.clear();
      waiting_.push_back(block);
      return;
    }
    free_[{block->device, block->stream}].emplace(block->bytes, block);
  }

  // Freed blocks whose other users are done become free.
  void collect() {
    std::erase_if(waiting_, [this](Block* block) {
      while (!block->pending.empty()) {
        if (vendor().topsEventQuery(block->pending.back()) == topsErrorNotReady) return false;
        TORCH_GCU_CALL(topsEventDestroy, block->pending.back());
        block->pending.pop_back();
      }
      free_[{block->device, block->stream}].emplace(block->bytes, block);
      return true;
    });
  }

  Block* take(c10::DeviceIndex device, c10::StreamId stream, size_t bytes) {
    if (!waiting_.empty()) collect();
    auto& blocks = free_[{device, stream}];
    const auto found = blocks.lower_bound(bytes);
    if (found != blocks.end() && found->first <= 2 * bytes) {
      Block* block = found->second;
      blocks.erase(found);
      return block;
    }
    void* address = nullptr;
    auto code = vendor().topsMalloc(&address, bytes);
    if (code != topsSuccess) {
      trim();
      code = vendor().topsMalloc(&address, bytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, code == topsSuccess, "torch.gcu: no ", bytes,
                     " bytes are left on gcu:", static_cast<int>(device), ": ", vendor().topsGetErrorString(code));
    require_address(address);
    stats_[device].reserved += static_cast<int64_t>(bytes);
    return new Block{address, bytes, device, stream, {}, {}};
  }

  // torch computes the addresses of views itself.
  static void require_address(void* memory) {
    topsPointerAttribute_t facts = {};
    TORCH_GCU_CALL(topsPointerGetAttributes, &facts, memory);
    if (facts.memoryType == topsMemoryTypeDevice) return;
    TORCH_GCU_CALL(topsFree, memory);
    TORCH_CHECK(false,
                "torch.gcu: the vendor's memory has handles instead of addresses, which torch cannot use; unset "
                "TOPS_SIM_MEMORY");
  }

  void trim() {
    for (auto& [where, blocks] : free_) {
      if (blocks.empty()) continue;
      OnDevice on(where.first);
      TORCH_GCU_CALL(topsDeviceSynchronize);
      for (auto& [bytes, block] : blocks) {
        stats_[where.first].reserved -= static_cast<int64_t>(bytes);
        TORCH_GCU_CALL(topsFree, block->address);
        delete block;
      }
      blocks.clear();
    }
  }

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::multimap<size_t, Block*>> free_;
  std::vector<Block*> waiting_;
  std::map<c10::DeviceIndex, MemoryStats> stats_;
};

// Page-locked host memory, which is kept for later tensors when it is freed, as torch.cuda does: to lock pages takes
// time. Copies keep the storage alive themselves (copies.cc), so that freeing needs no events.
class PinnedPool final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* address = nullptr;
    if (bytes != 0) {
      bytes = std::bit_ceil(bytes);
      std::lock_guard lock(mutex_);
      if (const auto at = free_.find(bytes); at != free_.end()) {
        address = at->second;
        free_.erase(at);
      } else {
        TORCH_GCU_CALL(topsHostMalloc, &address, bytes, 0);
      }
      ranges_.emplace(static_cast<char*>(address), bytes);
    }
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool contains(const void* address) {
    std::lock_guard lock(mutex_);
    auto next = ranges_.upper_bound(static_cast<const char*>(address));
    if (next == ranges_.begin()) return false;
    --next;
    return static_cast<const char*>(address) < next->first + next->second;
  }

  static PinnedPool& instance() {
    static auto& pool = *new PinnedPool;
    return pool;
  }

 private:
  static void release(void* address) {
    if (address == nullptr || !vendor_usable()) return;
    auto& pool = instance();
    std::lock_guard lock(pool.mutex_);
    const auto at = pool.ranges_.find(static_cast<char*>(address));
    pool.free_.emplace(at->second, address);
    pool.ranges_.erase(at);
  }

  std::mutex mutex_;
  std::map<const char*, size_t> ranges_;  // in use
  std::multimap<size_t, void*> free_;     // by size, a power of two
};

}  // namespace

c10::Allocator& allocator() { return Pool::instance(); }
c10::Allocator& pinned_allocator() { return PinnedPool::instance(); }
bool is_pinned(const void* address) { return !in_forked_child() && PinnedPool::instance().contains(address); }
void record_stream(const c10::DataPtr& data, const c10::Stream& stream) { Pool::instance().record(data, stream); }
void empty_cache() { Pool::instance().empty_cache(); }
MemoryStats memory_stats(c10::DeviceIndex device) { return Pool::instance().stats(device); }

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator());

}  // namespace torch_gcu
