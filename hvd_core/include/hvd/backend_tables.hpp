// The second half of backend.hpp: tables and thunks made from a class by detection. Included by backend.hpp only.
//
// Each thunk is noexcept, completes the caller's struct, calls one method, and fills the caller's hvd_error.
#ifndef HVD_BACKEND_TABLES_HPP_
#define HVD_BACKEND_TABLES_HPP_

#include "hvd/backend.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {
namespace detail {

#define HVD_DETECT(name, expression) \
  template <class T, class = void>   \
  struct name : std::false_type {};  \
  template <class T>                 \
  struct name<T, std::void_t<decltype(expression)>> : std::true_type {};

HVD_DETECT(HasAllreduce, std::declval<T&>().allreduce(std::declval<const Coll&>()))
HVD_DETECT(HasReduce, std::declval<T&>().reduce(std::declval<const Coll&>()))
HVD_DETECT(HasBroadcast, std::declval<T&>().broadcast(std::declval<const Coll&>()))
HVD_DETECT(HasAllgather, std::declval<T&>().allgather(std::declval<const Coll&>()))
HVD_DETECT(HasReducescatter, std::declval<T&>().reducescatter(std::declval<const Coll&>()))
HVD_DETECT(HasAlltoall, std::declval<T&>().alltoall(std::declval<const Coll&>()))
HVD_DETECT(HasSend, std::declval<T&>().send(std::declval<const Coll&>()))
HVD_DETECT(HasRecv, std::declval<T&>().recv(std::declval<const Coll&>()))
HVD_DETECT(HasBarrier, std::declval<T&>().barrier(std::declval<const Coll&>()))
HVD_DETECT(HasAbort, std::declval<T&>().abort())
HVD_DETECT(HasCreated, std::declval<T&>().created())
HVD_DETECT(HasFinalize, std::declval<T&>().finalize(int64_t{}))
HVD_DETECT(HasAsyncError, std::declval<T&>().async_error())
HVD_DETECT(HasIdBytes, T::id_bytes())
HVD_DETECT(HasQuery, T::query(std::declval<const Coll&>()))
HVD_DETECT(HasDtypes, T::dtypes)
HVD_DETECT(HasReductions, T::reductions)
HVD_DETECT(HasDeviceTypes, T::device_types)
HVD_DETECT(HasTag, T::tag)
HVD_DETECT(HasVersion, T::version)
HVD_DETECT(HasVendorLib, T::vendor_lib())
HVD_DETECT(HasOptions, T::options[0])
HVD_DETECT(HasTable, T::table())
#undef HVD_DETECT

constexpr bool reduces(int32_t coll) {
  return coll == HVD_ALLREDUCE || coll == HVD_REDUCE || coll == HVD_REDUCESCATTER;
}

}  // namespace detail

template <class T>
class CommTable {
 public:
  static const hvd_comm_api* table() {
    static const hvd_comm_api api = make();
    return &api;
  }

 private:
  // The object behind an hvd_comm.
  struct Holder {
    explicit Holder(const CommInit& init) : comm(init) {}
    T comm;
    std::atomic<bool> aborted{false};
  };

  static Holder* holder(hvd_comm c) { return reinterpret_cast<Holder*>(c); }
  static Request* request(hvd_req r) { return reinterpret_cast<Request*>(r); }

  static hvd_comm_api make() {
    hvd_comm_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    t.device_types = "";
    if constexpr (detail::HasDeviceTypes<T>::value) t.device_types = T::device_types;
    t.caps = T::caps | (detail::HasAbort<T>::value ? uint64_t{HVD_CAP_ABORT} : 0);
    if constexpr (detail::HasIdBytes<T>::value) {
      t.id_bytes = &id_bytes;
      t.id_create = &id_create;
    }
    t.create = &create;
    if constexpr (detail::HasCreated<T>::value) t.create_test = &create_test;
    if constexpr (detail::HasFinalize<T>::value) t.finalize = &finalize;
    t.destroy = &destroy;
    if constexpr (detail::HasAbort<T>::value) t.abort = &abort;
    if constexpr (detail::HasAsyncError<T>::value) t.async_error = &async_error;
    t.query = &query;
    t.collective = &collective;
    if constexpr ((T::caps & HVD_CAP_REQUEST) != 0) {
      t.req_test = &req_test;
      t.req_wait = &req_wait;
      t.req_free = &req_free;
    }
    return t;
  }

