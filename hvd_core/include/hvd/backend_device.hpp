// The device half of backend.hpp: makes a device table from the methods of a class. Included by backend.hpp.
//
//   struct MyDevice : hvd::Device<MyDevice> {
//     static constexpr const char* device_type = "my";
//     using Stream = my_stream_t;   // a pointer type, if foreign streams are to be wrapped
//     using Event = my_event_t;
//     static int32_t count();
//     explicit MyDevice(const hvd::DeviceInit& init) : Device(init) { ... }
//     void make_current() const;    // for runtimes with a current device per thread: called first in every call
//     void copy(Stream, hvd_buf dst, hvd_buf src, uint64_t bytes);
//     ...
//   };
//
// device_type, Stream, count, the constructor and copy are required; each other method that is missing becomes a NULL
// slot. Methods throw hvd::Error. Stream and Event are types of the vendor's runtime; this layer owns the objects
// around them. Threads: as in backend_abi.h; any thread may call event_query().
#ifndef HVD_BACKEND_DEVICE_HPP_
#define HVD_BACKEND_DEVICE_HPP_

#include "hvd/backend.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {

struct DeviceInit {
  int32_t ordinal;
  void* native_context;  // the framework's, for runtimes that have contexts; else NULL
};

// The answer of mem_query about an address; mem_query throws HVD_E_UNSUPPORTED if the runtime cannot tell.
struct MemInfo {
  int32_t kind, ordinal;
};

// The list that batched_copy_scale gets, each item complete.
class CopyItems {
 public:
  CopyItems(const hvd_copy_item* first, uint64_t n) : first_(first), n_(n) {}
  uint64_t size() const { return n_; }
  hvd_copy_item operator[](uint64_t i) const {
    hvd_copy_item item = complete(element(first_, i), "hvd_copy_item");
    if (item.scale == 0) item.scale = 1;
    return item;
  }

 private:
  const hvd_copy_item* first_;
  uint64_t n_;
};

// Base of a device class T. Looked for in T (Stream and Event are T's own types):
//   static int32_t count();     void make_current() const, or something that puts the previous one back when it dies
//   hvd_device_props props()    start from hvd::no_props()
//   Stream stream_create(int32_t priority);  void stream_destroy(Stream);  bool stream_sync(Stream, int64_t
//   deadline_ns) bool stream_query(Stream);  void stream_wait_event(Stream, Event) Event event_create(int32_t flags);
//   void event_destroy(Event);  void event_record(Event, Stream) bool event_query(Event);  bool event_wait(Event,
//   int64_t deadline_ns);  int64_t event_elapsed_ns(Event, Event) void* mem_alloc(int32_t kind, uint64_t bytes);  void
//   mem_free(void* base, int32_t kind) static hvd::MemInfo mem_query(const void*) void copy(Stream, hvd_buf dst,
//   hvd_buf src, uint64_t bytes) void batched_copy_scale(Stream, const hvd::CopyItems&) void reduce_local(Stream,
//   hvd_buf inout, hvd_buf in, uint64_t count, int32_t dtype, int32_t op) static void load();  static constexpr tag,
//   version, options;  static const char* vendor_lib()    as in hvd::Comm
// query, sync and wait return true when the work is done. The destructor closes the device.
template <class T>
class Device {
 public:
  explicit Device(const DeviceInit& init) : ordinal_(init.ordinal) {}
  int32_t ordinal() const { return ordinal_; }

 private:
  int32_t ordinal_;
};

inline hvd_device_props no_props() {
  hvd_device_props props;
  std::memset(&props, 0, sizeof(props));
  props.numa_node = -1;
  props.batch_limit = UINT32_MAX;
  return props;
}

// Copies a text into a field of hvd_device_props, cut to its size.
template <size_t N>
void set_text(char (&to)[N], const char* text) {
  const size_t n = std::min(std::strlen(text), N - 1);
  std::memcpy(to, text, n);
  to[n] = '\0';
}

