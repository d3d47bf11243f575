// Which methods a communicator class has: detail::has_NAME<T>() for each, which is an error of the compiler for a
// method of another signature. Included by backend_tables.hpp.
#ifndef HVD_BACKEND_METHODS_HPP_
#define HVD_BACKEND_METHODS_HPP_

#include "hvd/backend.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {
namespace detail {

HVD_METHOD(allreduce, WorkOrVoid, "hvd::Work allreduce(const hvd::Coll&)",
           std::declval<T&>().allreduce(std::declval<const Coll&>()))
HVD_METHOD(reduce, WorkOrVoid, "hvd::Work reduce(const hvd::Coll&)",
           std::declval<T&>().reduce(std::declval<const Coll&>()))
HVD_METHOD(broadcast, WorkOrVoid, "hvd::Work broadcast(const hvd::Coll&)",
           std::declval<T&>().broadcast(std::declval<const Coll&>()))
HVD_METHOD(allgather, WorkOrVoid, "hvd::Work allgather(const hvd::Coll&)",
           std::declval<T&>().allgather(std::declval<const Coll&>()))
HVD_METHOD(reducescatter, WorkOrVoid, "hvd::Work reducescatter(const hvd::Coll&)",
           std::declval<T&>().reducescatter(std::declval<const Coll&>()))
HVD_METHOD(alltoall, WorkOrVoid, "hvd::Work alltoall(const hvd::Coll&)",
           std::declval<T&>().alltoall(std::declval<const Coll&>()))
HVD_METHOD(send, WorkOrVoid, "hvd::Work send(const hvd::Coll&)", std::declval<T&>().send(std::declval<const Coll&>()))
HVD_METHOD(recv, WorkOrVoid, "hvd::Work recv(const hvd::Coll&)", std::declval<T&>().recv(std::declval<const Coll&>()))
HVD_METHOD(barrier, WorkOrVoid, "hvd::Work barrier(const hvd::Coll&)",
           std::declval<T&>().barrier(std::declval<const Coll&>()))
HVD_METHOD(abort, void, "void abort()", std::declval<T&>().abort())
HVD_METHOD(created, bool, "bool created()", std::declval<T&>().created())
HVD_METHOD(finalize, void, "void finalize(int64_t deadline_ns)", std::declval<T&>().finalize(int64_t{}))
HVD_METHOD(async_error, void, "void async_error()", std::declval<T&>().async_error())
HVD_METHOD(group_begin, void, "void group_begin()", std::declval<T&>().group_begin())
HVD_METHOD(group_end, void, "void group_end()", std::declval<T&>().group_end())
HVD_METHOD(mem_register, void*, "void* mem_register(const hvd_buf&)", std::declval<T&>().mem_register(hvd_buf{}))
HVD_METHOD(mem_deregister, void, "void mem_deregister(void*)",
           std::declval<T&>().mem_deregister(static_cast<void*>(nullptr)))
HVD_METHOD(window_create, hvd_window, "hvd_window window_create(const hvd::WindowInit&, hvd_buf* part)",
           std::declval<T&>().window_create(std::declval<const WindowInit&>(), static_cast<hvd_buf*>(nullptr)))
HVD_METHOD(window_destroy, void, "void window_destroy(hvd_window, int64_t deadline_ns)",
           std::declval<T&>().window_destroy(hvd_window{}, int64_t{}))
HVD_METHOD(window_free, void, "static void window_free(hvd_window)", T::window_free(hvd_window{}))
HVD_METHOD(id_bytes, uint64_t, "static uint64_t id_bytes()", T::id_bytes())
HVD_METHOD(id_create, void, "static void id_create(void*)", T::id_create(static_cast<void*>(nullptr)))
HVD_METHOD(query, hvd_coll_caps, "static hvd_coll_caps query(const hvd::Coll&)", T::query(std::declval<const Coll&>()))
HVD_METHOD(query_made, hvd_coll_caps, "hvd_coll_caps query_made(const hvd::Coll&) const",
           std::declval<const T&>().query_made(std::declval<const Coll&>()))
HVD_METHOD(why_unserved, Error, "static hvd::Error why_unserved(const hvd::Coll&)",
           T::why_unserved(std::declval<const Coll&>()))

}  // namespace detail
}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_METHODS_HPP_
