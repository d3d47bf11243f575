// The table's slots, and the pool of tables. See py_backend_table.h.
#include "engine/bind/py_backend_table.h"

#include <algorithm>
#include <utility>

#include "engine/types/collectives.h"

namespace hvd::bind {

namespace {

using CommRef = std::shared_ptr<PyComm>;
struct Handle {  // what an hvd_comm points to
  CommRef comm;
};
struct Pending {  // what an hvd_req points to
  CommRef comm;
  std::shared_ptr<PyCall> call;
};
PyComm& comm_of(hvd_comm c) { return *reinterpret_cast<Handle*>(c)->comm; }
Pending& pending_of(hvd_req r) { return *reinterpret_cast<Pending*>(r); }

}  // namespace

int32_t PySpec::place(int32_t coll, int32_t dtype, int32_t op) {
  if (coll == HVD_BARRIER) dtype = 0;
  if (!types::has_reduction(coll)) op = 0;
  if (coll < 0 || coll >= HVD_COLL_COUNT || dtype < 0 || dtype >= HVD_DTYPE_COUNT || op < 0 || op >= HVD_REDOP_COUNT)
    return -1;
  return (coll * HVD_DTYPE_COUNT + dtype) * HVD_REDOP_COUNT + op;
}

bool PySpec::serves(int32_t coll, int32_t dtype, int32_t op) const {
  const int32_t i = place(coll, dtype, op);
  return i >= 0 && served[static_cast<size_t>(i)];
}

void PyTable::log(int32_t level, const std::string& text) const {
  if (host_ != nullptr) host_->log(level, "", 0, text.c_str());
}

void PyTable::push(Task task, CommRef comm) {
  std::lock_guard lock(tasks_->mutex);
  tasks_->queue.emplace_back(task, std::move(comm));
  tasks_->changed.notify_one();
}

std::pair<PyTable::Task, CommRef> PyTable::next_task() {
  Tasks& tasks = *tasks_;
  std::unique_lock lock(tasks.mutex);
  tasks.changed.wait(lock, [&] { return !tasks.queue.empty(); });
  auto task = std::move(tasks.queue.front());
  tasks.queue.pop_front();
  return task;
}

// A thread that the child does not have may have locked the old one, which is left as it is.
void PyTable::reset_after_fork() { tasks_ = new Tasks; }

hvd_rc PyTable::enter(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
  return guarded(error, [&] {
    if (host == nullptr || host->hdr.struct_size < detail::kFirstSize<hvd_host_api>)
      throw Error(HVD_E_ABI, "the host's table is NULL or shorter than ABI 1.0 has it");
    host_ = host;
    *out = &api_;
    return HVD_OK;
  });
}

hvd_rc PyTable::create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) {
  return guarded(error, [&] {
    *out = nullptr;
    auto comm = std::make_shared<PyComm>(*this, complete(args, "hvd_comm_args"));
    push(Task::kOpen, comm);
    const hvd_rc rc = comm->await_open(error);
    if (rc == HVD_OK) *out = reinterpret_cast<hvd_comm>(new Handle{std::move(comm)});
    return rc;
  });
}

hvd_rc PyTable::query(const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) const {
  return guarded(error, [&] {
    const hvd_coll_args a = complete(args, "hvd_coll_args");
    hvd_coll_caps caps = {};
    if (spec_.serves(a.coll, a.dtype, a.op)) {
      caps.support = HVD_NATIVE;
      caps.score = 1;
      caps.max_count = spec_.max_count;
    }
    give(out, caps);
    return HVD_OK;
  });
}

namespace {

hvd_rc destroy(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    comm_of(c).close();
    delete reinterpret_cast<Handle*>(c);
    return HVD_OK;
  });
}

hvd_rc abort(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] {
    const CommRef comm = reinterpret_cast<Handle*>(c)->comm;
    if (comm->abort()) comm->table().push(PyTable::Task::kAbort, comm);
    return HVD_OK;
  });
}

