// The device types that an engine serves, each with its backends. Those that a setting names are known from the start;
// the backends of another type are looked for when the first tensor of that type comes. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/device_routes.h"
#include "engine/plugin/store.h"

namespace hvd::data {

class DeviceTypes {
 public:
  using Routes = std::shared_ptr<DeviceRoutes>;
  // What a search has found: null and the reason if no backend serves the type.
  using Found = std::pair<Routes, std::string>;
  // Runs the code of plugins, which may take seconds. Called without a lock, and not again after an answer.
  using Search = std::function<Found(const std::string& type)>;

  explicit DeviceTypes(Search search = nullptr) : search_(std::move(search)) {}
  // Of a process set with backends of its own: routes that are not added here are those of `job`.
  explicit DeviceTypes(std::shared_ptr<DeviceTypes> job) : job_(std::move(job)) {}

  void add(Routes routes);
  // The routes of a type, after a search if they are not known yet. Null: no backend serves the type.
  Routes find(const std::string& type);
  // The same without a search.
  Routes known(const std::string& type) const;
  // All that are known.
  std::vector<Routes> all() const;
  // Why a search has found nothing; empty before it, or if it has found something.
  std::string why_not(const std::string& type) const;
  // Around a fork of this process, so that the child finds the lists whole and the lock free.
  void before_fork();
  void after_fork() noexcept;
  // In a forked child, before after_fork().
  void abandon() noexcept;

 private:
  const Search search_;
  const std::shared_ptr<DeviceTypes> job_;
  mutable std::mutex mutex_;
  std::map<std::string, Routes> types_;
  std::map<std::string, std::string> why_not_;
};

// Compares the choices of the ranks of a set, which call it together, for routes that a search has found: those that a
// setting names were compared in init(). Throws plugin::BackendError on all of them if the choices differ.
void agree_on_choice(const DeviceRoutes& routes, int32_t rank, const std::vector<int32_t>& members,
                     const std::string& key, plugin::Store& store, int64_t deadline_ns);

}  // namespace hvd::data
