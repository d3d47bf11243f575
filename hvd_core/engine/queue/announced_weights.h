// HOROVOD_CHECK_CONSISTENCY: digests of weights that front ends have announced for the next request of a name. That
// request takes them with it (control/weights_check.h). Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/control/signature.h"

namespace hvd::queue {

class AnnouncedWeights {
 public:
  void announce(std::string key, std::vector<control::WeightDigest> weights, std::string remedy) {
    std::lock_guard lock(mutex_);
    by_key_.insert_or_assign(std::move(key), Announced{std::move(weights), std::move(remedy)});
    any_.store(true, std::memory_order_release);
  }

  // Whether there is anything to take: all that a request costs without the check.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Returns whether there was anything to take.
  bool take(const std::string& key, control::SignatureFields& fields) {
    std::lock_guard lock(mutex_);
    auto found = by_key_.extract(key);
    if (found.empty()) return false;
    fields.weights = std::move(found.mapped().weights);
    fields.remedy = std::move(found.mapped().remedy);
    any_.store(!by_key_.empty(), std::memory_order_release);
    return true;
  }

  // A broadcast may change the weights: what was announced is not true any more.
  void forget() {
    std::lock_guard lock(mutex_);
    by_key_.clear();
    any_.store(false, std::memory_order_release);
  }

 private:
  struct Announced {
    std::vector<control::WeightDigest> weights;
    std::string remedy;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, Announced> by_key_;
  std::atomic<bool> any_{false};
};

}  // namespace hvd::queue
