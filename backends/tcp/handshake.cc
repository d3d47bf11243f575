// The mutual proof; see handshake.h.
#include "handshake.h"

#include <errno.h>
#include <sys/socket.h>

#include <cstring>

#include "wire_security/proof.h"

namespace hvd::tcp {
namespace {

constexpr char kMagic[8] = {'H', 'V', 'D', 'T', 'C', 'P', '0', '2'};

struct Opening {
  char magic[8];
  Introduction introduction;
  unsigned char nonce[32];
};
static_assert(sizeof(Opening) == 56);

struct Answer {
  unsigned char nonce[32], mac[32];
};

}  // namespace

Handshake Handshake::as_caller(Descriptor fd, const Digest& secret, const Introduction& introduction) {
  Handshake h;
  h.fd_ = std::move(fd);
  h.secret_ = secret;
  h.caller_ = true;
  h.introduction_ = introduction;
  return h;
}

Handshake Handshake::as_host(Descriptor fd, const Digest& secret, uint32_t me, uint32_t size,
                             uint32_t sockets_per_peer) {
  Handshake h;
  h.fd_ = std::move(fd);
  h.secret_ = secret;
  h.introduction_.host = me;
  h.introduction_.size = size;
  h.sockets_per_peer_ = sockets_per_peer;
  return h;
}

Digest Handshake::mac(const char* side) const {
  const std::string_view nonces(reinterpret_cast<const char*>(nonces_), sizeof nonces_);
  const std::string_view identity(reinterpret_cast<const char*>(&introduction_), sizeof introduction_);
  return proof(bytes_of(secret_), side, "tcp", nonces, identity);
}

// True when `bytes` bytes are there. A peer that is gone is refused.
bool Handshake::read(void* to, uint32_t bytes, State* state) {
  while (got_ < bytes) {
    const ssize_t n = recv(fd_.get(), incoming_ + got_, bytes - got_, MSG_DONTWAIT);
    if (n > 0) {
      got_ += static_cast<uint32_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      *state = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? State::kMore : State::kRefused;
      return false;
    }
  }
  std::memcpy(to, incoming_, bytes);
  got_ = 0;
  return true;
}

// Fits the buffer of a connection on which next to nothing was written yet, so there is no partial write to resume.
bool Handshake::write(const void* from, uint32_t bytes) {
  return send(fd_.get(), from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

Handshake::State Handshake::step() {
  State state = State::kRefused;
  if (caller_) {
    if (stage_ == 0) {
      Opening opening;
      std::memcpy(opening.magic, kMagic, sizeof kMagic);
      opening.introduction = introduction_;
      if (!random_bytes(nonces_[0], 32)) return State::kRefused;
      std::memcpy(opening.nonce, nonces_[0], 32);
      if (!write(&opening, sizeof opening)) return State::kRefused;
      stage_ = 1;
    }
    if (stage_ == 1) {
      Answer answer;
      if (!read(&answer, sizeof answer, &state)) return state;
      std::memcpy(nonces_[1], answer.nonce, 32);
      if (!equal_digests(mac("host").data(), answer.mac)) return State::kRefused;
      const Digest ours = mac("caller");
      if (!write(ours.data(), 32)) return State::kRefused;
      stage_ = 2;
    }
    char welcome;
    if (!read(&welcome, 1, &state)) return state;
    return State::kDone;
  }
  if (stage_ == 0) {
    Opening opening;
    if (!read(&opening, sizeof opening, &state)) return state;
    const Introduction& they = opening.introduction;
    if (std::memcmp(opening.magic, kMagic, sizeof kMagic) != 0 || they.host != introduction_.host ||
        they.size != introduction_.size || they.caller <= introduction_.host || they.caller >= introduction_.size ||
        they.socket_index >= sockets_per_peer_) {
      return State::kRefused;
    }
    introduction_ = they;
    std::memcpy(nonces_[0], opening.nonce, 32);
    if (!random_bytes(nonces_[1], 32)) return State::kRefused;
    Answer answer;
    std::memcpy(answer.nonce, nonces_[1], 32);
    const Digest ours = mac("host");
    std::memcpy(answer.mac, ours.data(), 32);
    if (!write(&answer, sizeof answer)) return State::kRefused;
    stage_ = 1;
  }
  Digest theirs;
  if (!read(theirs.data(), 32, &state)) return state;
  if (!equal_digests(mac("caller").data(), theirs.data())) return State::kRefused;
  // A caller that has given up has closed its side, and will call again; until the welcome it has nothing to say.
  char more;
  if (recv(fd_.get(), &more, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) return State::kRefused;
  const char welcome = 1;
  return write(&welcome, 1) ? State::kDone : State::kRefused;
}

}  // namespace hvd::tcp
