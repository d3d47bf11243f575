// See signature_cache.h.
#include "engine/calls/signature_cache.h"

#include <bit>
#include <cstdint>

namespace hvd::calls {

namespace {

constexpr size_t kMostTensors = 64;  // of a call: to compare a long list costs as much as to encode it

bool may_be_known(const calls::Call& call) {
  return call.kind == base::OpKind::Allreduce && call.to < 0 && call.reduce_op != base::kAdasum && !call.in.empty() &&
         call.in.size() <= kMostTensors;
}

bool equal_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

bool is_of(const agreement::SignatureFields& f, const calls::Call& c) {
  if (f.kind != c.kind || f.reduce_op != c.reduce_op || f.root != c.to || !equal_bits(f.prescale, c.prescale) ||
      !equal_bits(f.postscale, c.postscale) || f.repeats != (c.name && !c.once) || f.tensors.size() != c.in.size())
    return false;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const calls::Tensor& t = c.in[i];
    if (!t.on_host() || t.device_id != c.in[0].device_id || !t.staged_from.empty() || t.dtype != f.tensors[i].dtype ||
        t.shape != f.tensors[i].shape)
      return false;
  }
  return true;
}

}  // namespace

size_t KnownSignatures::place_of(const calls::Call& call) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  auto h = static_cast<uint64_t>(call.reduce_op);
  for (const auto& t : call.in) {
    h = h * kOdd + static_cast<uint64_t>(t.dtype);
    for (const int64_t d : t.shape) h = h * kOdd + static_cast<uint64_t>(d);
  }
  return (h * kOdd) >> (64 - std::bit_width(kPlaces - 1));
}

agreement::SigRef KnownSignatures::find(const calls::Call& call) {
  if (!may_be_known(call)) return nullptr;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return nullptr;
  const agreement::SigRef& kept = places_[place_of(call)];
  return kept && is_of(kept->fields(), call) ? kept : nullptr;
}

void KnownSignatures::remember(const calls::Call& call, const agreement::SigRef& signature) {
  if (!may_be_known(call) || !is_of(signature->fields(), call)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) places_[place_of(call)] = signature;
}

}  // namespace hvd::calls
