// Writes the schedule of a batch of requests: gathers the tensors, exchanges sizes that only the data plane knows,
// allocates results, and contributes neutral data for a rank that has joined. Used by the driver.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/agreement/batch_item.h"
#include "engine/calls/request.h"
#include "engine/dataplane/set_comms.h"
#include "engine/dataplane/set_device.h"

namespace hvd::dataplane {

class BatchWriter {
 public:
  // Writes the steps that carry out `work` on the set. `work` and `set` must live until the schedule has run. The
  // members of this object are reused, so that a batch like the last one allocates nothing. `device`: the set's
  // communicators for the tensors' device; null: the tensors are in host memory. Throws plugins::BackendError.
  void write_schedule(Schedule& schedule, SetComms& set, SetDevice* device, const HostMath& math,
                      std::vector<agreement::BatchItem>& work, uint64_t seq);

 private:
  // One tensor of one request.
  struct Tensor {
    size_t work = 0, index = 0;
    hvd_buf in{}, out{};  // emit() sets their sizes
    uint64_t count = 0;   // input elements
    uint64_t row = 1;     // elements of one row (all dimensions but the first)
    int32_t dtype = 0;
  };

  void collect(Schedule& schedule);
  void write_by_dtype(Schedule& schedule);
  void write_reducescatter(Schedule& schedule);
  void write_allgather(Schedule& schedule);
  void write_alltoall(Schedule& schedule);
  void compare_splits(Schedule& schedule);
  void exchange_sizes(Schedule& schedule, int32_t coll, int64_t* mine, uint64_t n, int64_t* all);
  void add_neutral(Schedule& schedule, Tensor& t, int32_t op, bool apart);
  hvd_buf scratch(Schedule& schedule, uint64_t bytes) const;
  // The result of an allgather or alltoall, as large as the ranks' announcements in rows_in_ say.
  void allocate_announced(Schedule& schedule, size_t tensor, int64_t mine);
  int64_t announced_rows(size_t tensor, int64_t mine) const;
  size_t most_rows(size_t tensor) const;
  void allocate_output(Schedule& schedule, size_t tensor, int64_t rows);
  plugins::Collective& begin(int32_t coll, int32_t dtype);
  int32_t message_collective(int32_t dtype) const;
  void add(const Tensor& t, uint64_t out_count);
  void emit(Schedule& schedule, int32_t coll, const std::vector<size_t>& tensors);
  const agreement::SignatureFields& fields(const Tensor& t) const { return (*work_)[t.work].item.sig->fields(); }
  calls::Request* request(const Tensor& t) const { return (*work_)[t.work].request.get(); }

  SetComms* set_ = nullptr;
  SetDevice* device_ = nullptr;
  const HostMath* math_ = nullptr;
  std::vector<agreement::BatchItem>* work_ = nullptr;
  uint64_t seq_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<size_t>> by_dtype_;
  plugins::Collective collective_;
  // Rows of tensor i that go to rank r, and that come from rank r, at [r * tensors + i].
  int64_t *rows_out_ = nullptr, *rows_in_ = nullptr;
};

}  // namespace hvd::dataplane
