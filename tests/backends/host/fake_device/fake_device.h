// A fake device for tests of device memory, which the host must not read. Backends with the device include this file.
//
// Its memory has two mappings. The address that the host gets is PROT_NONE, so a host thread that reads it dies of
// SIGSEGV; the device uses the other address. A stream is a thread with a queue, an event is a mark in the queue, and a
// copy runs some time after it was enqueued, so a reader that does not wait gets old data. T1 of backend_abi.h holds;
// any thread may call event_query, event_wait and stream_sync.
//
// Options: delay_us (how long each task of a stream waits before it runs), fail_copy (the number of the copy that
// fails; counts copies on the engine's own streams from 1 over the life of the process; 0: no copy fails), crash_in
// (the name of the call of the device table in which the process ends with SIGSEGV).
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "fake_memory.h"
#include "hvd/backend.hpp"

namespace {

using Clock = std::chrono::steady_clock;

uint64_t number_option(const char* key, uint64_t fallback) {
  if (!hvd::host) return fallback;  // the user program may use the device before the engine does
  const std::string text = hvd::option(key, "");
  return text.empty() ? fallback : std::strtoull(text.c_str(), nullptr, 10);
}

void crash_if_asked(const char* call) {
  if (hvd::host && hvd::option("crash_in", "") == call) std::signal(SIGSEGV, SIG_DFL), std::raise(SIGSEGV);
}

std::atomic<uint64_t> copies_done{0};

class Stream {
 public:
  Stream() : worker_([this] { work(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void add(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++asked_;
    changed_.notify_all();
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    check();
    return done_ == asked_;
  }

  bool sync(int64_t deadline_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto target = asked_;
    const auto until = Clock::time_point(std::chrono::nanoseconds(deadline_ns));
    const auto hour = Clock::now() + std::chrono::hours(1);
    while (done_ < target) {
      check();
      if (changed_.wait_until(lock, std::min(until, hour)) == std::cv_status::timeout && done_ < target) return false;
    }
    check();
    return true;
  }

  void check() const {
    if (failed->load()) throw hvd::Error(HVD_E_DEVICE, "a copy has failed", 0, 77);
  }

  const std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(number_option("delay_us", 200)));
      task();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t asked_ = 0, done_ = 0;
  bool ending_ = false;
  std::thread worker_;
};

// An event: how often it was recorded, and how many of these marks the streams have reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  std::shared_ptr<std::atomic<bool>> failed;  // of the stream
};

Stream* stream_of(hvd_stream s) { return reinterpret_cast<Stream*>(s); }

// Streams of the user program: the engine may use them but not destroy them, and fail_copy does not count their copies.
struct NativeStreams {
  std::mutex mutex;
  std::set<Stream*> all;
  Stream* usual = nullptr;
};

NativeStreams& native_streams() {
  static auto* streams = new NativeStreams;
  return *streams;
}

// A null address means the default stream.
Stream* native_stream(void* native) {
  NativeStreams& streams = native_streams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  if (!native && !streams.usual) streams.usual = new Stream();
  Stream* const s = native ? static_cast<Stream*>(native) : streams.usual;
  streams.all.insert(s);
  return s;
}

bool is_native(Stream* s) {
  NativeStreams& streams = native_streams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  return streams.all.count(s) > 0;
}

void enqueue_copy(hvd_stream s, const hvd_buf& dst, const hvd_buf& src, uint64_t bytes) {
  if (bytes > dst.bytes || bytes > src.bytes) throw hvd::Error(HVD_E_INVALID, "a copy is larger than its buffers");
  char* const to = pool().find(dst, bytes);
  const char* const from = pool().find(src, bytes);
  Stream* const stream = stream_of(s);
  const bool counts = !is_native(stream);
  stream->add([=] {
    if (stream->failed->load()) return;  // nothing moves after a failure
    if (counts && ++copies_done == number_option("fail_copy", 0)) return stream->failed->store(true);
    if (bytes) std::memcpy(to, from, bytes);
  });
}

void enqueue_scaled(hvd_stream s, const hvd_copy_item& item) {
  auto* const to = reinterpret_cast<float*>(pool().find(item.dst, item.count * sizeof(float)));
  const auto* const from = reinterpret_cast<const float*>(pool().find(item.src, item.count * sizeof(float)));
  stream_of(s)->add([=] {
    for (uint64_t i = 0; i < item.count; ++i) to[i] = static_cast<float>(from[i] * item.scale);
  });
}

struct FakeDevice {
  // `native`: with streams of the user program, and streams that wait for events of other streams.
  static hvd_device_api make(const char* device_type, bool native) {
    hvd_device_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    t.device_type = device_type;
    t.count = [](int32_t* n, hvd_error*) {
      *n = 2;
      return hvd_rc{HVD_OK};
    };
    t.open = [](int32_t ordinal, void*, hvd_device* out, hvd_error* error) {
      static char devices[2];
      crash_if_asked("open");
      if (ordinal < 0 || ordinal > 1) return hvd::fail(error, HVD_E_INVALID, "there are two fake devices");
      *out = reinterpret_cast<hvd_device>(&devices[ordinal]);
      return hvd_rc{HVD_OK};
    };
    t.close = [](hvd_device, hvd_error*) { return hvd_rc{HVD_OK}; };
    t.props = [](hvd_device, hvd_device_props* out, hvd_error*) {
      hvd_device_props mine;
      std::memset(&mine, 0, sizeof(mine));
      mine.numa_node = -1;
      mine.alignment = 64;
      mine.batch_limit = 3;
      hvd::give(out, mine);
      return hvd_rc{HVD_OK};
    };
    t.stream_create = [](hvd_device, int32_t, hvd_stream* out, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc {
        *out = reinterpret_cast<hvd_stream>(new Stream());
        return HVD_OK;
      });
    };
    t.stream_sync = [](hvd_stream s, int64_t deadline_ns, hvd_error* error) {
      crash_if_asked("stream_sync");
      return hvd::guarded(error, [&]() -> hvd_rc {
        if (stream_of(s)->sync(deadline_ns)) return HVD_OK;
        throw hvd::Error(HVD_E_TIMEOUT, "the stream is not through");
      });
    };
    t.stream_query = [](hvd_stream s, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc { return stream_of(s)->idle() ? HVD_OK : HVD_INPROGRESS; });
    };
    t.stream_destroy = [](hvd_stream s, hvd_error*) {
      if (!is_native(stream_of(s))) delete stream_of(s);
      return hvd_rc{HVD_OK};
    };
    if (native) {
      t.stream_wrap = [](hvd_device, void* its, hvd_stream* out, hvd_error* error) {
        return hvd::guarded(error, [&]() -> hvd_rc {
          *out = reinterpret_cast<hvd_stream>(native_stream(its));
          return HVD_OK;
        });
      };
      t.stream_native = [](hvd_stream s) -> void* { return s; };
      t.stream_wait_event = [](hvd_stream s, hvd_event e, hvd_error* error) {
        return hvd::guarded(error, [&]() -> hvd_rc {
          const auto event = event_of(e);
          uint64_t turn;
          {
            std::lock_guard<std::mutex> lock(event->mutex);
            turn = event->recorded;
          }
          stream_of(s)->add([event, turn] {
            std::unique_lock<std::mutex> lock(event->mutex);
            event->changed.wait(lock, [&] { return event->reached >= turn; });
          });
          return HVD_OK;
        });
      };
    }
    t.event_create = [](hvd_device, int32_t, hvd_event* out, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc {
        *out = reinterpret_cast<hvd_event>(new std::shared_ptr<Event>(std::make_shared<Event>()));
        return HVD_OK;
      });
    };
    t.event_record = [](hvd_event e, hvd_stream s, hvd_error* error) {
      crash_if_asked("event_record");
      return hvd::guarded(error, [&]() -> hvd_rc {
        record(event_of(e), stream_of(s));
        return HVD_OK;
      });
    };
    t.event_query = [](hvd_event e, hvd_error* error) {
      crash_if_asked("event_query");
      return hvd::guarded(error, [&]() -> hvd_rc { return over(*event_of(e), 0) ? HVD_OK : HVD_INPROGRESS; });
    };
    t.event_wait = [](hvd_event e, int64_t deadline_ns, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc { return over(*event_of(e), deadline_ns) ? HVD_OK : HVD_INPROGRESS; });
    };
    t.event_destroy = [](hvd_event e, hvd_error*) {
      delete reinterpret_cast<std::shared_ptr<Event>*>(e);
      return hvd_rc{HVD_OK};
    };
    t.mem_alloc = [](hvd_device, int32_t kind, uint64_t bytes, hvd_mem* mem, hvd_buf* buf, hvd_error* error) {
      crash_if_asked("mem_alloc");
      return hvd::guarded(error, [&]() -> hvd_rc {
        if (kind != HVD_MEM_DEVICE && kind != HVD_MEM_PINNED) throw hvd::Error(HVD_E_UNSUPPORTED, "no such memory");
        Memory* made = pool().add(kind, bytes);
        *mem = reinterpret_cast<hvd_mem>(made);
        *buf = {made->host, 0, bytes};
        return HVD_OK;
      });
    };
    t.mem_free = [](hvd_mem mem, hvd_error*) {
      crash_if_asked("mem_free");
      pool().remove(reinterpret_cast<Memory*>(mem));
      return hvd_rc{HVD_OK};
    };
    t.mem_query = [](const void* p, int32_t* kind, int32_t* ordinal, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc {
        *kind = HVD_MEM_HOST;
        *ordinal = 0;
        pool().find({const_cast<void*>(p), 0, 0}, 0, kind);
        return HVD_OK;
      });
    };
    t.copy = [](hvd_stream s, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error* error) {
      return hvd::guarded(error, [&]() -> hvd_rc {
        enqueue_copy(s, dst, src, bytes);
        return HVD_OK;
      });
    };
    t.batched_copy_scale = [](hvd_stream s, const hvd_copy_item* items, uint64_t n, hvd_error* error) {
      crash_if_asked("batched_copy_scale");
      return hvd::guarded(error, [&]() -> hvd_rc {
        if (n > 3) throw hvd::Error(HVD_E_INVALID, "more items than batch_limit");
        for (uint64_t i = 0; i < n; ++i) {
          const hvd_copy_item item = hvd::complete(hvd::element(items, i), "hvd_copy_item");
          const bool scaled = item.scale != 0 && item.scale != 1;
          if (item.src_dtype != item.dst_dtype || (scaled && item.src_dtype != HVD_FLOAT32))
            throw hvd::Error(HVD_E_UNSUPPORTED, "the device only copies, and scales float32");
          if (scaled) {
            enqueue_scaled(s, item);
            continue;
          }
          enqueue_copy(s, item.dst, item.src, item.count * hvd::kDtypeBytes[item.src_dtype]);
        }
        return HVD_OK;
      });
    };
    return t;
  }

 private:
  static std::shared_ptr<Event> event_of(hvd_event e) { return *reinterpret_cast<std::shared_ptr<Event>*>(e); }

  static void record(std::shared_ptr<Event> event, Stream* stream) {
    uint64_t turn;
    {
      std::lock_guard<std::mutex> lock(event->mutex);
      turn = ++event->recorded;
      event->failed = stream->failed;
    }
    stream->add([event, turn] {
      std::lock_guard<std::mutex> lock(event->mutex);
      event->reached = std::max(event->reached, turn);
      event->changed.notify_all();
    });
  }

  static bool over(Event& event, int64_t deadline_ns) {
    std::unique_lock<std::mutex> lock(event.mutex);
    const uint64_t turn = event.recorded;
    const auto until = Clock::time_point(std::chrono::nanoseconds(deadline_ns));
    const auto hour = Clock::now() + std::chrono::hours(1);
    if (deadline_ns) event.changed.wait_until(lock, std::min(until, hour), [&] { return event.reached >= turn; });
    if (event.failed && *event.failed) throw hvd::Error(HVD_E_DEVICE, "a copy has failed", 0, 77);
    return event.reached >= turn;
  }
};

}  // namespace
