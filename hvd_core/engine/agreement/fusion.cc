// See fusion.h.
#include "engine/agreement/fusion.h"

#include <limits>
#include <utility>

namespace hvd::agreement {

namespace {
// From this size on, moving the data takes longer than starting a batch, so that coalescing saves little.
constexpr uint64_t kCoalesceBytes = 256u << 10;
}  // namespace

void Fusion::add(SetId set, Item item, bool urgent, int64_t now) {
  if (requests_.empty()) since_ = now;
  bytes_ += item.sig->payload_bytes();
  urgent_ |= urgent;
  requests_.push_back({set, std::move(item)});
}

bool Fusion::due(int64_t now) const {
  return !requests_.empty() && (urgent_ || bytes_ >= kCoalesceBytes || now >= next_deadline());
}

int64_t Fusion::next_deadline() const {
  return requests_.empty() ? std::numeric_limits<int64_t>::max() : since_ + config_.coalesce_ns;
}

Fusion::Batch Fusion::take_batch() {
  const SigRef first = requests_.front().item.sig;
  Batch batch{requests_.front().set, {}};
  batch.items.push_back(std::move(requests_.front().item));
  requests_.pop_front();
  uint64_t bytes = first->payload_bytes();
  if (!first->fuse_key().empty() && config_.threshold > 0) {
    // Later requests that fit may be taken ahead of those that do not. Both keep their order.
    for (auto it = requests_.begin(); it != requests_.end() && bytes <= config_.threshold;) {
      const uint64_t more = it->item.sig->payload_bytes();
      if (it->set == batch.set && it->item.sig->fuse_key() == first->fuse_key() && bytes + more <= config_.threshold) {
        bytes += more;
        batch.items.push_back(std::move(it->item));
        it = requests_.erase(it);
      } else {
        ++it;
      }
    }
  }
  bytes_ = requests_.empty() ? 0 : bytes_ - bytes;
  urgent_ &= !requests_.empty();
  return batch;
}

}  // namespace hvd::agreement
