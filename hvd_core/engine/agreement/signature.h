// The signature of a request: operation, dtypes, shapes, reduce op, factors, root and device type. Two ranks agree if
// the canonical bytes are equal; mismatch() describes a difference. Digests of weights may follow (WeightDigest): ranks
// need not agree on them.
//
// Immutable and shared by reference, so that a signature that was seen before is not parsed again. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/operations.h"

namespace hvd::agreement {

struct TensorSpec {
  int32_t dtype = 0;
  std::vector<int64_t> shape;  // allgather, alltoall: shape[0] is -1 here; the sizes are exchanged with the data
  bool operator==(const TensorSpec&) const = default;
};

// With HOROVOD_CHECK_CONSISTENCY: a weight as a rank has it when it first reduces the weight's gradient. See
// weights_check.h.
struct WeightDigest {
  std::string parameter;
  uint64_t elements = 0, digest = 0;
};

// Begins the device type of tensors that their front end copies through host memory: "staged TYPE".
inline constexpr std::string_view kStaged = "staged ";

struct SignatureFields {
  base::OpKind kind = base::OpKind::Allreduce;
  int32_t reduce_op = 0;  // allgather, alltoall: which ranks know the sizes (base::Sizes)
  // broadcast: world rank; allreduce: the only rank that gets the result, or -1; RemoveProcessSet: number of the set;
  // alltoall: the caller's own number
  int32_t root = -1;
  double prescale = 1.0, postscale = 1.0;
  bool repeats = true;  // false for unnamed operations: their names do not come again, so that they are not cached
  std::string device_type = "cpu";
  std::vector<TensorSpec> tensors;
  std::vector<int32_t> ranks;         // AddProcessSet: the members, ascending
  std::string backends;               // AddProcessSet: the choice of backends for this set; empty: the job's
  std::vector<WeightDigest> weights;  // whose gradients are reduced
  std::string remedy;                 // the line of the user's program that makes the weights equal

  bool on_host() const { return device_type == "cpu" || device_type.starts_with(kStaged); }
};

class Signature {
 public:
  explicit Signature(SignatureFields fields);
  static std::shared_ptr<const Signature> parse(std::string_view bytes);  // throws WireError

  const SignatureFields& fields() const { return fields_; }
  const std::string& bytes() const { return bytes_; }
  // Equal in all bytes, those of the weights included.
  bool same(const Signature& other) const { return this == &other || bytes_ == other.bytes_; }
  // Equal in all that ranks must agree on.
  bool agrees(const Signature& other) const { return this == &other || agreed() == other.agreed(); }
  bool has_weights() const { return !fields_.weights.empty(); }
  std::shared_ptr<const Signature> without_weights() const;

  // Requests may share a batch if their fuse keys are equal and not empty.
  const std::string& fuse_key() const { return fuse_key_; }
  uint64_t payload_bytes() const { return payload_bytes_; }

 private:
  std::string_view agreed() const { return std::string_view(bytes_).substr(0, agreed_bytes_); }

  SignatureFields fields_;
  std::string bytes_, fuse_key_;
  size_t agreed_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
};

using SigRef = std::shared_ptr<const Signature>;

// Describes why these signatures, one per rank, differ: Horovod's sentence for the first difference, then the signature
// of each group of ranks.
std::string mismatch(const std::string& name, const std::vector<std::pair<int32_t, SigRef>>& said);

}  // namespace hvd::agreement
