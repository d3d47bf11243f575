// The protection of each frame of a connection between hosts: a proof that the neighbour sent it, once and in this
// order, and on request its encryption.
//
// Both ends know the connection's key, which the bootstrap derived from the job's secret and both nonces of its
// handshake (hvd_core/_base/auth.py). A frame's tag is the beginning of an HMAC-SHA-256 over its number, its head
// and its payload, under the key of one direction. With HOROVOD_TLS=1 frames are encrypted, and the tag is that of the
// cipher (wire_security/encryption.h). Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "wire_security/encryption.h"

namespace hvd::rendezvous {

class FrameSeal {
 public:
  static constexpr size_t kTagBytes = 16;
  enum class Kind { kSigned, kEncrypted };

  // For one direction and one end. `direction`: a word for the way of the frames, the same at both ends.
  // Throws std::runtime_error if frames are to be encrypted and the system has no library for it.
  FrameSeal(std::string_view connection_key, std::string_view direction, Kind kind = Kind::kSigned);

  // Appends the next frame's payload, as it is sent, and its tag. `head`: the frame's first word.
  void seal(uint32_t head, std::string_view payload, std::string* out);
  // Checks the next frame, and turns its payload in place into the text that was sent. False if it was changed.
  bool open(uint32_t head, char* payload, size_t n, const char* tag);

 private:
  std::string next_tag(uint32_t head, std::string_view payload);
  wire_security::RecordCipher& cipher(bool seals);

  wire_security::Hmac keyed_;
  uint64_t number_ = 0;
  // Of an encrypted connection; the cipher is made when it is known which end this is.
  const wire_security::CryptoLibrary* library_ = nullptr;
  std::string key_, direction_;
  std::unique_ptr<wire_security::RecordCipher> cipher_;
};

// Takes the same time for every difference. Both texts have kTagBytes.
bool same_tag(std::string_view a, std::string_view b);

// The two directions of an encrypted connection to the store.
inline constexpr char kToStore[] = "to the store", kFromStore[] = "from the store";

struct Seals {
  FrameSeal out, in;
};

}  // namespace hvd::rendezvous
