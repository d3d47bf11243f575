// The host's side of the plugin interface. See host_api.h.
#include "engine/plugins/host_api.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "engine/plugins/errors.h"

namespace hvd::plugins {

Store::~Store() = default;

namespace {

constexpr size_t kPool = 32;

// A backend's thread can log while the process exits, so this object is never destroyed.
struct Sinks {
  std::mutex mutex;
  std::shared_ptr<const LogSink> log;
  std::shared_ptr<const NotifySink> notify;
  std::shared_ptr<const ActivitySink> activity;
  std::shared_ptr<const ThreadSink> thread;
};

Sinks& sinks() {
  static auto* all = new Sinks;
  return *all;
}

template <class T>
std::shared_ptr<const T> current(std::shared_ptr<const T> Sinks::* member) {
  std::lock_guard<std::mutex> lock(sinks().mutex);
  return sinks().*member;
}

template <class T>
void replace(std::shared_ptr<const T> Sinks::* member, T sink) {
  auto fresh = sink ? std::make_shared<const T>(std::move(sink)) : nullptr;
  std::lock_guard<std::mutex> lock(sinks().mutex);
  std::swap(sinks().*member, fresh);  // the old sink is destroyed after the lock is released
}

// ------------------------------------------------------------------------------------------------- the pool

struct Slot {
  hvd_host_api table;
  std::string name;
};

std::array<Slot, kPool>& pool() {
  static auto* slots = new std::array<Slot, kPool>;
  return *slots;
}

// No exception may leave the host's functions; its text goes into the backend's error struct.
template <class F>
hvd_rc guarded(hvd_error* error, F&& body) noexcept {
  try {
    return body();
  } catch (const BackendError& e) {
    return fill_error(error, e.code, e.what(), e.flags, e.vendor_code);
  } catch (const std::bad_alloc&) {
    return fill_error(error, HVD_E_NOMEM, "the host is out of memory");
  } catch (const std::exception& e) {
    return fill_error(error, HVD_E_INTERNAL, e.what());
  } catch (...) {
    return fill_error(error, HVD_E_INTERNAL, "the host's store threw something that is not an exception");
  }
}

StoreScope& scope(void* store, const char* key) {
  if (store == nullptr || key == nullptr) {
    throw BackendError(HVD_E_INVALID, 0, 0, "the store handle or the key is NULL");
  }
  return *static_cast<StoreScope*>(store);
}

// Copies `value` to the caller. *n is the capacity on entry and the size on return, also if the value does not fit.
hvd_rc copy_out(std::string_view value, void* p, uint64_t* n, hvd_error* error) {
  const uint64_t capacity = *n;
  *n = value.size();
  if (value.size() > capacity) {
    return fill_error(error, HVD_E_INVALID,
                      "the value has " + std::to_string(value.size()) + " bytes, the buffer " +
                          std::to_string(capacity) + "; *n now holds the size needed");
  }
  if (!value.empty()) std::memcpy(p, value.data(), value.size());
  return HVD_OK;
}

hvd_rc store_set(void* store, const char* key, const void* p, uint64_t n, hvd_error* error) noexcept {
  return guarded(error, [&] {
    StoreScope& s = scope(store, key);
    s.store->set(s.prefix + key, std::string_view(static_cast<const char*>(p), n));
    return HVD_OK;
  });
}

hvd_rc store_get(void* store, const char* key, void* p, uint64_t* n, int64_t deadline_ns, hvd_error* error) noexcept {
  return guarded(error, [&] {
    StoreScope& s = scope(store, key);
    if (n == nullptr || (p == nullptr && *n != 0)) {
      throw BackendError(HVD_E_INVALID, 0, 0, "store_get needs n, and p when *n is not 0");
    }
    return copy_out(s.store->get(s.prefix + key, deadline_ns == 0 ? s.deadline_ns : deadline_ns), p, n, error);
  });
}

hvd_rc store_add(void* store, const char* key, int64_t delta, int64_t* now, hvd_error* error) noexcept {
  return guarded(error, [&] {
    StoreScope& s = scope(store, key);
    const int64_t value = s.store->add(s.prefix + key, delta);
    if (now != nullptr) *now = value;
    return HVD_OK;
  });
}

hvd_rc store_del(void* store, const char* key, hvd_error* error) noexcept {
  return guarded(error, [&] {
    StoreScope& s = scope(store, key);
    s.store->del(s.prefix + key);
    return HVD_OK;
  });
}

void activity(hvd_comm comm, uint64_t seq, const char* phase, int32_t begin_end) noexcept {
  guarded(nullptr, [&] {
    if (auto sink = current(&Sinks::activity)) (*sink)(comm, seq, phase ? phase : "", begin_end);
    return HVD_OK;
  });
}

void notify(void* token) noexcept {
  guarded(nullptr, [&] {
    if (auto sink = current(&Sinks::notify)) (*sink)(token);
    return HVD_OK;
  });
}

template <size_t N>
struct Thunks {
  static void log_line(int32_t level, const char* file, int32_t line, const char* text) noexcept {
    guarded(nullptr, [&] {
      log(level, pool()[N].name, file ? file : "", line, text ? text : "");
      return HVD_OK;
    });
  }

