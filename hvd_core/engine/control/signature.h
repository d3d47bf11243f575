// What a request asks for, in the form that is compared across ranks: operation, dtypes, shapes, reduce op, factors,
// root and device type. Two ranks agree when the canonical bytes are equal; when they do not, mismatch() says how.
//
// Immutable once made and shared by reference, so that a tensor seen before costs no parsing. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::control {

// Adasum is an allreduce by another rule. The last two change the process sets and move no data.
enum class OpKind : uint8_t {
  Allreduce = 0,
  Allgather = 1,
  Broadcast = 2,
  Barrier = 3,
  Alltoall = 4,
  Reducescatter = 5,
  Adasum = 6,
  AddProcessSet = 7,
  RemoveProcessSet = 8
};
constexpr size_t kOpKinds = 9;

const char* op_name(OpKind kind);        // "allreduce", as in request names
const char* op_label(OpKind kind);       // "ALLREDUCE", as in Horovod's messages
const char* dtype_name(int32_t dtype);   // "float32"
uint64_t dtype_bytes(int32_t dtype);     // 0 for an unknown number
const char* reduce_op_name(int32_t op);  // "Sum"

struct TensorSpec {
  int32_t dtype = 0;
  std::vector<int64_t> shape;  // allgather, alltoall: shape[0] is -1 here, the sizes travel with the data
  bool operator==(const TensorSpec&) const = default;
};

struct SignatureFields {
  OpKind kind = OpKind::Allreduce;
  int32_t reduce_op = 0;
  int32_t root = -1;  // broadcast: world rank; RemoveProcessSet: number of the set
  double prescale = 1.0, postscale = 1.0;
  bool repeats = true;  // false for unnamed operations: their names do not come back, so caching them is useless
  std::string device_type = "cpu";
  std::vector<TensorSpec> tensors;
  std::vector<int32_t> ranks;  // AddProcessSet: the members, ascending
};

inline bool sizes_vary(OpKind k) { return k == OpKind::Allgather || k == OpKind::Alltoall; }
// Rows that rank `rank` of `size` gets of `rows` in a reducescatter: the first ranks get one more.
inline int64_t scattered_rows(int64_t rows, int32_t rank, int32_t size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}
inline bool changes_sets(OpKind k) { return k == OpKind::AddProcessSet || k == OpKind::RemoveProcessSet; }

class Signature {
 public:
  explicit Signature(SignatureFields fields);
  static std::shared_ptr<const Signature> parse(std::string_view bytes);  // throws WireError

  const SignatureFields& fields() const { return fields_; }
  const std::string& bytes() const { return bytes_; }
  bool same(const Signature& other) const { return this == &other || bytes_ == other.bytes_; }

  // Requests whose fuse_key is equal and not empty may share a batch.
  const std::string& fuse_key() const { return fuse_key_; }
  uint64_t payload_bytes() const { return payload_bytes_; }

 private:
  SignatureFields fields_;
  std::string bytes_, fuse_key_;
  uint64_t payload_bytes_ = 0;
};

using SigRef = std::shared_ptr<const Signature>;

// Why these signatures, one per rank, do not fit together: Horovod's sentence for the first difference found, then what
// each group of ranks said.
std::string mismatch(const std::string& name, const std::vector<std::pair<int32_t, SigRef>>& said);

// "0-2, 5": ascending ranks as ranges.
std::string rank_list(std::vector<int32_t> ranks);

}  // namespace hvd::control
