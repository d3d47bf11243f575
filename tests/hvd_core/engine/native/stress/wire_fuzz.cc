// Bytes from a peer, right and spoiled: codecs, links and whole trees of nodes read real messages with some bytes
// changed, cut, repeated or invented. They may refuse them; they may not crash, read beyond a buffer, or report
// anything twice.
//
//   wire_fuzz [--seconds S] [--seed N]
//
// For sanitizers; prints "passed" and a summary. A failure names its seed.
#include "check.h"
#include "engine/agreement/link.h"
#include "engine/agreement/messages.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "hvd/backend_abi.h"
#include "rng.h"
#include "spoiled_pipe.h"
#include "spoiled_tree.h"

using namespace hvd;
using namespace hvd::native;
using namespace hvd::agreement;
using namespace hvd::rendezvous;

namespace {

struct Tally {
  uint64_t messages = 0, refused = 0, trees = 0, aborted = 0;
};

// ------------------------------------------------------------------------------------------------------------- codecs

SigRef draw_signature(Rng& rng) {
  SignatureFields f;
  do {
    f.kind = static_cast<base::OpKind>(rng.below(base::kOpKinds));
  } while (f.kind == base::OpKind::Join);  // a join has no signature
  f.reduce_op = static_cast<int32_t>(rng.below(HVD_REDOP_COUNT));
  f.root = static_cast<int32_t>(rng.between(-1, 5));
  f.prescale = rng.one_in(3) ? 0.5 : 1.0;
  f.repeats = !rng.one_in(3);
  for (uint64_t t = rng.below(4); t > 0; --t) {
    TensorSpec spec{static_cast<int32_t>(rng.below(HVD_DTYPE_COUNT)), {}};
    for (uint64_t d = rng.below(4); d > 0; --d) spec.shape.push_back(rng.between(0, 1 << 10));
    if (base::sizes_vary(f.kind) && !spec.shape.empty() && rng.one_in(2)) spec.shape[0] = -1;
    f.tensors.push_back(std::move(spec));
  }
  for (uint64_t n = rng.below(3); n > 0; --n) f.ranks.push_back(static_cast<int32_t>(rng.below(300)));
  return std::make_shared<const Signature>(std::move(f));
}

Item draw_item(Rng& rng, const std::vector<SigRef>& signatures) {
  return {std::make_shared<const std::string>("tensor." + std::to_string(rng.below(12))), rng.pick(signatures)};
}

UpMessage draw_message(Rng& rng, const std::vector<SigRef>& signatures) {
  UpMessage m = UpMessage::of(static_cast<UpMessage::Type>(rng.below(9)), static_cast<Rank>(rng.below(200)));
  for (uint64_t n = rng.below(3); n > 0; --n) m.ranks.insert(static_cast<Rank>(rng.below(200)));
  m.set = static_cast<SetId>(rng.below(4));
  m.item = draw_item(rng, signatures);
  m.urgent = rng.one_in(2);
  m.text = draw_text(rng, 20);
  m.batch = static_cast<uint32_t>(rng.next());
  m.gen = static_cast<uint32_t>(rng.below(200));
  return m;
}

Entry draw_entry(Rng& rng, const std::vector<SigRef>& signatures) {
  Entry e;
  e.type = static_cast<Entry::Type>(rng.below(13));
  e.set = static_cast<SetId>(rng.below(4));
  for (uint64_t n = rng.below(5); n > 0; --n) e.items.push_back(draw_item(rng, signatures));
  e.defines = rng.one_in(2);
  e.batch = static_cast<uint32_t>(rng.below(1 << 20));
  e.gen = static_cast<uint32_t>(rng.below(200));
  e.name = e.items.empty() ? std::make_shared<const std::string>("n") : e.items[0].name;
  e.text = draw_text(rng, 20);
  for (uint64_t n = rng.below(3); n > 0; --n) e.poisoners.push_back(static_cast<Rank>(rng.below(200)));
  for (uint64_t n = 1 + rng.below(3); n > 0; --n) e.members.push_back(static_cast<Rank>(rng.below(200)));
  e.rank = static_cast<Rank>(rng.below(200));
  e.coalesce_ns = static_cast<int64_t>(rng.below(1 << 30));
  return e;
}

// Frames of one link as an encoder makes them. What a decoder gets from them, encoded again by an encoder with the same
// past, must be the same bytes; from spoiled ones it gets something, or a WireError.
template <typename Encoder, typename Decoder, typename Draw>
void codec(Rng& rng, Draw&& draw, Tally& tally) {
  const auto capacity = rng.pick(std::vector<uint32_t>{0, 1, 5, 64});
  Encoder encoder(capacity), again(capacity);
  Decoder right, spoiled;
  for (int frame = 0; frame < 20; ++frame) {
    std::string bytes, echo;
    for (uint64_t n = 1 + rng.below(6); n > 0; --n) {
      encoder.put(bytes, draw());
      ++tally.messages;
    }
    Reader r(bytes);
    while (!r.done()) again.put(echo, right.get(r));
    require(echo == bytes, "a message was not the same after it had been read");
    const std::string bad = rng.one_in(3) ? spoil(rng, bytes) : bytes;
    // Copied to memory of exactly this size, so that a byte beyond it is found.
    std::vector<char> exact(bad.begin(), bad.end());
    Reader spoiled_reader(std::string_view(exact.data(), exact.size()));
    try {
      while (!spoiled_reader.done()) spoiled.get(spoiled_reader);
    } catch (const WireError&) {
      ++tally.refused;
    }
  }
}

// -------------------------------------------------------------------------------------------------------------- links

void link(Rng& rng, bool spoil_some, Tally& tally) {
  Pipe there, back;
  using enum FrameSeal::Kind;
  const auto kind = rng.one_in(2) && wire_security::CryptoLibrary::find() != nullptr ? kEncrypted : kSigned;
  const auto seals = [kind, sealed = rng.one_in(2)](const char* out, const char* in) {
    return sealed ? std::make_unique<Seals>(Seals{FrameSeal("key", out, kind), FrameSeal("key", in, kind)}) : nullptr;
  };
  Link from(std::make_unique<PipeChannel>(there, back, rng.next()), 1, {}, seals("up", "down"));
  Link to(std::make_unique<PipeChannel>(back, there, rng.next()), 0, {}, seals("down", "up"));
  std::vector<std::string> said, heard;
  try {
    for (int step = 0; step < 200; ++step) {
      if (step < 100) {
        said.push_back(draw_text(rng, rng.one_in(10) ? 40'000 : 60));
        if (rng.one_in(20)) {
          from.send_abort(said.back());
          said.back() += " (abort)";
        } else {
          from.send_frame(said.back());
        }
      }
      from.flush(true);
      for (uint64_t n = rng.below(4); n > 0 || step >= 100; --n) {
        if (there.under_way.empty()) break;
        there.deliver(rng, spoil_some && rng.one_in(50));
      }
      while (to.receive([&](std::string_view frame) { heard.emplace_back(frame); },
                        [&](std::string_view text) { heard.emplace_back(std::string(text) + " (abort)"); })) {
      }
    }
  } catch (const WireError&) {
    require(spoil_some, "a link refused what another one sent");
    ++tally.refused;
    return;
  }
  if (spoil_some) return;
  // After an abort a link hands everything on as one; the first word is what counts.
  size_t n = 0;
  while (n < said.size() && said[n].find(" (abort)") == std::string::npos) ++n;
  require(heard.size() == said.size(), "frames were lost or invented");
  for (size_t i = 0; i < std::min(n + 1, said.size()); ++i) require(heard[i] == said[i], "a frame has changed");
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  uint64_t seed = 1, rounds = 0, messages = 0;  // with a number of messages: only codecs and links, until then
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--seconds")
      seconds = std::stod(argv[i + 1]);
    else if (std::string(argv[i]) == "--seed")
      seed = std::stoull(argv[i + 1]);
    else if (std::string(argv[i]) == "--messages")
      messages = std::stoull(argv[i + 1]);
    else
      wrong(std::string("unknown option ") + argv[i]);
  }
  base::set_log(base::Level::Fatal, false, -1);
  Tally tally;
  const int64_t until = base::now_ns() + static_cast<int64_t>(seconds * 1e9);
  const auto goes_on = [&] { return messages > 0 ? tally.messages < messages : base::now_ns() < until; };
  for (; rounds == 0 || goes_on(); ++seed, ++rounds) {
    situation() = "seed " + std::to_string(seed);
    Rng rng(seed);
    std::vector<SigRef> signatures;
    for (int i = 0; i < 6; ++i) signatures.push_back(draw_signature(rng));
    codec<Encoder<UpMessage>, Decoder<UpMessage>>(rng, [&] { return draw_message(rng, signatures); }, tally);
    codec<Encoder<Entry>, Decoder<Entry>>(rng, [&] { return draw_entry(rng, signatures); }, tally);
    link(rng, rounds % 2 == 1, tally);
    if (messages > 0) continue;
    const bool spoil_some = rounds % 4 != 0;
    Grove grove(rng, spoil_some);
    grove.live(150);
    ++tally.trees;
    tally.aborted += grove.any_aborted();
  }
  require(rounds < 50 || tally.refused > rounds, "nothing was spoiled");
  require(rounds < 50 || messages > 0 || tally.aborted * 4 > rounds, "no tree was aborted by spoiled messages");
  std::printf("passed: %llu rounds, %llu messages, %llu refused, %llu of %llu trees aborted\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(tally.messages),
              static_cast<unsigned long long>(tally.refused), static_cast<unsigned long long>(tally.aborted),
              static_cast<unsigned long long>(tally.trees));
  return 0;
}
