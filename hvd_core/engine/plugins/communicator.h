// One communicator of a backend. It has one collective, or one group of collectives, in flight at a time.
//
// start, test, wait and finalize: one thread at a time, any thread. abort and async_error: any thread, at any time
// between construction and the start of destruction; their caller keeps the object alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/plugins/backend_call.h"
#include "engine/plugins/errors.h"
#include "engine/plugins/host_api.h"
#include "engine/plugins/window.h"
#include "hvd/backend_abi.h"

namespace hvd::plugins {

class Backend;

// What a collective does, apart from its buffers. The fields have the meaning of hvd_coll_args; root and peer are ranks
// within the communicator.
struct CollectiveSettings {
  int32_t coll = 0, dtype = 0, op = 0, root = 0, peer = 0;
  double prescale = 1.0, postscale = 1.0;
  int64_t deadline_ns = HVD_NO_DEADLINE;
  uint64_t seq = 0;
  hvd_stream stream = nullptr;
  // Collectives of other communicators are in flight at the same time, so a call must not wait for other ranks.
  bool overlapped = false;
  // So many collectives of one schedule share the limit of scratch memory.
  uint32_t siblings = 1;
};

// One collective. `in`, `out` and `counts` have one element per buffer (none for a barrier); in_counts and out_counts
// are empty, or hold size() elements per buffer. The vectors may die as soon as start() returns; the memory of the
// buffers must stay.
struct Collective : CollectiveSettings {
  std::vector<hvd_buf> in, out;
  std::vector<uint64_t> counts, in_counts, out_counts;

  Collective() = default;
  // Without buffers.
  explicit Collective(const CollectiveSettings& settings) : CollectiveSettings(settings) {}
  // Takes the settings and forgets the buffers; the lists keep their capacity.
  void reset(const CollectiveSettings& settings = {});

  const CollectiveSettings& settings() const { return *this; }
  // Whether the sizes are given by rank.
  bool varying() const { return !in_counts.empty() || !out_counts.empty(); }
  // The result points into this object: valid until it changes.
  hvd_coll_args args() const;
};

class Communicator {
 public:
  // `handle` is a communicator that is ready for use. Backend::create_comm calls this.
  // `driver`: where its operations are recorded; null: nowhere.
  Communicator(std::shared_ptr<Backend> backend, hvd_comm handle, int32_t rank, int32_t size,
               std::shared_ptr<DriverRecord> driver = nullptr);
  // Aborts the collective in flight, then destroys the communicator. Local and bounded in time; throws nothing.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // True: complete (REQUEST) or enqueued on the stream (STREAM). False: in flight, ask test() or wait().
  // start(), test() and wait() throw BackendError if the operation fails. It is no longer in flight then, with one
  // exception: after abort() of a backend without an abort slot, the request stays until destruction.
  bool start(const Collective& collective);
  // The same for several collectives between the backend's group_begin and group_end. The backend must have
  // HVD_CAP_GROUP_SAME (then all members are of one kind) or HVD_CAP_GROUP_MIXED.
  bool start_group(const std::vector<Collective>& members);
  // True: complete, or nothing in flight. Makes progress, never sleeps.
  bool test();
  // Sleeps until completion (true) or until this wait's deadline, with the operation still in flight (false).
  bool wait(int64_t deadline_ns);
  bool in_flight() const { return request_ != nullptr || !group_.empty(); }

  // Makes pending and later calls fail with ABORTED, on all ranks if the backend can do that. Idempotent.
  // Never blocks, unless the backend is wrong.
  void abort() noexcept;
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  // HVD_OK, HVD_E_UNSUPPORTED if the backend cannot tell, or the code of a failure since creation, described by *text.
  hvd_rc async_error(std::string* text = nullptr) noexcept;
  // Finalizes the communicator; all members call it. Does nothing if the backend has no finalize slot. Throws
  // BackendError.
  void finalize(int64_t deadline_ns);

  // How this communicator would serve a collective; see Backend::query.
  hvd_coll_caps query(const Collective& collective, std::string* why = nullptr) const;

  // Registers memory that collectives will often use. Null if the backend does not register memory. Throws
  // BackendError.
  void* register_memory(const hvd_buf& buf);
  // No collective uses the memory any more.
  void deregister_memory(void* registered) noexcept;

  // Whether collectives use windows; for one rank they would not. All members create and destroy the same windows, in
  // the same order among their collectives, while none is in flight. Both wait for the members until the deadline, and
  // throw BackendError. A window that some members could not have is destroyed with a deadline in the past.
  bool has_windows() const;
  WindowRef create_window(const std::string& key, Store& store, uint64_t bytes, int64_t deadline_ns);
  void destroy_window(Window& window, int64_t deadline_ns);

  uint64_t caps() const;
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  const Backend& backend() const { return *backend_; }
  const std::shared_ptr<Backend>& shared_backend() const { return backend_; }
  hvd_comm handle() const { return handle_; }

 private:
  bool settle(const char* what, hvd_rc rc, const hvd_error& error);
  void free(hvd_req request) noexcept;
  void free_request() noexcept;
  void free_group() noexcept;
  void check_alive(const char* what) const;
  void check(const Collective& c) const;
  hvd_rc submit(const Collective& c, hvd_req* request, hvd_error* error);
  hvd_rc progress(hvd_req request, Call call, int64_t deadline_ns, hvd_error* error);
  bool progress_all(Call call, int64_t deadline_ns);
  bool settle_group(Call call, int64_t deadline_ns);
  template <class F>
  void call_for_window(Call call, F&& table_call);

  void begin_operation(std::span<const Collective> members) noexcept;
  void end_operation() noexcept;

  std::shared_ptr<Backend> backend_;
  const std::shared_ptr<DriverRecord> driver_;
  const hvd_comm_api* api_;
  hvd_comm handle_;
  const int32_t rank_, size_;
  hvd_req request_ = nullptr;
  int32_t coll_ = 0;            // the collective in flight, for messages
  std::vector<hvd_req> group_;  // requests of a group; null: complete
  int recorded_ = -1;           // the place of the operation in flight in the record
  std::atomic<bool> aborted_{false};
};

}  // namespace hvd::plugins