  static uint64_t id_bytes() noexcept {
    if constexpr (detail::HasIdBytes<T>::value) return T::id_bytes();
    return 0;
  }

  static hvd_rc id_create(void* id, hvd_error* error) noexcept {
    return guarded(error, [&] {
      if constexpr (detail::HasIdBytes<T>::value) T::id_create(id);
      return HVD_OK;
    });
  }

  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      *out = nullptr;
      auto made = std::make_unique<Holder>(CommInit(complete(args, "hvd_comm_args")));
      *out = reinterpret_cast<hvd_comm>(made.release());
      return detail::HasCreated<T>::value ? HVD_INPROGRESS : HVD_OK;
    });
  }

  static hvd_rc create_test(hvd_comm c, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if constexpr (detail::HasCreated<T>::value) {
        if (!holder(c)->comm.created()) return HVD_INPROGRESS;
      }
      return HVD_OK;
    });
  }

  static hvd_rc finalize(hvd_comm c, int64_t deadline_ns, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if constexpr (detail::HasFinalize<T>::value) holder(c)->comm.finalize(deadline_ns);
      return HVD_OK;
    });
  }

  static hvd_rc destroy(hvd_comm c, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      delete holder(c);
      return HVD_OK;
    });
  }

  static hvd_rc abort(hvd_comm c, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if (holder(c)->aborted.exchange(true)) return HVD_OK;
      if constexpr (detail::HasAbort<T>::value) holder(c)->comm.abort();
      return HVD_OK;
    });
  }

  static hvd_rc async_error(hvd_comm c, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if constexpr (detail::HasAsyncError<T>::value) holder(c)->comm.async_error();
      return HVD_OK;
    });
  }

  // Has the class a method for this collective?
  static bool has(int32_t coll) {
    switch (coll) {
      case HVD_ALLREDUCE:
        return detail::HasAllreduce<T>::value;
      case HVD_REDUCE:
        return detail::HasReduce<T>::value;
      case HVD_BROADCAST:
        return detail::HasBroadcast<T>::value;
      case HVD_ALLGATHER:
        return detail::HasAllgather<T>::value;
      case HVD_REDUCESCATTER:
        return detail::HasReducescatter<T>::value;
      case HVD_ALLTOALL:
        return detail::HasAlltoall<T>::value;
      case HVD_SEND:
        return detail::HasSend<T>::value;
      case HVD_RECV:
        return detail::HasRecv<T>::value;
      case HVD_BARRIER:
        return detail::HasBarrier<T>::value;
      default:
        return false;
    }
  }

  static bool in_sets(const Coll& c) {
    if (c.kind() == HVD_BARRIER) return true;
    if (c.dtype() < 0 || c.dtype() >= HVD_DTYPE_COUNT) return false;
    if constexpr (detail::HasDtypes<T>::value) {
      if (!((uint64_t{T::dtypes} >> c.dtype()) & 1)) return false;
    }
    if (!detail::reduces(c.kind())) return true;
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
    if constexpr (detail::HasQuery<T>::value) return T::query(c);
    caps.support = HVD_NATIVE;
    caps.score = 50;
    return caps;
  }

  static hvd_rc query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      const hvd_coll_args mine = complete(args, "hvd_coll_args");
      give(out, answer(Coll(mine)));
      return HVD_OK;
    });
  }

  static Work call(T& comm, const Coll& c) {
    switch (c.kind()) {
#define HVD_CALL(number, trait, method)                           \
  case number:                                                    \
    if constexpr (detail::trait<T>::value) return comm.method(c); \
    break;
      HVD_CALL(HVD_ALLREDUCE, HasAllreduce, allreduce)
      HVD_CALL(HVD_REDUCE, HasReduce, reduce)
      HVD_CALL(HVD_BROADCAST, HasBroadcast, broadcast)
      HVD_CALL(HVD_ALLGATHER, HasAllgather, allgather)
      HVD_CALL(HVD_REDUCESCATTER, HasReducescatter, reducescatter)
      HVD_CALL(HVD_ALLTOALL, HasAlltoall, alltoall)
      HVD_CALL(HVD_SEND, HasSend, send)
      HVD_CALL(HVD_RECV, HasRecv, recv)
      HVD_CALL(HVD_BARRIER, HasBarrier, barrier)
#undef HVD_CALL
      default:
        break;
    }
    throw Error(HVD_E_UNSUPPORTED, "this backend has no such collective");
  }

  static hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc {
      if (out != nullptr) *out = nullptr;
      const hvd_coll_args mine = complete(args, "hvd_coll_args");
      const Coll coll(mine);
      if (holder(c)->aborted.load()) throw Error(HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD);
      if (answer(coll).support == HVD_UNSERVED) {
        throw Error(HVD_E_UNSUPPORTED, "collective " + std::to_string(coll.kind()) + " with dtype " +
                                           std::to_string(coll.dtype()) + " and reduction " +
                                           std::to_string(coll.op()) + " is not served; query says so too");
      }
      if (coll.buffers() > 1 && !(T::caps & HVD_CAP_VECTORED)) {
        throw Error(HVD_E_INVALID, "more than one buffer for a communicator without HVD_CAP_VECTORED");
      }
      Request* pending = call(holder(c)->comm, coll).release();
      if (pending == nullptr) return HVD_OK;
      *out = reinterpret_cast<hvd_req>(pending);
      return HVD_INPROGRESS;
    });
  }

  static hvd_rc req_test(hvd_req r, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc { return request(r)->test() ? HVD_OK : HVD_INPROGRESS; });
  }
  static hvd_rc req_wait(hvd_req r, int64_t deadline_ns, hvd_error* error) noexcept {
    return guarded(error, [&]() -> hvd_rc { return request(r)->wait(deadline_ns) ? HVD_OK : HVD_INPROGRESS; });
  }
  static hvd_rc req_free(hvd_req r) noexcept {
    return guarded(nullptr, [&]() -> hvd_rc {
      delete request(r);
      return HVD_OK;
    });
  }
};

