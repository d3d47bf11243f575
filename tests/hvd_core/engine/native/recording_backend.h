// A backend for tests of schedules: it answers queries as the test wants, completes each collective without moving
// data, at once or when the test says so, and records the collectives that were started.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/schedule.h"
#include "engine/plugins/backend.h"

namespace test {

// "allreduce float32 3 5": the collective, its type, and the elements of each buffer.
inline std::string text_of(int32_t coll, int32_t dtype, const uint64_t* counts, uint64_t n) {
  std::string text = hvd::base::collective_name(coll);
  if (coll != HVD_BARRIER) text += std::string(" ") + hvd::base::dtype_name(dtype);
  for (uint64_t i = 0; i < n; ++i) text += " " + std::to_string(counts[i]);
  return text;
}
inline std::string text_of(const hvd::plugins::Collective& c) {
  return text_of(c.coll, c.dtype, c.counts.data(), c.counts.size());
}

// One communicator of such a backend.
class RecordingComm {
 public:
  uint32_t alignment = 1;
  uint64_t max_count = 0, pack_below = 0;
  std::function<bool(int32_t coll, int32_t dtype, int32_t op)> serves = [](int32_t, int32_t, int32_t) { return true; };
  std::vector<std::string> started;
  bool records = true;
  bool holds = false;       // collectives stay in flight until `holds` is false
  bool overlapped = false;  // the last collective was not marked as agreed

  RecordingComm(const std::string& name, int32_t rank, int32_t size, uint64_t caps) : name_(name) {
    std::memset(&table_, 0, sizeof table_);
    std::memset(&api_, 0, sizeof api_);
    table_.hdr = {sizeof table_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    table_.caps = caps | HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
    table_.query = query;
    table_.collective = start;
    table_.group_begin = [](hvd_comm, hvd_error*) { return hvd_rc{HVD_OK}; };
    table_.group_end = [](hvd_comm, hvd_error*) { return hvd_rc{HVD_OK}; };
    table_.req_test = [](hvd_req request, hvd_error*) { return answer(request); };
    table_.req_wait = [](hvd_req request, int64_t, hvd_error*) {
      of_request(request).waits += 1;
      return answer(request);
    };
    table_.req_free = [](hvd_req) { return hvd_rc{HVD_OK}; };
    table_.destroy = [](hvd_comm, hvd_error*) { return hvd_rc{HVD_OK}; };
    api_.hdr = {sizeof api_, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    api_.name = name_.c_str();
    api_.comm = &table_;
    backend_ = std::make_shared<hvd::plugins::Backend>(&api_, name_);
    comm_ = std::make_unique<hvd::plugins::Communicator>(backend_, reinterpret_cast<hvd_comm>(this), rank, size);
  }
  RecordingComm(const RecordingComm&) = delete;
  RecordingComm& operator=(const RecordingComm&) = delete;

  hvd::plugins::Communicator& comm() { return *comm_; }
  int waits = 0;  // calls of req_wait

 private:
  static RecordingComm& of_request(hvd_req request) { return *reinterpret_cast<RecordingComm*>(request); }
  static hvd_rc answer(hvd_req request) { return of_request(request).holds ? HVD_INPROGRESS : HVD_OK; }
  static RecordingComm& of(hvd_comm comm) { return *reinterpret_cast<RecordingComm*>(comm); }

  static hvd_rc query(hvd_comm comm, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error*) {
    const RecordingComm& self = of(comm);
    if (!self.serves(a->coll, a->dtype, a->op)) return HVD_E_UNSUPPORTED;
    out->support = HVD_NATIVE;
    out->alignment = self.alignment;
    out->max_count = self.max_count;
    out->pack_below = self.pack_below;
    return HVD_OK;
  }

  static hvd_rc start(hvd_comm comm, const hvd_coll_args* a, hvd_req* request, hvd_error*) {
    RecordingComm& self = of(comm);
    if (self.records) self.started.push_back(text_of(a->coll, a->dtype, a->counts, a->n_bufs));
    self.overlapped = (a->flags & HVD_COLL_AGREED) == 0;
    if (!self.holds) return HVD_OK;
    *request = reinterpret_cast<hvd_req>(comm);
    return HVD_INPROGRESS;
  }

  const std::string name_;
  hvd_comm_api table_;
  hvd_backend_api api_;
  std::shared_ptr<hvd::plugins::Backend> backend_;
  std::unique_ptr<hvd::plugins::Communicator> comm_;
};

// The steps of a schedule as text: "compute; within: allreduce float32 8; within: group(...)".
inline std::string text_of(const hvd::dataplane::Schedule& schedule) {
  using Kind = hvd::dataplane::Schedule::Kind;
  std::string text;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (i > 0) text += "; ";
    const Kind kind = schedule.kind(i);
    if (kind == Kind::Computation) text += "compute";
    if (kind == Kind::Wait) text += "wait";
    if (kind == Kind::Strands)
      text += "strands(" + text_of(schedule.strand_at(i, 0)) + " | " + text_of(schedule.strand_at(i, 1)) + ")";
    if (kind != Kind::Collective && kind != Kind::Group) continue;
    text += schedule.communicator_at(i).backend().name() + ": ";
    if (kind == Kind::Collective) {
      text += text_of(schedule.collective_at(i));
      continue;
    }
    text += "group(";
    for (size_t m = 0; m < schedule.group_at(i).size(); ++m)
      text += (m > 0 ? ", " : "") + text_of(schedule.group_at(i)[m]);
    text += ")";
  }
  return text;
}

}  // namespace test
