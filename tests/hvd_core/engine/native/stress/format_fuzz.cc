// Bytes of a peer, right and spoiled, for every reader of a format that wire_fuzz does not cover: the store's handshake
// and requests, the tcp backend's handshake and messages, and the text of a call that XLA has compiled. The readers may
// refuse them; they may not crash, read or write beyond a buffer, or take a stranger for a peer.
//
//   format_fuzz [--rounds N] [--seed N]
//
// For sanitizers; prints "passed" and how many pieces each reader got. A failure names its seed.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "backends/tcp/handshake.h"
#include "backends/tcp/link.h"
#include "backends/tcp/stream.h"
#include "backends/tcp/wire.h"
#include "check.h"
#include "engine/base/text.h"
#include "engine/rendezvous/handshake.h"
#include "horovod/tensorflow/native/xla_call_text.h"
#include "rng.h"
#include "spoiled_pipe.h"
#include "stored_requests.h"

using namespace hvd;
using namespace hvd::native;

namespace {

using Tally = std::map<std::string, uint64_t>;

// ---------------------------------------------------------------------------------------------- the store's handshake

void store_handshake(Rng& rng, Tally& tally) {
  const std::string secret(32, 's');
  rendezvous::Handshake host;
  const std::string right = store_answer(secret, host.challenge(), rng);
  const std::string sent = rng.one_in(3) ? right : spoil(rng, right);
  std::string confirmation;
  bool refused = false;
  for (size_t at = 0; at < sent.size() && host.missing() > 0 && !refused;) {
    const size_t n = std::min<size_t>({1 + rng.below(40), host.missing(), sent.size() - at});
    const std::vector<char> exact(sent.begin() + static_cast<int64_t>(at), sent.begin() + static_cast<int64_t>(at + n));
    refused = !host.feed({exact.data(), exact.size()}, secret, &confirmation);
    at += n;
  }
  const bool same = sent.substr(0, right.size()) == right;
  require(same == !confirmation.empty(), "the store took a stranger for a rank, or a rank for a stranger");
  ++tally[same ? "store handshakes: right" : "store handshakes: spoiled"];
}

// ---------------------------------------------------------------------------------------------- the tcp backend

void tcp_handshake(Rng& rng, Tally& tally) {
  int pair[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
  const host_kernels::Descriptor near(pair[0]);
  wire_security::Digest secret, other;
  secret.fill('s');
  other.fill('o');
  auto host = tcp::Handshake::as_host(host_kernels::Descriptor(pair[1]), secret, 1, 4, 2);
  auto state = tcp::Handshake::State::kMore;
  const auto give = [&](const std::string& bytes) {
    for (size_t at = 0; at < bytes.size() && state == tcp::Handshake::State::kMore;) {
      const size_t n = std::min<size_t>(1 + rng.below(60), bytes.size() - at);
      require(::send(near.get(), bytes.data() + at, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n), "not sent");
      state = host.step();
      at += n;
    }
  };
  const bool spoil_opening = rng.one_in(2), spoil_proof = rng.one_in(2);
  const tcp::Introduction who = {2, 1, 1, 4};
  std::string opening =
      "HVDTCP02" + std::string(reinterpret_cast<const char*>(&who), sizeof who) + std::string(32, 'n');
  const std::string right_opening = opening;
  if (spoil_opening) opening = spoil(rng, opening);
  give(opening);
  char answer[64];
  const bool answered = ::recv(near.get(), answer, sizeof answer, MSG_DONTWAIT) == sizeof answer;
  if (answered && state == tcp::Handshake::State::kMore) {
    const std::string nonces = opening.substr(24, 32) + std::string(answer, 32),
                      identity = opening.substr(8, sizeof who);
    const std::string_view key = wire_security::bytes_of(spoil_proof && rng.one_in(2) ? other : secret);
    const std::string proof(wire_security::bytes_of(wire_security::proof(key, "caller", "tcp", nonces, identity)));
    give(spoil_proof ? spoil(rng, proof) : proof);
  }
  const bool done = state == tcp::Handshake::State::kDone;
  if (!spoil_opening && !spoil_proof) require(done, "the tcp backend refused a rank");
  if (done) require(host.introduction().caller < 4 && host.introduction().socket_index < 2, "a rank that is none");
  ++tally[done ? "tcp handshakes: right" : "tcp handshakes: spoiled"];
}

tcp::Header draw_header(Rng& rng, uint64_t bytes) {
  tcp::Header h = {};
  h.magic = tcp::kWireMagic;
  h.kind = rng.one_in(10) ? tcp::kFailureNotice : static_cast<uint32_t>(rng.below(4));
  h.seq = rng.below(3);
  h.bytes = h.total = bytes;
  return h;
}

// A stream of messages as progress.cc reads it: each header is believed only as far as the place for its payload goes.
void tcp_messages(Rng& rng, Tally& tally) {
  int pair[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "no sockets");
  const host_kernels::Descriptor near(pair[0]);
  tcp::Link link(host_kernels::Descriptor(pair[1]), 1, 0);
  std::string stream;
  for (int i = 0; i < 32; ++i) {
    const tcp::Header h = draw_header(rng, rng.below(rng.one_in(8) ? 20'000 : 200));
    std::string message(reinterpret_cast<const char*>(&h), sizeof h);
    message += std::string(h.bytes, 'p');
    stream += rng.one_in(16) ? spoil(rng, message) : message;
  }
  std::vector<char> room(rng.between(1, 20'000));
  tcp::Extent place;
  place.open(room.data(), room.size());
  for (size_t at = 0; at < stream.size();) {
    const size_t n = std::min<size_t>(1 + rng.below(30'000), stream.size() - at);
    const ssize_t sent = ::send(near.get(), stream.data() + at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) at += static_cast<size_t>(sent);
    link.readable = true;
    for (;;) {
      if (link.read_header() != tcp::Link::Io::kDone) break;
      if (!link.placed()) {
        ++tally["tcp messages"];
        const tcp::Header& h = link.header();
        if (h.magic != tcp::kWireMagic || h.bytes > room.size()) return;  // die(): nothing more is read
        link.place({&place, room.size() - h.bytes, h.bytes});
      }
      if (link.read_payload() != tcp::Link::Io::kDone) break;
    }
  }
}

// Encrypted records: the reader gets the text that was sent, or the beginning of it and an error.
void tcp_records(Rng& rng, Tally& tally) {
  const auto* library = wire_security::CryptoLibrary::find();
  if (library == nullptr) return;
  wire_security::Digest key;
  key.fill('k');
  int out[2], in[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out) == 0, "no sockets");
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, in) == 0, "no sockets");
  tcp::Stream writer{host_kernels::Descriptor(out[0])}, reader{host_kernels::Descriptor(in[1])};
  const host_kernels::Descriptor far(out[1]), near(in[0]);
  writer.encrypt(*library, key, true);
  reader.encrypt(*library, key, false);
  std::string text, sent;
  for (int i = 0; i < 8; ++i) {
    std::string part(rng.one_in(4) ? rng.below(90'000) : 1 + rng.below(300), static_cast<char>('a' + i));
    for (size_t at = 0; at < part.size() || writer.unsent();) {
      const iovec v[] = {{part.data() + at, (part.size() - at) / 2},
                         {part.data() + at + (part.size() - at) / 2, part.size() - at - (part.size() - at) / 2}};
      const ssize_t wrote = at < part.size() ? writer.write(v, 2) : (writer.flush(), 0);
      if (wrote > 0) at += static_cast<size_t>(wrote);
      char bytes[1 << 16];
      const ssize_t n = ::recv(far.get(), bytes, sizeof bytes, 0);
      if (n > 0) sent.append(bytes, static_cast<size_t>(n));
    }
    text += part;
  }
  char bytes[1 << 16];
  for (ssize_t n; (n = ::recv(far.get(), bytes, sizeof bytes, 0)) > 0;) sent.append(bytes, static_cast<size_t>(n));
  const std::string right = sent;
  if (rng.one_in(2)) sent = spoil(rng, sent);
  std::string got;
  bool refused = false;
  for (size_t at = 0; at < sent.size() && !refused;) {
    const ssize_t n =
        ::send(near.get(), sent.data() + at, std::min<size_t>(1 + rng.below(60'000), sent.size() - at), MSG_NOSIGNAL);
    if (n > 0) at += static_cast<size_t>(n);
    for (;;) {
      std::vector<char> first(1 + rng.below(100)), second(rng.below(50'000));
      const iovec v[] = {{first.data(), first.size()}, {second.data(), second.size()}};
      bool more;
      const ssize_t taken = reader.read(v, 2, &more);
      refused = taken < 0 && errno == EBADMSG;
      if (taken <= 0) break;
      const size_t here = std::min(static_cast<size_t>(taken), first.size());
      got.append(first.data(), here);
      got.append(second.data(), static_cast<size_t>(taken) - here);
    }
  }
  require(text.compare(0, got.size(), got) == 0, "a text that was not sent was read");
  if (sent == right) require(!refused && got == text, "a text was not read");
  ++tally[sent == right ? "encrypted streams: right" : "encrypted streams: spoiled"];
}

// ---------------------------------------------------------------------------------------------- texts

void compiled_call(Rng& rng, Tally& tally) {
  const std::string right =
      "hvd1 operation=HorovodAllreduce process_set=0 reduce_op=1 prescale_factor=0.5 tensors=1:2,3>2,3;3:>7 name=a b=c";
  const std::string sent = rng.one_in(8) ? right : spoil(rng, rng.one_in(2) ? spoil(rng, right) : right);
  const std::vector<char> exact(sent.begin(), sent.end());
  hvd_tf::XlaCall call;
  const std::string problem = hvd_tf::read_xla_call({exact.data(), exact.size()}, rng.one_in(2), &call);
  if (sent == right) require(problem.empty(), "a call was not read: " + problem);
  ++tally[problem.empty() ? "compiled calls: read" : "compiled calls: refused"];
}

void shown_text(Rng& rng, Tally& tally) {
  const std::string shown = base::printable(draw_text(rng, 80), 64);
  for (const char c : shown) require(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t', "a control byte");
  require(base::printable(shown, 1000) == shown, "what is safe to show has changed when it was shown again");
  ++tally["texts shown"];
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t rounds = 2'000, seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--rounds")
      rounds = std::stoull(argv[i + 1]);
    else if (std::string(argv[i]) == "--seed")
      seed = std::stoull(argv[i + 1]);
    else
      wrong(std::string("unknown option ") + argv[i]);
  }
  Tally tally;
  StoredRequests store;
  for (uint64_t round = 0; round < rounds; ++round, ++seed) {
    situation() = "seed " + std::to_string(seed);
    Rng rng(seed);
    for (int i = 0; i < 8; ++i) {
      store_handshake(rng, tally);
      compiled_call(rng, tally);
      shown_text(rng, tally);
    }
    tcp_handshake(rng, tally);
    tcp_messages(rng, tally);
    tcp_records(rng, tally);
    if (round % 4 == 0) tally["store requests"] += store.send_some(rng);
  }
  store.still_answers();
  uint64_t all = 0;
  for (const auto& [what, n] : tally) {
    std::printf("%12llu %s\n", static_cast<unsigned long long>(n), what.c_str());
    all += n;
  }
  std::printf("passed: %llu pieces in %llu rounds\n", static_cast<unsigned long long>(all),
              static_cast<unsigned long long>(rounds));
  return 0;
}
