// Device memory. A freed block is used again by the stream that it was allocated for, at once and in stream order,
// as torch's allocators for real devices do it: work on other streams has to be announced with record_stream(), or it
// sees its memory change. Any thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace torch_gcu {

c10::Allocator& allocator();

// Memory from the vendor that copies can use without the host's help. Freed when work that uses it is done.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

// The block behind `data` is used on `stream` too: when it is freed, it waits for the work that is in the stream then.
void record_stream(const c10::DataPtr& data, const c10::Stream& stream);

// Gives cached blocks back to the vendor.
void empty_cache();

struct MemoryStats {
  int64_t allocated = 0;  // bytes of tensors
  int64_t peak = 0;
  int64_t reserved = 0;  // bytes from the vendor
};
MemoryStats memory_stats(c10::DeviceIndex device);

}  // namespace torch_gcu
