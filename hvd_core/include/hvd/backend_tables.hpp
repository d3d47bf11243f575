// The communicator half of backend.hpp: a table and its thunks made from a class by detection. Included by backend.hpp.
//
// Each thunk is noexcept, completes the caller's struct, calls one method, and fills the caller's hvd_error.
#ifndef HVD_BACKEND_TABLES_HPP_
#define HVD_BACKEND_TABLES_HPP_

#include "hvd/backend.hpp"
#include "hvd/backend_methods.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {

template <class T>
class CommTable {
  using D = typename T::DeviceClass;
  static constexpr bool kHasDevice = !std::is_same_v<D, NoDevice>;
  static constexpr bool kStream = (T::caps & HVD_CAP_STREAM) != 0;
  static constexpr bool kRequest = (T::caps & HVD_CAP_REQUEST) != 0;
  static constexpr bool kGroups = detail::has_group_begin<T>();
  static constexpr bool kRegisters = detail::has_mem_register<T>();
  static constexpr bool kWindows = detail::has_window_create<T>();
  static constexpr bool kSplits = std::is_constructible_v<T, T&, const CommInit&>;
  static constexpr uint64_t kGroupCaps = HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED;

  static_assert(std::is_constructible_v<T, const CommInit&>,
                "a communicator class needs a public constructor from `const hvd::CommInit&`");
  static_assert(kStream != kRequest, "caps must hold one of HVD_CAP_STREAM and HVD_CAP_REQUEST");
  static_assert((T::caps & (HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE)) != 0,
                "caps must hold HVD_CAP_MEM_HOST, HVD_CAP_MEM_DEVICE, or both");
  static_assert(!(T::caps & HVD_CAP_MEM_DEVICE) || kHasDevice || detail::HasDeviceTypes<T>::value,
                "HVD_CAP_MEM_DEVICE needs a device class, or `static constexpr const char* device_types`");
  static_assert(kGroups == detail::has_group_end<T>(), "group_begin and group_end: both or none");
  static_assert(kGroups || !(T::caps & kGroupCaps), "caps declare groups; group_begin and group_end are missing");
  static_assert(kRegisters == detail::has_mem_deregister<T>(), "mem_register and mem_deregister: both or none");
  static_assert(kWindows == detail::has_window_destroy<T>() && kWindows == detail::has_window_free<T>(),
                "window_create, window_destroy and window_free: all of them or none");
  static_assert(detail::has_id_bytes<T>() == detail::has_id_create<T>(), "id_bytes and id_create: both or none");
  static_assert(detail::has_abort<T>() || !(T::caps & HVD_CAP_ABORT), "caps declare ABORT; abort() is missing");

 public:
  static const hvd_comm_api* table() {
    static const hvd_comm_api api = make();
    return &api;
  }

 private:
  // The object behind an hvd_comm.
  struct Holder {
    template <class... Args>
    explicit Holder(Args&&... args) : comm(std::forward<Args>(args)...) {}
    T comm;
    std::atomic<bool> aborted{false};
  };

  static Holder* holder(hvd_comm c) { return reinterpret_cast<Holder*>(c); }

  static hvd_comm_api make() {
    hvd_comm_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    t.device_types = "";
    if constexpr (detail::HasDeviceTypes<T>::value) {
      t.device_types = T::device_types;
    } else if constexpr (kHasDevice) {
      t.device_types = D::device_type;
    }
    t.caps = T::caps | (detail::has_abort<T>() ? uint64_t{HVD_CAP_ABORT} : 0);
    // If the class does not declare a kind of group, assume the weaker one.
    if constexpr (kGroups && !(T::caps & kGroupCaps)) t.caps |= HVD_CAP_GROUP_SAME;
    if constexpr (detail::has_id_bytes<T>()) {
      t.id_bytes = &id_bytes;
      t.id_create = &id_create;
    }
    t.create = &create;
    if constexpr (detail::has_created<T>()) t.create_test = &create_test;
    if constexpr (kSplits) t.split = &split;
    if constexpr (detail::has_finalize<T>()) t.finalize = &finalize;
    t.destroy = &destroy;
    if constexpr (detail::has_abort<T>()) t.abort = &abort;
    if constexpr (detail::has_async_error<T>()) t.async_error = &async_error;
    t.query = &query;
    t.collective = &collective;
    if constexpr (kGroups) {
      t.group_begin = &group_begin;
      t.group_end = &group_end;
    }
    if constexpr (kRequest) {
      t.req_test = &req_test;
      t.req_wait = &req_wait;
      t.req_free = &req_free;
    }
    if constexpr (kRegisters) {
      t.mem_register = &mem_register;
      t.mem_deregister = &mem_deregister;
    }
    if constexpr (kWindows) {
      t.window_create = &window_create;
      t.window_destroy = &window_destroy;
      t.window_free = &window_free;
    }
    return t;
  }

