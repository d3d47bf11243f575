// From a batch of requests to collectives: gathers the tensors, exchanges sizes that only the data plane knows,
// allocates results, and stands in with neutral data for a rank that has joined. Used by the thread that drives.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/set_comms.h"
#include "engine/data/set_device.h"
#include "engine/queue/request.h"

namespace hvd::data {

struct Work {
  control::Item item;
  queue::RequestRef request;  // null on a rank that has joined
};

class Batch {
 public:
  // Writes the steps that carry out `work` on the set; `work` and `set` must live until the program has run. Objects
  // are used again and again, so that a batch like the last one allocates nothing. Throws plugin::BackendError.
  // `device`: the set's ways for the tensors' device; null: they are in host memory.
  void plan(Program& program, SetComms& set, SetDevice* device, const HostMath& math, std::vector<Work>& work,
            uint64_t seq);

 private:
  // One tensor of one request.
  struct Piece {
    size_t work = 0, index = 0;
    hvd_buf in{}, out{};  // their sizes are set when a collective is made of them
    uint64_t count = 0;   // elements that go in
    uint64_t row = 1;     // elements of one row (all dimensions but the first)
    int32_t dtype = 0;
  };

  void collect(Program& program);
  void plan_by_dtype(Program& program);
  void plan_reducescatter(Program& program);
  void plan_allgather(Program& program);
  void plan_alltoall(Program& program);
  void add_neutral(Program& program, Piece& p, int32_t op, bool apart);
  hvd_buf device_scratch(Program& program, uint64_t bytes);
  void allocate_output(Program& program, size_t piece, int64_t rows);
  plugin::Collective& begin(int32_t coll, int32_t dtype);
  void add(const Piece& p, uint64_t out_count);
  void emit(Program& program, int32_t coll, const std::vector<size_t>& pieces);
  const control::SignatureFields& fields(const Piece& p) const { return (*work_)[p.work].item.sig->fields(); }
  queue::Request* request(const Piece& p) const { return (*work_)[p.work].request.get(); }

  SetComms* set_ = nullptr;
  SetDevice* device_ = nullptr;
  const HostMath* math_ = nullptr;
  std::vector<Work>* work_ = nullptr;
  uint64_t seq_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::vector<size_t>> by_dtype_;
  plugin::Collective collective_;
  // Rows of piece i for or from rank r, at [r * pieces + i].
  int64_t *rows_out_ = nullptr, *rows_in_ = nullptr;
};

}  // namespace hvd::data
