// The table and thunks of hvd::Device<T>, as backend_tables.hpp is for communicators. Included by backend_device.hpp.
#ifndef HVD_BACKEND_DEVICE_TABLE_HPP_
#define HVD_BACKEND_DEVICE_TABLE_HPP_

#include "hvd/backend_device.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {

template <class T>
class DeviceTable {
  static_assert(detail::HasDeviceType<T>::value,
                "a device class needs `static constexpr const char* device_type`, such as \"gpu\"");
  static_assert(detail::HasStream<T>::value, "a device class needs `using Stream = ...`, the runtime's stream");
  static_assert(detail::has_count<T>(), "a device class needs `static int32_t count()`");
  static_assert(detail::has_copy<T>(), "a device class needs `void copy(Stream, hvd_buf, hvd_buf, uint64_t)`");
  static_assert(std::is_constructible_v<T, const DeviceInit&>,
                "a device class needs a public constructor from `const hvd::DeviceInit&`");

  static constexpr bool kStreams = detail::has_stream_create<T>();
  static constexpr bool kEvents = detail::has_event_create<T>();
  static constexpr bool kMemory = detail::has_mem_alloc<T>();
  static_assert(kStreams == detail::has_stream_sync<T>() && kStreams == detail::has_stream_destroy<T>(),
                "stream_create, stream_sync and stream_destroy: all of them or none");
  static_assert(kEvents == detail::has_event_record<T>() && kEvents == detail::has_event_query<T>() &&
                    kEvents == detail::has_event_destroy<T>(),
                "event_create, event_record, event_query and event_destroy: all of them or none");
  static_assert(kEvents || !(detail::has_event_wait<T>() || detail::has_event_elapsed_ns<T>() ||
                             detail::has_stream_wait_event<T>()),
                "event_wait, event_elapsed_ns and stream_wait_event need event_create and its group");
  static_assert(kMemory == detail::has_mem_free<T>(), "mem_alloc and mem_free: both or none");
  static_assert(!kEvents || kStreams, "events are recorded in streams: stream_create and its group are missing");
  // Streams that fit into a pointer can be wrapped. The stream group has the slot that destroys the wrapper.
  static constexpr bool kNative = kStreams && std::is_pointer_v<typename T::Stream>;

 public:
  static const hvd_device_api* table() {
    static const hvd_device_api api = make();
    return &api;
  }

 private:
  template <class U, class = void>
  struct EventType {
    using type = void*;
  };
  template <class U>
  struct EventType<U, std::void_t<typename U::Event>> {
    using type = typename U::Event;
  };
  using Stream = detail::StreamOf<T>;
  using Event = detail::EventOf<T, typename EventType<T>::type>;
  using Mem = detail::MemOf<T>;

  static T& device_of(T& t) { return t; }
  template <class H>
  static T& device_of(H& h) {
    return *h.device;
  }
  static constexpr const char* noun(const T*) { return "device"; }
  static constexpr const char* noun(const Stream*) { return "stream"; }
  static constexpr const char* noun(const Event*) { return "event"; }
  static constexpr const char* noun(const Mem*) { return "memory"; }

  static hvd_device_api make() {
    hvd_device_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    t.device_type = T::device_type;
    t.count = &count;
    t.open = &open;
    t.close = &close;
    t.props = &props;
    t.copy = &copy;
    if constexpr (kStreams) {
      t.stream_create = &stream_create;
      t.stream_sync = &stream_sync;
      t.stream_destroy = &stream_destroy;
    }
    if constexpr (kNative) {
      t.stream_wrap = &stream_wrap;
      t.stream_native = &stream_native;
    }
    if constexpr (detail::has_stream_query<T>()) t.stream_query = &stream_query;
    if constexpr (detail::has_stream_wait_event<T>()) t.stream_wait_event = &stream_wait_event;
    if constexpr (kEvents) {
      t.event_create = &event_create;
      t.event_record = &event_record;
      t.event_query = &event_query;
      t.event_destroy = &event_destroy;
    }
    if constexpr (detail::has_event_wait<T>()) t.event_wait = &event_wait;
    if constexpr (detail::has_event_elapsed_ns<T>()) t.event_elapsed_ns = &event_elapsed_ns;
    if constexpr (kMemory) {
      t.mem_alloc = &mem_alloc;
      t.mem_free = &mem_free;
    }
    if constexpr (detail::has_mem_query<T>()) t.mem_query = &mem_query;
    if constexpr (detail::has_batched_copy_scale<T>()) t.batched_copy_scale = &batched_copy_scale;
    if constexpr (detail::has_reduce_local<T>()) t.reduce_local = &reduce_local;
    return t;
  }

