// A store on loopback, and clients that know its secret and send it right and spoiled requests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "check.h"
#include "engine/rendezvous/store_server.h"
#include "rng.h"
#include "spoiled_pipe.h"
#include "wire_security/proof.h"

namespace hvd::native {

// A client's right answer to the challenge of hvd_core/_base/auth.py.
inline std::string store_answer(const std::string& secret, const std::string& challenge, Rng& rng) {
  const std::string nonce(32, static_cast<char>(rng.below(256))),
      identity = std::string(12, '\1') + std::string(4, '\0');  // not encrypted
  const auto proof = wire_security::proof(secret, "client", "store", challenge.substr(8) + nonce, identity);
  return "hvdauth1" + nonce + identity + std::string(wire_security::bytes_of(proof));
}

inline std::string store_request(uint8_t op, const std::string& key, const std::string& payload) {
  std::string request;
  const auto size = static_cast<uint32_t>(3 + key.size() + payload.size());
  const auto key_size = static_cast<uint16_t>(key.size());
  request.append(reinterpret_cast<const char*>(&size), sizeof size);
  request.push_back(static_cast<char>(op));
  request.append(reinterpret_cast<const char*>(&key_size), sizeof key_size);
  return request + key + payload;
}

class StoredRequests {
 public:
  StoredRequests() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof address_;
    require(::bind(listener, reinterpret_cast<sockaddr*>(&address_), n) == 0 && ::listen(listener, 16) == 0 &&
                ::getsockname(listener, reinterpret_cast<sockaddr*>(&address_), &n) == 0,
            "no listener");
    server_ = std::make_unique<rendezvous::StoreServer>(listener, secret_, int64_t{10'000'000'000});
  }

  // How many requests a new client has sent before it left.
  uint64_t send_some(Rng& rng) {
    const int fd = client(rng);
    std::string all;
    uint64_t requests = 0;
    for (; requests < 400; ++requests) {
      int64_t number = rng.one_in(3) ? static_cast<int64_t>(rng.next()) : rng.between(-1, 3);
      constexpr uint8_t kOps[] = {1, 2, 3, 4, 7, 8, 9};
      const uint8_t op = kOps[rng.below(std::size(kOps))];
      if (op == 8) number = rng.between(0, 5);  // members: the answer has a word for each
      if (op == 2 && number < 0) number = 0;    // a GET that waits for ever would end the batch
      std::string value = op == 1 ? draw_text(rng, 40) : std::string(reinterpret_cast<char*>(&number), sizeof number);
      if (op == 4 || op == 9) value.clear();
      if (op == 7) value = gathered_part(rng);
      if (op == 8) value.resize(sizeof(uint32_t));
      const std::string request = store_request(op, "key" + std::to_string(rng.below(6)), value);
      all += rng.one_in(200) ? spoil(rng, request) : request;
    }
    // The answers are read as they come, or the store would stop reading.
    char answers[65536];
    for (size_t at = 0; at < all.size();) {
      const ssize_t sent = ::send(fd, all.data() + at, all.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) at += static_cast<size_t>(sent);
      const ssize_t got = ::recv(fd, answers, sizeof answers, MSG_DONTWAIT);
      if (got == 0 || (sent < 0 && errno != EAGAIN)) break;  // refused
    }
    ::close(fd);
    return requests;
  }

  // A client that does all as it should gets its answers.
  void still_answers() {
    Rng rng(1);
    const int fd = client(rng);
    const std::string request = store_request(1, "last", "value");
    require(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()),
            "not sent");
    char answer[5];
    require(::recv(fd, answer, sizeof answer, MSG_WAITALL) == 5 && answer[0] == 1 && answer[4] == 0, "no answer");
    ::close(fd);
  }

 private:
  // The part of one member, of three, with the same common bytes as a rule.
  static std::string gathered_part(Rng& rng) {
    const std::string label(rng.below(2), 'l'), common(rng.one_in(8) ? 2 : 1, 'c');
    std::string part;
    const auto put = [&part](size_t n) {
      const auto v = static_cast<uint32_t>(n);
      part.append(reinterpret_cast<const char*>(&v), sizeof v);
    };
    put(3), put(1), put(rng.below(4)), put(label.size());
    part += label;
    put(common.size());
    return part + common + draw_text(rng, 20);
  }

  int client(Rng& rng) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char challenge[40], confirmation[32];
    require(::connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof address_) == 0, "not connected");
    require(::recv(fd, challenge, sizeof challenge, MSG_WAITALL) == sizeof challenge, "no challenge");
    const std::string answer = store_answer(secret_, std::string(challenge, sizeof challenge), rng);
    require(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size()), "not sent");
    require(::recv(fd, confirmation, sizeof confirmation, MSG_WAITALL) == sizeof confirmation, "not believed");
    return fd;
  }

  const std::string secret_ = std::string(32, 's');
  sockaddr_in address_ = {};
  std::unique_ptr<rendezvous::StoreServer> server_;
};

}  // namespace hvd::native