  static hvd_rc option(const char* key, char* text, uint64_t* n) noexcept {
    return guarded(nullptr, [&]() -> hvd_rc {
      if (key == nullptr || n == nullptr || (text == nullptr && *n != 0)) return HVD_E_INVALID;
      const char* value = std::getenv(option_variable(pool()[N].name, key).c_str());
      if (value == nullptr) return HVD_E_UNAVAILABLE;
      return copy_out(std::string_view(value, std::strlen(value) + 1), text, n, nullptr);  // with its NUL
    });
  }

  static void thread_enter(const char* role) noexcept {
    guarded(nullptr, [&] {
      const std::string name = (pool()[N].name + ":" + (role ? role : "")).substr(0, 15);  // the kernel's limit
      pthread_setname_np(pthread_self(), name.c_str());
      if (auto sink = current(&Sinks::thread)) (*sink)();
      return HVD_OK;
    });
  }
};

template <size_t... N>
void fill_pool(std::index_sequence<N...>) {
  ((pool()[N].table = hvd_host_api{{sizeof(hvd_host_api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
                                   &Thunks<N>::log_line,
                                   &store_set,
                                   &store_get,
                                   &store_add,
                                   &store_del,
                                   &Thunks<N>::option,
                                   &Thunks<N>::thread_enter,
                                   &activity,
                                   &notify}),
   ...);
}

}  // namespace

void set_log_sink(LogSink sink) { replace(&Sinks::log, std::move(sink)); }
void set_notify_sink(NotifySink sink) { replace(&Sinks::notify, std::move(sink)); }
void set_activity_sink(ActivitySink sink) { replace(&Sinks::activity, std::move(sink)); }
void set_thread_sink(ThreadSink sink) { replace(&Sinks::thread, std::move(sink)); }

void log(int32_t level, const std::string& backend, const char* file, int32_t line, const std::string& text) {
  if (auto sink = current(&Sinks::log)) {
    (*sink)(level, backend, file, line, text);
  } else if (level >= HVD_LOG_WARN) {
    std::fprintf(stderr, "horovod: backend '%s': %s\n", backend.c_str(), text.c_str());
  }
}

const hvd_host_api* make_host_api(const std::string& backend_name) {
  static std::mutex mutex;
  static size_t used = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (used == 0) fill_pool(std::make_index_sequence<kPool>());
  // A table depends on the name only, so another attempt to load the same backend gets the same table.
  for (size_t i = 0; i < used; ++i) {
    if (pool()[i].name == backend_name) return &pool()[i].table;
  }
  if (used == kPool) {
    throw LoadError("horovod: backend '" + backend_name + "' failed to load.\n  cause: this process has loaded " +
                    std::to_string(kPool) + " backends already, which is the limit\n  fix: name fewer backends");
  }
  Slot& slot = pool()[used++];
  slot.name = backend_name;
  return &slot.table;
}

std::string option_variable(const std::string& backend_name, const std::string& option) {
  std::string variable = "HOROVOD_BACKEND_" + backend_name + "_" + option;
  for (char& c : variable) {
    if (c >= 'a' && c <= 'z') {
      c = static_cast<char>(c - 'a' + 'A');
    } else if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) {
      c = '_';
    }
  }
  return variable;
}

}  // namespace hvd::plugins
