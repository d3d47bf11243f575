// See seal.h.
#include "engine/control/seal.h"

#include <cstring>

namespace hvd::control {
namespace {

Hmac keyed(std::string_view connection_key, std::string_view direction) {
  Hmac hmac(connection_key.data(), connection_key.size());
  hmac.update(direction.data(), direction.size());
  const Digest key = hmac.finish();
  return Hmac(key.data(), key.size());
}

}  // namespace

FrameSeal::FrameSeal(std::string_view connection_key, std::string_view direction)
    : keyed_(keyed(connection_key, direction)) {}

std::string FrameSeal::next(uint32_t head, std::string_view payload) {
  char numbered[sizeof number_ + sizeof head];
  std::memcpy(numbered, &number_, sizeof number_);
  std::memcpy(numbered + sizeof number_, &head, sizeof head);
  ++number_;
  Hmac hmac = keyed_;
  hmac.update(numbered, sizeof numbered);
  hmac.update(payload.data(), payload.size());
  const Digest digest = hmac.finish();
  return std::string(reinterpret_cast<const char*>(digest.data()), kTagBytes);
}

bool same_tag(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace hvd::control
