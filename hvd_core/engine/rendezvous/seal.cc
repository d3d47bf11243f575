// See seal.h.
#include "engine/rendezvous/seal.h"

#include <cstring>
#include <stdexcept>

namespace hvd::rendezvous {

using wire_security::CryptoLibrary, wire_security::Digest, wire_security::Hmac, wire_security::RecordCipher;

namespace {

Hmac keyed(std::string_view connection_key, std::string_view direction) {
  Hmac hmac(connection_key.data(), connection_key.size());
  hmac.update(direction.data(), direction.size());
  const Digest key = hmac.finish();
  return Hmac(key.data(), key.size());
}

}  // namespace

FrameSeal::FrameSeal(std::string_view connection_key, std::string_view direction, Kind kind)
    : keyed_(keyed(connection_key, direction)) {
  if (kind == Kind::kSigned) return;
  library_ = CryptoLibrary::find();
  if (library_ == nullptr) throw std::runtime_error(CryptoLibrary::problem());
  key_ = connection_key;
  direction_ = direction;
}

RecordCipher& FrameSeal::cipher(bool seals) {
  if (!cipher_) cipher_ = std::make_unique<RecordCipher>(*library_, key_, direction_, seals);
  return *cipher_;
}

void FrameSeal::seal(uint32_t head, std::string_view payload, std::string* out) {
  if (library_ == nullptr) {
    out->append(payload);
    out->append(next_tag(head, payload));
    return;
  }
  const size_t at = out->size();
  out->resize(at + payload.size() + kTagBytes);
  char* const to = out->data() + at;
  RecordCipher& c = cipher(true);
  if (!c.begin(&head, sizeof head) || !c.update(payload.data(), to, payload.size()) || !c.seal(to + payload.size()))
    throw std::runtime_error("the system's libcrypto could not encrypt a message");
}

bool FrameSeal::open(uint32_t head, char* payload, size_t n, const char* tag) {
  if (library_ == nullptr) return same_tag(next_tag(head, {payload, n}), {tag, kTagBytes});
  RecordCipher& c = cipher(false);
  return c.begin(&head, sizeof head) && c.update(payload, payload, n) && c.open(tag);
}

std::string FrameSeal::next_tag(uint32_t head, std::string_view payload) {
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

}  // namespace hvd::rendezvous