// A device class says `static const hvd_device_api* table()`; NoDevice has none.
template <class Device, class T>
const hvd_backend_api* backend_table(const char* name) {
  static std::string tag;
  static const hvd_backend_api api = [&] {
    hvd_backend_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    for (const char* p = name; *p; ++p) tag += *p >= 'a' && *p <= 'z' ? static_cast<char>(*p - 'a' + 'A') : *p;
    t.name = name;
    t.tag = tag.c_str();
    t.version = "";
    t.vendor_lib = "";
    if constexpr (detail::HasTag<T>::value) t.tag = T::tag;
    if constexpr (detail::HasVersion<T>::value) t.version = T::version;
    if constexpr (detail::HasVendorLib<T>::value) t.vendor_lib = T::vendor_lib();
    if constexpr (detail::HasTable<Device>::value) t.device = Device::table();
    t.comm = CommTable<T>::table();
    if constexpr (detail::HasOptions<T>::value) {
      t.options = T::options;
      t.option_count = sizeof(T::options) / sizeof(T::options[0]);
    }
    return t;
  }();
  return &api;
}

}  // namespace hvd
#pragma GCC visibility pop

#define HVD_TEXT(x) HVD_TEXT_OF(x)
#define HVD_TEXT_OF(x) #x

// Defines the one exported symbol. NAME without quotes; DEVICE a device class or hvd::NoDevice; COMM an hvd::Comm.
#define HVD_BACKEND(NAME, DEVICE, COMM)                                                         \
  extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(                \
      const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {                \
    return hvd::guarded(error, [&]() -> hvd_rc {                                                \
      if (host == nullptr || host->hdr.struct_size < hvd::detail::kFirstSize<hvd_host_api>) {   \
        throw hvd::Error(HVD_E_ABI, "the host's table is NULL or shorter than ABI 1.0 has it"); \
      }                                                                                         \
      hvd::host = host;                                                                         \
      *out = hvd::backend_table<DEVICE, COMM>(HVD_TEXT(NAME));                                  \
      return HVD_OK;                                                                            \
    });                                                                                         \
  }

#endif  // HVD_BACKEND_TABLES_HPP_
