// Sample classes for device_sugar_driver.cc: devices with each subset of methods, and a communicator with all of them,
// over a toy runtime that fails when it is told to.
#pragma once

#include <hvd/backend.hpp>

#include "support.h"

using test::check;

// As in a backend's library, whose symbols are hidden.
namespace {

// A runtime with a current device per thread, as many have.
thread_local int t_current = 0;

struct Toy {
  int calls = 0;
};
using ToyStream = Toy*;
using ToyEvent = Toy*;

int g_fail = 0;   // when set, every method throws in its way
int g_seen = -1;  // the device that was current in the last call

void called(int ordinal) {
  g_seen = t_current;
  check(t_current == ordinal, "the device is current in every method");
  if (g_fail == 1) throw hvd::Error(HVD_E_DEVICE, "it broke", HVD_EF_DEVICE_DEAD, 1234);
  if (g_fail == 2) throw std::bad_alloc();
  if (g_fail == 3) throw std::runtime_error("surprise");
  if (g_fail == 4) throw 42;  // NOLINT
}

struct Minimal : hvd::Device<Minimal> {
  static constexpr const char* device_type = "toy";
  using Stream = ToyStream;
  static int32_t count() { return 2; }
  explicit Minimal(const hvd::DeviceInit& init) : Device(init) {}
  void copy(Stream, hvd_buf, hvd_buf, uint64_t) {}
};

struct WithStreams : Minimal {
  using Minimal::Minimal;
  Stream stream_create(int32_t) { return new Toy; }
  void stream_destroy(Stream s) { delete s; }
  bool stream_sync(Stream, int64_t) { return true; }
};

struct WithEvents : WithStreams {
  using WithStreams::WithStreams;
  using Event = ToyEvent;
  Event event_create(int32_t) { return new Toy; }
  void event_destroy(Event e) { delete e; }
  void event_record(Event, Stream) {}
  bool event_query(Event) { return true; }
};

struct WithMemory : Minimal {
  using Minimal::Minimal;
  void* mem_alloc(int32_t, uint64_t bytes) { return new char[bytes]; }
  void mem_free(void* p, int32_t) { delete[] static_cast<char*>(p); }
};

// Streams that do not fit into a pointer can be created, not wrapped.
struct WithNumbers : hvd::Device<WithNumbers> {
  static constexpr const char* device_type = "toy";
  using Stream = int;
  static int32_t count() { return 1; }
  explicit WithNumbers(const hvd::DeviceInit& init) : Device(init) {}
  void copy(Stream, hvd_buf, hvd_buf, uint64_t) {}
  Stream stream_create(int32_t) { return 5; }
  void stream_destroy(Stream) {}
  bool stream_sync(Stream, int64_t) { return true; }
};

struct Full final : hvd::Device<Full> {
  static constexpr const char* device_type = "toy";
  using Stream = ToyStream;
  using Event = ToyEvent;
  // Restores the previous current device at the end of the call.
  struct Current {
    explicit Current(int now) : before(t_current) { t_current = now; }
    ~Current() { t_current = before; }
    int before;
  };
  static int32_t count() { return 2; }
  explicit Full(const hvd::DeviceInit& init) : Device(init), context(init.native_context) {
    if (g_fail) {
      t_current = ordinal();
      called(ordinal());
    }
  }
  Current make_current() const { return Current(ordinal()); }
  hvd_device_props props() {
    called(ordinal());
    hvd_device_props p = hvd::no_props();
    p.alignment = 64;
    hvd::set_text(p.arch, "a name that is longer than the forty-eight bytes that there are for it");
    return p;
  }
  Stream stream_create(int32_t priority) {
    called(ordinal());
    return new Toy{priority};
  }
  void stream_destroy(Stream s) {
    delete s;
    ++destroyed;
    called(ordinal());
  }
  bool stream_query(Stream) { return called(ordinal()), ready; }
  bool stream_sync(Stream, int64_t) { return called(ordinal()), ready; }
  void stream_wait_event(Stream, Event) { called(ordinal()), ++waits; }
  Event event_create(int32_t) { return called(ordinal()), new Toy; }
  void event_destroy(Event e) {
    delete e;
    called(ordinal());
  }
  void event_record(Event, Stream) { called(ordinal()); }
  bool event_query(Event) { return called(ordinal()), ready; }
  bool event_wait(Event, int64_t) { return called(ordinal()), ready; }
  int64_t event_elapsed_ns(Event, Event) { return called(ordinal()), 77; }
  void* mem_alloc(int32_t kind, uint64_t bytes) {
    called(ordinal());
    check(kind == HVD_MEM_PINNED && bytes > 0, "what mem_alloc is given");
    return new char[bytes];
  }
  void mem_free(void* base, int32_t kind) {
    check(kind == HVD_MEM_PINNED, "mem_free knows the kind");
    delete[] static_cast<char*>(base);
    called(ordinal());
  }
  static hvd::MemInfo mem_query(const void* p) {
    if (p == nullptr) throw hvd::Error(HVD_E_UNSUPPORTED, "it cannot tell");
    return {HVD_MEM_DEVICE, 1};
  }
  void copy(Stream, hvd_buf, hvd_buf, uint64_t bytes) { called(ordinal()), copied += bytes; }
  void batched_copy_scale(Stream, const hvd::CopyItems& items) {
    called(ordinal());
    for (uint64_t i = 0; i < items.size(); ++i) scales += items[i].scale * static_cast<double>(items[i].count);
  }
  void reduce_local(Stream, hvd_buf, hvd_buf, uint64_t n, int32_t, int32_t) { called(ordinal()), copied += n; }

  void* context;
  bool ready = true;
  int waits = 0, destroyed = 0;
  uint64_t copied = 0;
  double scales = 0;
};

struct FullComm : hvd::Comm<FullComm, Full> {
  static constexpr uint64_t caps = HVD_CAP_STREAM | HVD_CAP_MEM_DEVICE;
  explicit FullComm(const hvd::CommInit& init) : Comm(init) { called(device().ordinal()); }
  FullComm(FullComm& parent, const hvd::CommInit& init) : Comm(init), generation(parent.generation + 1) {}
  ~FullComm() { g_seen = t_current; }
  void allreduce(const hvd::Coll& c) {
    called(device().ordinal());
    check(c.stream<Full>()->calls == 7, "the native stream of a collective");
  }
  void abort() { called(device().ordinal()); }
  void async_error() { called(device().ordinal()); }
  void finalize(int64_t) { called(device().ordinal()); }
  void group_begin() { called(device().ordinal()); }
  void group_end() { called(device().ordinal()); }
  void* mem_register(const hvd_buf& b) { return called(device().ordinal()), b.base; }
  void mem_deregister(void*) { called(device().ordinal()); }
  int generation = 0;
};

}  // namespace
