// For the test programs of this folder: a store in memory, ranks as threads, checks that print and count.
#pragma once

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/plugins/backend.h"

namespace test {

inline int64_t in_seconds(double s) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{1000000000} * t.tv_sec + t.tv_nsec + static_cast<int64_t>(s * 1e9);
}

class MapStore : public hvd::plugins::Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = std::string(value);
    changed_.notify_all();
  }
  std::string get(const std::string& key, int64_t deadline_ns) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns));
    if (!changed_.wait_until(lock, until, [&] { return values_.count(key) > 0; })) {
      throw hvd::plugins::BackendError(HVD_E_TIMEOUT, 0, 0, "no rank set '" + key + "' in time");
    }
    return values_[key];
  }
  int64_t add(const std::string& key, int64_t delta) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return counters_[key] += delta;
  }
  void del(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.erase(key);
    counters_.erase(key);
  }
  size_t left() {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_.size() + counters_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

inline int failures = 0;
inline std::mutex failures_mutex;

inline void check(bool good, const std::string& what) {
  std::lock_guard<std::mutex> lock(failures_mutex);
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// The exception of a call as "CODE text"; "" if it throws nothing.
inline std::string thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const hvd::plugins::BackendError& e) {
    return hvd::plugins::rc_name(e.code) + " " + e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void on_ranks(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.emplace_back([&, r] {
      const std::string error = thrown([&] { body(r); });
      check(error.empty(), "rank " + std::to_string(r) + " threw: " + error);
    });
  }
  for (auto& t : ranks) t.join();
}

inline std::unique_ptr<hvd::plugins::Communicator> join_comm(hvd::plugins::Backend& backend, hvd::plugins::Store& store,
                                                             const std::string& key, int rank, int size,
                                                             double seconds = 20) {
  std::vector<int32_t> ranks(static_cast<size_t>(size)), hosts(static_cast<size_t>(size), 0);
  for (int r = 0; r < size; ++r) ranks[static_cast<size_t>(r)] = r;
  return backend.create_comm(key, store, ranks, hosts, rank, in_seconds(seconds));
}

template <class T>
hvd_buf buffer(std::vector<T>& v) {
  return {v.data(), 0, v.size() * sizeof(T)};
}

inline int verdict() {
  std::printf(failures ? "%d FAILURES\n" : "all good\n", failures);
  return failures ? 1 : 0;
}

}  // namespace test