hvd_rc async_error(hvd_comm c, hvd_error* error) noexcept {
  return guarded(error, [&] { return comm_of(c).async_error(error); });
}

hvd_rc collective(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) noexcept {
  return guarded(error, [&] {
    *out = nullptr;
    const CommRef& comm = reinterpret_cast<Handle*>(c)->comm;
    auto pending = std::make_unique<Pending>(Pending{comm, nullptr});
    pending->call = comm->start(complete(args, "hvd_coll_args"));
    *out = reinterpret_cast<hvd_req>(pending.release());
    return HVD_INPROGRESS;
  });
}

hvd_rc req_test(hvd_req r, hvd_error* error) noexcept {
  return guarded(error, [&] { return pending_of(r).comm->result(*pending_of(r).call, error); });
}

hvd_rc req_wait(hvd_req r, int64_t deadline_ns, hvd_error* error) noexcept {
  return guarded(error, [&] { return pending_of(r).comm->wait(*pending_of(r).call, deadline_ns, error); });
}

hvd_rc req_free(hvd_req r) noexcept {
  delete &pending_of(r);
  return HVD_OK;
}

// ------------------------------------------------------------------------------------------------------ the pool

// Entry, create and query have no argument that names the backend, so that each table has its own functions.
constexpr size_t kPool = 16;

std::array<PyTable*, kPool>& pool() {
  static std::array<PyTable*, kPool> all = {};
  return all;
}

}  // namespace

void PyTable::fill(hvd_backend_entry_fn entry, decltype(hvd_comm_api::create) create_slot,
                   decltype(hvd_comm_api::query) query_slot) {
  entry_address_ = reinterpret_cast<uintptr_t>(entry);
  comm_api_.hdr = {sizeof comm_api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  comm_api_.device_types = "cpu";
  comm_api_.caps = spec_.caps | HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_ABORT;
  comm_api_.create = create_slot;
  comm_api_.destroy = destroy;
  comm_api_.abort = bind::abort;
  comm_api_.async_error = bind::async_error;
  comm_api_.query = query_slot;
  comm_api_.collective = collective;
  comm_api_.req_test = req_test;
  comm_api_.req_wait = req_wait;
  comm_api_.req_free = req_free;
  tag_ = spec_.name;
  for (char& c : tag_)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  api_.hdr = {sizeof api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  api_.name = spec_.name.c_str();
  api_.tag = tag_.c_str();
  api_.version = spec_.version.c_str();
  api_.vendor_lib = "";
  api_.comm = &comm_api_;
  for (const auto& o : spec_.options) {
    options_.push_back({{sizeof(hvd_option), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
                        o[0].c_str(),
                        o[1].c_str(),
                        o[2].c_str(),
                        o[3].c_str(),
                        o[4].c_str()});
  }
  api_.options = options_.data();
  api_.option_count = options_.size();
}

template <size_t N>
struct PyTable::Thunks {
  static hvd_rc entry(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) noexcept {
    return pool()[N]->enter(host, out, error);
  }
  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) noexcept {
    return pool()[N]->create(args, out, error);
  }
  static hvd_rc query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* out, hvd_error* error) noexcept {
    return pool()[N]->query(args, out, error);
  }
};

namespace {

template <size_t... N>
void fill_nth(size_t n, std::index_sequence<N...>, auto&& fill) {
  ((n == N ? fill(std::integral_constant<size_t, N>{}) : void()), ...);
}

}  // namespace

PyTable& PyTable::claim(PySpec spec) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const auto place = std::find(pool().begin(), pool().end(), nullptr);
  if (place == pool().end())
    throw Error(HVD_E_UNSUPPORTED, "a process can register " + std::to_string(kPool) +
                                       " backends in Python, and has done so; register each class once");
  auto* table = *place = new PyTable(std::move(spec));
  fill_nth(static_cast<size_t>(place - pool().begin()), std::make_index_sequence<kPool>(), [&](auto n) {
    using T = Thunks<decltype(n)::value>;
    table->fill(T::entry, T::create, T::query);
  });
  return *table;
}

}  // namespace hvd::bind