namespace detail {

HVD_METHOD(count, int32_t, "static int32_t count()", T::count())
HVD_METHOD(props, hvd_device_props, "hvd_device_props props()", std::declval<T&>().props())
HVD_METHOD(stream_create, typename T::Stream, "Stream stream_create(int32_t priority)",
           std::declval<T&>().stream_create(int32_t{}))
HVD_METHOD(stream_destroy, void, "void stream_destroy(Stream)",
           std::declval<T&>().stream_destroy(std::declval<typename T::Stream>()))
HVD_METHOD(stream_sync, bool, "bool stream_sync(Stream, int64_t deadline_ns)",
           std::declval<T&>().stream_sync(std::declval<typename T::Stream>(), int64_t{}))
HVD_METHOD(stream_query, bool, "bool stream_query(Stream)",
           std::declval<T&>().stream_query(std::declval<typename T::Stream>()))
HVD_METHOD(stream_wait_event, void, "void stream_wait_event(Stream, Event)",
           std::declval<T&>().stream_wait_event(std::declval<typename T::Stream>(), std::declval<typename T::Event>()))
HVD_METHOD(event_create, typename T::Event, "Event event_create(int32_t flags)",
           std::declval<T&>().event_create(int32_t{}))
HVD_METHOD(event_destroy, void, "void event_destroy(Event)",
           std::declval<T&>().event_destroy(std::declval<typename T::Event>()))
HVD_METHOD(event_record, void, "void event_record(Event, Stream)",
           std::declval<T&>().event_record(std::declval<typename T::Event>(), std::declval<typename T::Stream>()))
HVD_METHOD(event_query, bool, "bool event_query(Event)",
           std::declval<T&>().event_query(std::declval<typename T::Event>()))
HVD_METHOD(event_wait, bool, "bool event_wait(Event, int64_t deadline_ns)",
           std::declval<T&>().event_wait(std::declval<typename T::Event>(), int64_t{}))
HVD_METHOD(event_elapsed_ns, int64_t, "int64_t event_elapsed_ns(Event from, Event to)",
           std::declval<T&>().event_elapsed_ns(std::declval<typename T::Event>(), std::declval<typename T::Event>()))
HVD_METHOD(mem_alloc, void*, "void* mem_alloc(int32_t kind, uint64_t bytes)",
           std::declval<T&>().mem_alloc(int32_t{}, uint64_t{}))
HVD_METHOD(mem_free, void, "void mem_free(void* base, int32_t kind)",
           std::declval<T&>().mem_free(static_cast<void*>(nullptr), int32_t{}))
HVD_METHOD(mem_query, MemInfo, "static hvd::MemInfo mem_query(const void*)",
           T::mem_query(static_cast<const void*>(nullptr)))
HVD_METHOD(copy, void, "void copy(Stream, hvd_buf dst, hvd_buf src, uint64_t bytes)",
           std::declval<T&>().copy(std::declval<typename T::Stream>(), hvd_buf{}, hvd_buf{}, uint64_t{}))
HVD_METHOD(batched_copy_scale, void, "void batched_copy_scale(Stream, const hvd::CopyItems&)",
           std::declval<T&>().batched_copy_scale(std::declval<typename T::Stream>(), std::declval<const CopyItems&>()))
HVD_METHOD(reduce_local, void, "void reduce_local(Stream, hvd_buf, hvd_buf, uint64_t, int32_t dtype, int32_t op)",
           std::declval<T&>().reduce_local(std::declval<typename T::Stream>(), hvd_buf{}, hvd_buf{}, uint64_t{},
                                           int32_t{}, int32_t{}))

// The objects behind hvd_stream, hvd_event and hvd_mem. An hvd_device points to the T itself.
template <class T>
struct StreamOf {
  T* device;
  typename T::Stream native;
  bool ours;  // made by stream_create, not wrapped
};
template <class T, class Event>
struct EventOf {
  explicit EventOf(T* device) : device(device) {}
  T* device;
  Event native{};
  std::atomic<bool> recorded{false};
};
template <class T>
struct MemOf {
  T* device;
  void* base;
  int32_t kind;
};

template <class H>
H* handle(void* given, const char* what) {
  if (given == nullptr) throw Error(HVD_E_INVALID, std::string("the ") + what + " is NULL");
  return static_cast<H*>(given);
}

}  // namespace detail

// The vendor's stream of an hvd_stream that D's table created or wrapped.
template <class D>
auto native_stream(hvd_stream s) {
  return detail::handle<detail::StreamOf<D>>(s, "stream")->native;
}

}  // namespace hvd
#pragma GCC visibility pop

#include "hvd/backend_device_table.hpp"

#endif  // HVD_BACKEND_DEVICE_HPP_