  // Runs a body that returns an hvd_rc, with the device current if there is one; no exception leaves it.
  template <class F>
  static hvd_rc run([[maybe_unused]] D* device, hvd_error* error, F&& body) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if constexpr (kHasDevice) {
        if (device != nullptr) {
          [[maybe_unused]] const auto current = detail::enter(*device);
          return body();
        }
      }
      return body();
    });
  }
  // The same for a communicator and a body that returns nothing, or false if the operation is in flight.
  template <class F>
  static hvd_rc on(hvd_comm c, hvd_error* error, F&& body) noexcept {
    Holder* const h = holder(c);
    if (h == nullptr) return fail(error, HVD_E_INVALID, "the communicator is NULL");
    return run(device_of(h->comm), error, [&]() -> hvd_rc {
      if constexpr (std::is_void_v<decltype(body(*h))>) {
        body(*h);
        return HVD_OK;
      } else {
        return body(*h) ? HVD_OK : HVD_INPROGRESS;
      }
    });
  }
  static D* device_of([[maybe_unused]] const T& comm) {
    if constexpr (kHasDevice) {
      if (comm.has_device()) return &comm.device();
    }
    return nullptr;
  }

  static uint64_t id_bytes() noexcept { return T::id_bytes(); }
  static hvd_rc id_create(void* id, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      T::id_create(id);
      return HVD_OK;
    });
  }

  template <class... Parent>
  static hvd_rc make_comm(const hvd_comm_args* args, hvd_comm* out, hvd_error* error, Parent&... parent) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if (out == nullptr) throw Error(HVD_E_INVALID, "the place for the communicator is NULL");
      *out = nullptr;
      const hvd_comm_args mine = complete(args, "hvd_comm_args");
      // A rank that is in no part of a split has size 0, and no rank of its own.
      const int32_t least = sizeof...(Parent) == 0 ? 1 : 0;
      if (mine.size < least || (mine.size > 0 && (mine.rank < 0 || mine.rank >= mine.size))) {
        throw Error(HVD_E_INVALID, "rank " + std::to_string(mine.rank) + " of " + std::to_string(mine.size) +
                                       " is not a rank of a communicator");
      }
      const CommInit init(mine);
      D* device = nullptr;
      if constexpr (kHasDevice) device = init.device != nullptr ? &init.device_as<D>() : nullptr;
      return run(device, error, [&]() -> hvd_rc {
        auto made = std::make_unique<Holder>(parent..., init);
        // The object of a rank in no part of a split has served the other ranks and is not returned.
        if (init.size == 0) return HVD_OK;
        *out = reinterpret_cast<hvd_comm>(made.release());
        return detail::has_created<T>() ? HVD_INPROGRESS : HVD_OK;
      });
    });
  }
  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
    return make_comm(args, out, error);
  }
  static hvd_rc split(hvd_comm c, const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
    if (c == nullptr) return fail(error, HVD_E_INVALID, "the communicator is NULL");
    return make_comm(args, out, error, holder(c)->comm);
  }
  static hvd_rc create_test(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) { return h.comm.created(); });
  }
  static hvd_rc finalize(hvd_comm c, int64_t deadline_ns, hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) { h.comm.finalize(deadline_ns); });
  }
  static hvd_rc destroy(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) { delete &h; });
  }
  static hvd_rc abort(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) {
      if (!h.aborted.exchange(true)) h.comm.abort();
    });
  }
  static hvd_rc async_error(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) {
      check_alive(h);
      h.comm.async_error();
    });
  }
  static hvd_rc group_begin(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) {
      check_alive(h);
      h.comm.group_begin();
    });
  }
  static hvd_rc group_end(hvd_comm c, hvd_error* error) noexcept {
    return on(c, error, [](Holder& h) {
      h.comm.group_end();  // also after an abort: a library that opened a group on this thread has to leave it
      check_alive(h);
    });
  }
  static hvd_rc mem_register(hvd_comm c, hvd_buf buf, void** out, hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) { *out = h.comm.mem_register(buf); });
  }
  static hvd_rc mem_deregister(hvd_comm c, void* registered, hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) { h.comm.mem_deregister(registered); });
  }

  static hvd_rc window_create(hvd_comm c, const hvd_window_args* args, hvd_window* out, hvd_buf* part,
                              hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) {
      if (out == nullptr || part == nullptr) throw Error(HVD_E_INVALID, "the place for the window is NULL");
      *out = nullptr;
      *part = {};
      const hvd_window_args mine = complete(args, "hvd_window_args");
      check_alive(h);
      *out = h.comm.window_create(WindowInit(mine), part);
    });
  }
  static hvd_rc window_destroy(hvd_comm c, hvd_window window, int64_t deadline_ns, hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) {
      if (window == nullptr) throw Error(HVD_E_INVALID, "the window is NULL");
      check_alive(h);
      h.comm.window_destroy(window, deadline_ns);
    });
  }
  static hvd_rc window_free(hvd_window window, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if (window != nullptr) T::window_free(window);
      return HVD_OK;
    });
  }

  static constexpr bool checks_sizes() {
    if constexpr (detail::HasChecksSizes<T>::value) return T::checks_sizes;
    return false;
  }

  static constexpr bool reports_abort() {
    if constexpr (detail::HasReportsAbort<T>::value) return T::reports_abort;
    return false;
  }

  static void check_alive([[maybe_unused]] const Holder& h) {
    if constexpr (reports_abort()) return;
    if (h.aborted.load()) throw Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
  }

  // Whether the class has a method for this collective.
  static bool has(int32_t coll) {
    switch (coll) {
      case HVD_ALLREDUCE:
        return detail::has_allreduce<T>();
      case HVD_REDUCE:
        return detail::has_reduce<T>();
      case HVD_BROADCAST:
        return detail::has_broadcast<T>();
      case HVD_ALLGATHER:
        return detail::has_allgather<T>();
      case HVD_REDUCESCATTER:
        return detail::has_reducescatter<T>();
      case HVD_ALLTOALL:
        return detail::has_alltoall<T>();
      case HVD_SEND:
        return detail::has_send<T>();
      case HVD_RECV:
        return detail::has_recv<T>();
      case HVD_BARRIER:
        return detail::has_barrier<T>();
      default:
        return false;
    }
  }

  static constexpr bool reduces(int32_t coll) {
    return coll == HVD_ALLREDUCE || coll == HVD_REDUCE || coll == HVD_REDUCESCATTER;
  }

  static bool in_sets(const Coll& c) {
    if (c.kind() == HVD_BARRIER) return true;
    if (c.dtype() < 0 || c.dtype() >= HVD_DTYPE_COUNT) return false;
    if constexpr (detail::HasDtypes<T>::value) {
      if (!((uint64_t{T::dtypes} >> c.dtype()) & 1)) return false;
    }
    if (!reduces(c.kind())) return true;
    if (c.op() < 0 || c.op() >= HVD_REDOP_COUNT) return false;
    if constexpr (detail::HasReductions<T>::value) {
      if (!((uint64_t{T::reductions} >> c.op()) & 1)) return false;
    }
    return true;
  }

  static hvd_coll_caps answer(const Coll& c) {
    hvd_coll_caps caps;
    std::memset(&caps, 0, sizeof(caps));
    if (!has(c.kind()) || !in_sets(c)) return caps;
    if constexpr (detail::has_query<T>()) {
      return T::query(c);
    } else {
      caps.support = HVD_NATIVE;
      caps.score = 50;
      return caps;
    }
  }

  // The answer of one communicator, or of the backend if the handle is NULL.
  static hvd_coll_caps answer([[maybe_unused]] const Holder* h, const Coll& c) {
    const hvd_coll_caps any = answer(c);
    if constexpr (detail::has_query_made<T>()) {
      if (h != nullptr && any.support != HVD_UNSERVED) return h->comm.query_made(c);
    }
    return any;
  }

  static hvd_rc query(hvd_comm c, const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if (out == nullptr) throw Error(HVD_E_INVALID, "the place for the answer is NULL");
      const hvd_coll_args mine = complete(args, "hvd_coll_args");
      give(out, answer(holder(c), Coll(mine)));
      return HVD_OK;
    });
  }

  static Work call(T& comm, const Coll& c) {
    switch (c.kind()) {
#define HVD_CALL(NUMBER, method)                                                           \
  case HVD_##NUMBER:                                                                       \
    if constexpr (detail::has_##method<T>()) {                                             \
      if constexpr (std::is_void_v<decltype(comm.method(c))>) {                            \
        static_assert(kStream, "with HVD_CAP_REQUEST, " #method " must return hvd::Work"); \
        comm.method(c);                                                                    \
        return Work::done();                                                               \
      } else {                                                                             \
        return comm.method(c);                                                             \
      }                                                                                    \
    }                                                                                      \
    break;
      HVD_CALL(ALLREDUCE, allreduce)
      HVD_CALL(REDUCE, reduce)
      HVD_CALL(BROADCAST, broadcast)
      HVD_CALL(ALLGATHER, allgather)
      HVD_CALL(REDUCESCATTER, reducescatter)
      HVD_CALL(ALLTOALL, alltoall)
      HVD_CALL(SEND, send)
      HVD_CALL(RECV, recv)
      HVD_CALL(BARRIER, barrier)
#undef HVD_CALL
      default:
        break;
    }
    throw Error(HVD_E_UNSUPPORTED, "this backend has no such collective");
  }

  static Error unserved(const Coll& c) {
    if constexpr (detail::has_why_unserved<T>()) {
      return T::why_unserved(c);
    } else {
      const bool scaled = c.prescale() != 1 || c.postscale() != 1;
      return Error(HVD_E_UNSUPPORTED, "collective " + std::to_string(c.kind()) + " with dtype " +
                                          std::to_string(c.dtype()) + " and reduction " + std::to_string(c.op()) +
                                          (scaled ? " and these scale factors" : "") +
                                          " is not served; query says so too");
    }
  }

  // A request in flight, and the device to make current for it. Without a device class the handle is the request
  // itself, so that an operation allocates nothing here.
  struct Pending {
    Request* request;
    D* device;
  };
  static hvd_req handle_of(Work work, [[maybe_unused]] const T& comm) {
    if constexpr (kHasDevice) {
      auto* const pending = new Pending{nullptr, device_of(comm)};
      pending->request = work.release();
      return reinterpret_cast<hvd_req>(pending);
    } else {
      return reinterpret_cast<hvd_req>(work.release());
    }
  }
  static Request& request_of(hvd_req r) {
    if constexpr (kHasDevice) return *reinterpret_cast<Pending*>(r)->request;
    return *reinterpret_cast<Request*>(r);
  }
  static D* device_of(hvd_req r) {
    if constexpr (kHasDevice) return reinterpret_cast<Pending*>(r)->device;
    return nullptr;
  }

  static hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) noexcept {
    return on(c, error, [&](Holder& h) {
      if (out != nullptr) *out = nullptr;
      if (kRequest && out == nullptr) throw Error(HVD_E_INVALID, "the place for the request is NULL");
      hvd_coll_args storage;
      const Coll coll(complete_in(args, "hvd_coll_args", storage));
      check_alive(h);
      if (answer(&h, coll).support == HVD_UNSERVED) throw unserved(coll);
      if (coll.buffers() > 1 && !(T::caps & HVD_CAP_VECTORED)) {
        throw Error(HVD_E_INVALID, "more than one buffer for a communicator without HVD_CAP_VECTORED");
      }
      if constexpr (!checks_sizes()) check_sizes(coll, h.comm.rank(), h.comm.size());
      Work work = call(h.comm, coll);
      if (work.complete()) return true;
      if constexpr (kStream) throw Error(HVD_E_INTERNAL, "a STREAM communicator must not return a request");
      *out = handle_of(std::move(work), h.comm);
      return false;
    });
  }

  static hvd_rc req_test(hvd_req r, hvd_error* error) noexcept {
    return run(device_of(r), error, [&] { return request_of(r).test() ? HVD_OK : HVD_INPROGRESS; });
  }
  static hvd_rc req_wait(hvd_req r, int64_t deadline_ns, hvd_error* error) noexcept {
    return run(device_of(r), error, [&] { return request_of(r).wait(deadline_ns) ? HVD_OK : HVD_INPROGRESS; });
  }
  static hvd_rc req_free(hvd_req r) noexcept {
    return run(device_of(r), nullptr, [&] {
      request_of(r).free_request();
      if constexpr (kHasDevice) delete reinterpret_cast<Pending*>(r);
      return hvd_rc{HVD_OK};
    });
  }
};

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_TABLES_HPP_
