// The accepting side of the bootstrap's handshake: the mutual proof of the job's secret. The messages are described in
// hvd_core/_base/auth.py, which has the other side.
//
// Does no I/O: the owner sends challenge(), passes what it receives, and sends the confirmation. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace hvd::rendezvous {

class Handshake {
 public:
  static constexpr size_t kNonceBytes = 32, kIdentityBytes = 16, kProofBytes = 32;
  static constexpr size_t kAnswerBytes = 8 + kNonceBytes + kIdentityBytes + kProofBytes;

  // `must_encrypt`: a client that is no rank must ask for encryption. (Ranks compare what they ask for, and all of them
  // shall learn the difference.) Throws std::system_error if the system has no random bytes.
  explicit Handshake(bool must_encrypt = false);

  std::string challenge() const;
  // Of the client's answer. The owner must not read more than this from a client before the proof.
  size_t missing() const { return kAnswerBytes - received_.size(); }
  // Takes at most missing() bytes. Returns false as soon as they are wrong. When nothing is missing, the client has
  // proved `secret`, and the owner sends it *confirmation.
  bool feed(std::string_view bytes, const std::string& secret, std::string* confirmation);
  // After the proof: the connection's key if the client has asked for encryption, else nothing. The confirmation
  // tells a client whose request is not met.
  const std::string& encryption_key() const { return encryption_key_; }
  // After the proof: the confirmation says that there is no encryption here that suits both, and nothing may follow.
  bool refused() const { return refused_; }

 private:
  const bool must_encrypt_;
  bool refused_ = false;
  std::array<char, kNonceBytes> nonce_;
  std::string received_, encryption_key_;
};

}  // namespace hvd::rendezvous
