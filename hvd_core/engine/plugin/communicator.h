// One communicator of a backend, as the engine's data plane uses it: one collective, or one group of them, in flight
// at a time.
//
// start, test, wait and finalize: one thread at a time, whichever it is. abort and async_error: any thread, any time
// between construction and the start of destruction; whoever calls them from outside keeps the object alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/plugin/errors.h"
#include "hvd/backend_abi.h"

namespace hvd::plugin {

class Backend;

// One collective, in the words of hvd_coll_args. `in`, `out` and `counts` have one element per buffer (none for a
// barrier); in_counts and out_counts are empty, or hold size() elements per buffer. root and peer are ranks within the
// communicator. The vectors may die as soon as start() returns; the memory they point to may not.
struct Collective {
  int32_t coll = 0, dtype = 0, op = 0, root = 0, peer = 0;
  std::vector<hvd_buf> in, out;
  std::vector<uint64_t> counts, in_counts, out_counts;
  double prescale = 1.0, postscale = 1.0;
  int64_t deadline_ns = 0;
  uint64_t seq = 0;
  hvd_stream stream = nullptr;

  // As new, but the lists keep their memory.
  void reset();
  // Pointers into this object: valid while it lives unchanged.
  hvd_coll_args args() const;
};

class Communicator {
 public:
  // `handle` is a communicator that is ready for use; made by Backend::create_comm.
  Communicator(std::shared_ptr<Backend> backend, hvd_comm handle, int32_t rank, int32_t size);
  // Aborts what is still in flight, then destroys. Local and bounded in time, throws nothing.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // True: complete (REQUEST) or enqueued on the stream (STREAM). False: in flight, ask test() or wait().
  // All three throw BackendError when the operation fails; it is then no longer in flight (one exception: after
  // abort() with a backend that has no abort of its own, the request stays until destruction).
  bool start(const Collective& collective);
  // The same for several collectives between the backend's group_begin and group_end; it must have HVD_CAP_GROUP_SAME
  // (then all are of one kind) or HVD_CAP_GROUP_MIXED.
  bool start_group(const std::vector<Collective>& members);
  // True: complete, or nothing in flight. Makes progress, never sleeps.
  bool test();
  // Sleeps until completion (true) or until this wait's deadline, with the operation still in flight (false).
  bool wait(int64_t deadline_ns);
  bool in_flight() const { return request_ != nullptr || !group_.empty(); }

  // Makes pending and later calls fail with ABORTED, on all ranks where the backend can; never blocks, idempotent.
  void abort() noexcept;
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  // HVD_OK, HVD_E_UNSUPPORTED where the backend cannot tell, or the failure that has happened since; *text says what.
  hvd_rc async_error(std::string* text = nullptr) noexcept;
  // A collective goodbye; does nothing where the backend has none. Throws BackendError.
  void finalize(int64_t deadline_ns);

  // How this communicator would serve a collective; see Backend::query.
  hvd_coll_caps query(const Collective& collective, std::string* why = nullptr) const;

  // Tells the backend of memory that collectives will often use; null where it makes nothing of that. Throws
  // BackendError.
  void* register_memory(const hvd_buf& buf);
  // The memory is no longer in use by any of them.
  void deregister_memory(void* registered) noexcept;

  uint64_t caps() const;
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  const Backend& backend() const { return *backend_; }
  hvd_comm handle() const { return handle_; }

 private:
  bool settle(const char* what, hvd_rc rc, const hvd_error& error);
  void free_request() noexcept;
  void free_group() noexcept;
  void check_alive(const char* what) const;
  void check(const Collective& c) const;
  hvd_rc submit(const Collective& c, hvd_req* request, hvd_error* error);
  bool settle_group(int64_t deadline_ns);

  std::shared_ptr<Backend> backend_;
  const hvd_comm_api* api_;
  hvd_comm handle_;
  const int32_t rank_, size_;
  hvd_req request_ = nullptr;
  int32_t coll_ = 0;            // of the request, for messages
  std::vector<hvd_req> group_;  // requests of a group; null: complete
  std::atomic<bool> aborted_{false};
};

}  // namespace hvd::plugin
