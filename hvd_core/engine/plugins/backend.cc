// Loaded backends and the creation of their communicators. See backend.h.
#include "engine/plugins/backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/clock.h"
#include "engine/plugins/backend_call.h"
#include "engine/plugins/host_api.h"
#include "engine/plugins/loader.h"

namespace hvd::plugins {
namespace {

// The largest id that is accepted. An id comes from a vendor's library; the largest known one has 4 KiB.
constexpr uint64_t kMaxIdBytes = 1u << 20;

constexpr uint64_t kMaxFactBytes = 1u << 20;
constexpr int64_t kDefaultCreateNs = 60'000'000'000;

std::string text_or_empty(const char* text) { return text ? text : ""; }

// The loaded backends of the process. A library is never closed, so they outlive any engine.
struct Loaded {
  std::mutex mutex;
  std::map<std::pair<hvd_backend_entry_fn, std::string>, std::shared_ptr<Backend>> by_entry;
};

// "entry:0x7f..." is the address of an entry function in this process, anything else the path of a library.
hvd_backend_entry_fn open_entry(const std::string& path, const std::string& name) {
  static const std::string kPrefix = "entry:";
  if (!path.starts_with(kPrefix)) return open_library(path, name);
  return reinterpret_cast<hvd_backend_entry_fn>(std::stoull(path.substr(kPrefix.size()), nullptr, 16));
}

// The arguments of create and split. The result points into all arguments of this function.
hvd_comm_args comm_args(const std::string& key, StoreScope& scope, const std::vector<int32_t>& ranks,
                        const std::vector<int32_t>& hosts, int32_t me, const OpenDevice& device) {
  hvd_comm_args args;
  std::memset(&args, 0, sizeof(args));
  args.hdr = {sizeof(args), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  args.key = key.c_str();
  args.store = &scope;
  args.ranks = ranks.data();
  args.hosts = hosts.data();
  args.rank = me;
  args.size = static_cast<int32_t>(ranks.size());
  args.device = device.handle;
  args.device_api = device.api;
  args.deadline_ns = scope.deadline_ns;
  return args;
}

Loaded& loaded() {
  static auto* all = new Loaded;
  return *all;
}

}  // namespace

std::shared_ptr<Backend> Backend::load_library(const std::string& path, const std::string& expected_name) {
  return load_entry(open_entry(path, expected_name), expected_name, path);
}

std::shared_ptr<Backend> Backend::load_entry(hvd_backend_entry_fn entry, const std::string& expected_name,
                                             const std::string& origin) {
  std::lock_guard<std::mutex> lock(loaded().mutex);
  auto& backend = loaded().by_entry[{entry, expected_name}];
  if (!backend) backend = std::make_shared<Backend>(handshake(entry, expected_name, origin), origin);
  return backend;
}

Backend::Backend(const hvd_backend_api* api, std::string origin)
    : api_(api),
      origin_(std::move(origin)),
      name_(text_or_empty(api->name)),
      tag_(text_or_empty(api->tag)),
      version_(text_or_empty(api->version)),
      vendor_lib_(text_or_empty(api->vendor_lib)) {
  for (uint64_t i = 0; i < api->option_count; ++i) {
    // The list's stride is its first element's size: a newer backend's elements are longer than ours.
    const auto* o = reinterpret_cast<const hvd_option*>(reinterpret_cast<const char*>(api->options) +
                                                        i * api->options[0].hdr.struct_size);
    options_.push_back({text_or_empty(o->name), text_or_empty(o->type), text_or_empty(o->fallback),
                        text_or_empty(o->range), text_or_empty(o->doc)});
  }
}

std::string Backend::device_type() const { return has_device() ? api_->device->device_type : ""; }

bool Backend::serves_device_type(const std::string& type) const {
  if (!has_comm()) return false;
  if (type == "cpu" && (comm_caps() & HVD_CAP_MEM_HOST)) return true;
  if (!(comm_caps() & HVD_CAP_MEM_DEVICE)) return false;
  const std::string types = "," + text_or_empty(api_->comm->device_types) + ",";
  return types.find("," + type + ",") != std::string::npos;
}

std::optional<std::string> Backend::fact(const std::string& key) const {
  if (!HVD_HAS(api_, hvd_backend_api, info)) return std::nullopt;
  std::string text(256, '\0');
  hvd_error error = empty_error();
  for (;;) {
    uint64_t n = text.size();
    const hvd_rc rc =
        answer_of(Call::backend_info, name_, &error, [&] { return api_->info(key.c_str(), text.data(), &n, &error); });
    if (rc == HVD_OK) return clean_text(text.data(), text.size());
    if (rc == HVD_E_UNAVAILABLE || rc == HVD_E_UNSUPPORTED) return std::nullopt;
    if (rc != HVD_E_INVALID || n <= text.size() || n > kMaxFactBytes) throw_backend_error(name_, "info", rc, error);
    text.assign(n, '\0');
  }
}

hvd_coll_caps Backend::query(hvd_comm comm, const hvd_coll_args& args, std::string* why) const {
  hvd_coll_args in = args;
  in.hdr = {sizeof(in), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  hvd_coll_caps out;
  std::memset(&out, 0, sizeof(out));
  out.hdr = {sizeof(out), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  if (!has_comm()) return out;
  hvd_error error = empty_error();
  const hvd_rc rc =
      answer_of(Call::comm_query, name_, &error, [&] { return api_->comm->query(comm, &in, &out, &error); });
  if (rc == HVD_E_UNSUPPORTED) {
    out.support = HVD_UNSERVED;
    if (why) *why = clean_text(error.text, sizeof(error.text));
  } else if (rc != HVD_OK) {
    throw_backend_error(name_, "query", rc, error);
  }
  return out;
}

// Rank 0 creates the id and the others fetch it; the last rank to fetch it deletes the keys. If rank 0 fails, it stores
// the error in place of the id, so that the others fail at once and not at their deadline.
std::string Backend::exchange_id(const std::string& prefix, Store& store, int32_t rank, size_t size,
                                 int64_t deadline_ns) const {
  const hvd_comm_api* comm = api_->comm;
  uint64_t bytes = 0;
  if (HVD_HAS(comm, hvd_comm_api, id_bytes)) {
    hvd_error thrown = empty_error();
    const hvd_rc rc = answer_of(Call::comm_id_bytes, name_, &thrown, [&] {
      bytes = comm->id_bytes();
      return hvd_rc{HVD_OK};
    });
    if (rc != HVD_OK) throw_backend_error(name_, "id_bytes", rc, thrown);
  }
  if (bytes == 0) return {};
  const auto refuse = [&](int32_t code, const std::string& text) {
    throw BackendError(code, 0, 0, name_ + ": id_create: " + text + " (" + rc_name(code) + ")");
  };
  if (bytes > kMaxIdBytes) {
    refuse(HVD_E_ABI, "the backend asks for an id of " + std::to_string(bytes) + " bytes; at most " +
                          std::to_string(kMaxIdBytes) + " are allowed");
  }
  const std::string id_key = prefix + "#id", count_key = prefix + "#id.seen";
  if (rank == 0) {
    std::string id(bytes, '\0');
    hvd_error error = empty_error();
    const hvd_rc rc =
        answer_of(Call::comm_id_create, name_, &error, [&] { return comm->id_create(id.data(), &error); });
    if (rc == HVD_OK) {
      if (size > 1) store.set(id_key, "+" + id);
      return id;
    }
    try {
      throw_backend_error(name_, "id_create", rc, error);
    } catch (const BackendError& e) {
      if (size > 1) store.set(id_key, std::string("-") + e.what());
      throw;
    }
  }
  std::string answer = store.get(id_key, deadline_ns);
  if (store.add(count_key, 1) == static_cast<int64_t>(size) - 1) {
    store.del(id_key);
    store.del(count_key);
  }
  if (!answer.empty() && answer[0] == '-') refuse(HVD_E_REMOTE, "rank 0 reports: " + answer.substr(1));
  if (answer.size() != bytes + 1) {
    refuse(HVD_E_REMOTE, "rank 0 made an id of " + std::to_string(answer.size() - 1) + " bytes, this rank expects " +
                             std::to_string(bytes) + ": the ranks run different versions of the backend's library");
  }
  return answer.substr(1);
}

void Backend::await_creation(hvd_comm handle, int64_t deadline_ns) const {
  const hvd_comm_api* comm = api_->comm;
  hvd_error error = empty_error();
  hvd_rc rc = HVD_E_ABI;
  if (HVD_HAS(comm, hvd_comm_api, create_test)) {
    int64_t pause_ns = 20'000;
    while ((rc = answer_of(Call::comm_create_test, name_, &error, [&] { return comm->create_test(handle, &error); })) ==
           HVD_INPROGRESS) {
      if (now_ns() >= deadline_ns) {
        rc = fill_error(&error, HVD_E_TIMEOUT, "the members did not all arrive in time");
        break;
      }
      timespec pause{0, pause_ns};
      nanosleep(&pause, nullptr);
      pause_ns = std::min<int64_t>(pause_ns * 2, 2'000'000);
    }
  } else {
    fill_error(&error, rc, "create answered INPROGRESS, but the table has no create_test");
  }
  if (rc == HVD_OK) return;
  hvd_error ignored = empty_error();
  if (HVD_HAS(comm, hvd_comm_api, abort))
    answer_of(Call::comm_abort, name_, &ignored, [&] { return comm->abort(handle, &ignored); });
  answer_of(Call::comm_destroy, name_, &ignored, [&] { return comm->destroy(handle, &ignored); });
  throw_backend_error(name_, "create", rc, error);
}

std::unique_ptr<Communicator> Backend::create_comm(const std::string& key, Store& store,
                                                   const std::vector<int32_t>& ranks, const std::vector<int32_t>& hosts,
                                                   int32_t my_rank_in_comm, int64_t deadline_ns, void* notify_token,
                                                   const OpenDevice& device, std::shared_ptr<DriverRecord> driver) {
  const auto refuse = [&](int32_t code, const std::string& text) {
    throw BackendError(code, 0, 0, name_ + ": create: " + text + " (" + rc_name(code) + ")");
  };
  const auto size = static_cast<int32_t>(ranks.size());
  if (!has_comm()) refuse(HVD_E_UNSUPPORTED, "this backend has devices but no communicators");
  if (size == 0 || hosts.size() != ranks.size() || my_rank_in_comm < 0 || my_rank_in_comm >= size) {
    refuse(HVD_E_INVALID, "rank " + std::to_string(my_rank_in_comm) + " of " + std::to_string(size) + " ranks with " +
                              std::to_string(hosts.size()) + " host indices makes no communicator");
  }
  if ((comm_caps() & HVD_CAP_ONE_HOST) && std::count(hosts.begin(), hosts.end(), hosts[0]) != size) {
    refuse(HVD_E_UNSUPPORTED, "this backend works within one host, and the ranks are on several");
  }
  if (deadline_ns == 0) deadline_ns = now_ns() + kDefaultCreateNs;
  StoreScope scope{&store, key + "/", deadline_ns};
  const std::string id = exchange_id(scope.prefix, store, my_rank_in_comm, ranks.size(), deadline_ns);

  hvd_comm_args args = comm_args(key, scope, ranks, hosts, my_rank_in_comm, device);
  args.id = id.empty() ? nullptr : id.data();
  args.id_bytes = id.size();
  args.notify_token = notify_token;
  hvd_comm handle = nullptr;
  hvd_error error = empty_error();
  const hvd_rc rc =
      answer_of(Call::comm_create, name_, &error, [&] { return api_->comm->create(&args, &handle, &error); });
  return ready("create", rc, error, handle, args, std::move(driver));
}

std::unique_ptr<Communicator> Backend::split_comm(Communicator& parent, const std::string& key, Store& store,
                                                  const std::vector<int32_t>& ranks, const std::vector<int32_t>& hosts,
                                                  int32_t my_rank_in_comm, int64_t deadline_ns,
                                                  const OpenDevice& device, std::shared_ptr<DriverRecord> driver) {
  StoreScope scope{&store, key + "/", deadline_ns};
  const hvd_comm_args args = comm_args(key, scope, ranks, hosts, my_rank_in_comm, device);
  hvd_comm handle = nullptr;
  hvd_error error = empty_error();
  const hvd_rc rc = answer_of(Call::comm_split, name_, &error,
                              [&] { return api_->comm->split(parent.handle(), &args, &handle, &error); });
  if (rc == HVD_OK && ranks.empty() && handle == nullptr) return nullptr;
  if (rc == HVD_E_UNSUPPORTED) return nullptr;  // its library cannot; the members create the part anew
  return ready("split", rc, error, handle, args, std::move(driver));
}

// The communicator that create or split has answered with, when its creation has ended.
std::unique_ptr<Communicator> Backend::ready(const char* what, hvd_rc rc, const hvd_error& error, hvd_comm handle,
                                             const hvd_comm_args& args, std::shared_ptr<DriverRecord> driver) {
  if (rc != HVD_OK && rc != HVD_INPROGRESS) throw_backend_error(name_, what, rc, error);
  if (handle == nullptr || args.size == 0) {
    throw BackendError(HVD_E_ABI, 0, 0,
                       name_ + ": " + what + ": the backend reported success " +
                           (handle == nullptr ? "but returned no communicator (ABI)"
                                              : "and returned a communicator to a rank that is in no part (ABI)"));
  }
  if (rc == HVD_INPROGRESS) await_creation(handle, args.deadline_ns);
  return std::make_unique<Communicator>(shared_from_this(), handle, args.rank, args.size, std::move(driver));
}

}  // namespace hvd::plugins