  // Runs a thunk's body with the H behind the handle `given`, after its device is made current. The body returns
  // nothing, or false if the work is not complete.
  template <class H, class F>
  static hvd_rc on(void* given, hvd_error* error, F&& body) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      H& h = *detail::handle<H>(given, noun(static_cast<const H*>(nullptr)));
      [[maybe_unused]] const auto current = detail::enter(device_of(h));
      if constexpr (std::is_void_v<decltype(body(h))>) {
        body(h);
        return HVD_OK;
      } else {
        return body(h) ? HVD_OK : HVD_INPROGRESS;
      }
    });
  }

  static void check_room(uint64_t bytes, const hvd_buf& a, const hvd_buf& b) {
    if (bytes <= a.bytes && bytes <= b.bytes) return;
    throw Error(HVD_E_INVALID, std::to_string(bytes) + " bytes asked for between buffers of " +
                                   std::to_string(a.bytes) + " and " + std::to_string(b.bytes));
  }

  static hvd_rc count(int32_t* n, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      *n = T::count();
      return HVD_OK;
    });
  }
  static hvd_rc open(int32_t ordinal, void* native_context, hvd_device* out, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      *out = nullptr;
      const int32_t n = T::count();
      if (ordinal < 0 || ordinal >= n) {
        throw Error(HVD_E_INVALID, std::string("there is no ") + T::device_type + " device " + std::to_string(ordinal) +
                                       "; this process sees " + std::to_string(n));
      }
      *out = reinterpret_cast<hvd_device>(std::make_unique<T>(DeviceInit{ordinal, native_context}).release());
      return HVD_OK;
    });
  }
  static hvd_rc close(hvd_device d, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      delete detail::handle<T>(d, "device");
      return HVD_OK;
    });
  }
  static hvd_rc props(hvd_device d, hvd_device_props* out, hvd_error* error) noexcept {
    return on<T>(d, error, [&]([[maybe_unused]] T& t) {
      if constexpr (detail::has_props<T>()) {
        give(out, t.props());
      } else {
        give(out, no_props());
      }
    });
  }

  static hvd_rc stream_create(hvd_device d, int32_t priority, hvd_stream* out, hvd_error* error) noexcept {
    return on<T>(d, error, [&](T& t) {
      auto made = std::make_unique<Stream>(Stream{&t, {}, true});
      made->native = t.stream_create(priority);
      *out = reinterpret_cast<hvd_stream>(made.release());
    });
  }
  static hvd_rc stream_wrap(hvd_device d, void* native, hvd_stream* out, hvd_error* error) noexcept {
    return on<T>(d, error, [&](T& t) {
      *out = reinterpret_cast<hvd_stream>(new Stream{&t, static_cast<typename T::Stream>(native), false});
    });
  }
  static void* stream_native(hvd_stream s) noexcept {
    return s == nullptr ? nullptr : (void*)(reinterpret_cast<Stream*>(s)->native);
  }
  static hvd_rc stream_sync(hvd_stream s, int64_t deadline_ns, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      if (!x.device->stream_sync(x.native, deadline_ns)) {
        throw Error(HVD_E_TIMEOUT, "the stream's work was not done by the deadline");
      }
    });
  }
  static hvd_rc stream_query(hvd_stream s, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) { return x.device->stream_query(x.native); });
  }
  static hvd_rc stream_wait_event(hvd_stream s, hvd_event e, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      Event& awaited = *detail::handle<Event>(e, "event");
      if (awaited.recorded.load()) x.device->stream_wait_event(x.native, awaited.native);
    });
  }
  static hvd_rc stream_destroy(hvd_stream s, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      const std::unique_ptr<Stream> gone(&x);
      if (gone->ours) gone->device->stream_destroy(gone->native);
    });
  }

  static hvd_rc event_create(hvd_device d, int32_t flags, hvd_event* out, hvd_error* error) noexcept {
    return on<T>(d, error, [&](T& t) {
      auto made = std::make_unique<Event>(&t);
      made->native = t.event_create(flags);
      *out = reinterpret_cast<hvd_event>(made.release());
    });
  }
  static hvd_rc event_record(hvd_event e, hvd_stream s, hvd_error* error) noexcept {
    return on<Event>(e, error, [&](Event& x) {
      x.device->event_record(x.native, detail::handle<Stream>(s, "stream")->native);
      x.recorded.store(true);
    });
  }
  // An event that was never recorded is complete, also if the runtime answers otherwise.
  static hvd_rc event_query(hvd_event e, hvd_error* error) noexcept {
    return on<Event>(e, error, [&](Event& x) { return !x.recorded.load() || x.device->event_query(x.native); });
  }
  static hvd_rc event_wait(hvd_event e, int64_t deadline_ns, hvd_error* error) noexcept {
    return on<Event>(e, error,
                     [&](Event& x) { return !x.recorded.load() || x.device->event_wait(x.native, deadline_ns); });
  }
  static hvd_rc event_elapsed_ns(hvd_event a, hvd_event b, int64_t* ns, hvd_error* error) noexcept {
    return on<Event>(a, error, [&](Event& x) {
      Event& y = *detail::handle<Event>(b, "event");
      if (!x.recorded.load() || !y.recorded.load()) throw Error(HVD_E_INVALID, "both events must have been recorded");
      *ns = x.device->event_elapsed_ns(x.native, y.native);
    });
  }
  static hvd_rc event_destroy(hvd_event e, hvd_error* error) noexcept {
    return on<Event>(e, error, [&](Event& x) {
      const std::unique_ptr<Event> gone(&x);
      gone->device->event_destroy(gone->native);
    });
  }

  static hvd_rc mem_alloc(hvd_device d, int32_t kind, uint64_t bytes, hvd_mem* mem, hvd_buf* buf,
                          hvd_error* error) noexcept {
    return on<T>(d, error, [&](T& t) {
      auto made = std::make_unique<Mem>(Mem{&t, nullptr, kind});
      made->base = t.mem_alloc(kind, bytes == 0 ? 1 : bytes);  // some runtimes answer NULL to 0 bytes
      *buf = {made->base, 0, bytes};
      *mem = reinterpret_cast<hvd_mem>(made.release());
    });
  }
  static hvd_rc mem_free(hvd_mem m, hvd_error* error) noexcept {
    return on<Mem>(m, error, [&](Mem& x) {
      const std::unique_ptr<Mem> gone(&x);
      gone->device->mem_free(gone->base, gone->kind);
    });
  }
  static hvd_rc mem_query(const void* p, int32_t* kind, int32_t* ordinal, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      const MemInfo info = T::mem_query(p);
      *kind = info.kind;
      *ordinal = info.ordinal;
      return HVD_OK;
    });
  }

  static hvd_rc copy(hvd_stream s, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      check_room(bytes, dst, src);
      if (bytes) x.device->copy(x.native, dst, src, bytes);
    });
  }
  static hvd_rc batched_copy_scale(hvd_stream s, const hvd_copy_item* items, uint64_t n, hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      if (n) x.device->batched_copy_scale(x.native, CopyItems(items, n));
    });
  }
  static hvd_rc reduce_local(hvd_stream s, hvd_buf inout, hvd_buf in, uint64_t n, int32_t dtype, int32_t op,
                             hvd_error* error) noexcept {
    return on<Stream>(s, error, [&](Stream& x) {
      if (dtype < 0 || dtype >= HVD_DTYPE_COUNT || op < 0 || op >= HVD_REDOP_COUNT) {
        throw Error(HVD_E_INVALID,
                    "no such element type or reduction: " + std::to_string(dtype) + ", " + std::to_string(op));
      }
      check_room(n * kDtypeBytes[dtype], inout, in);
      if (n) x.device->reduce_local(x.native, inout, in, n, dtype, op);
    });
  }
};

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_DEVICE_TABLE_HPP_
