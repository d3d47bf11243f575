// Encoding of the control plane's messages. See messages.h.
#include "engine/agreement/messages.h"

#include <charconv>
#include <concepts>
#include <type_traits>
#include <utility>

namespace hvd::agreement {
namespace {

constexpr uint64_t kMaxRanks = 1u << 20;
constexpr uint64_t kLongestDelayNs = 3'600'000'000'000;

NameRef make_name(std::string_view text) { return std::make_shared<const std::string>(text); }
SigRef make_sig(std::string_view bytes) { return Signature::parse(bytes); }

// As runs of consecutive ranks: one run for all ranks of a host, as a rule.
void put_ranks(Writer& w, const RankSet& ranks) {
  uint64_t runs = 0;
  Rank first = 0, end = -1, at = 0;
  ranks.for_each([&](Rank r) {
    if (r != end) ++runs;
    end = r + 1;
  });
  w.varint(runs);
  const auto put_run = [&] {
    if (end < 0) return;
    w.varint(static_cast<uint64_t>(first - at));
    w.varint(static_cast<uint64_t>(end - first));
    at = end;
  };
  end = -1;
  ranks.for_each([&](Rank r) {
    if (r != end) {
      put_run();
      first = r;
    }
    end = r + 1;
  });
  put_run();
}

RankSet get_ranks(Reader& r) {
  RankSet ranks;
  uint64_t at = 0;
  for (uint64_t n = r.count(); n > 0; --n) {
    const uint64_t skip = r.varint(), length = r.varint();
    if (skip > kMaxRanks || length == 0 || length > kMaxRanks || at + skip + length > kMaxRanks)
      throw WireError("control message: absurd list of ranks");
    at += skip;
    ranks.insert_range(static_cast<Rank>(at), static_cast<Rank>(at + length));
    at += length;
  }
  if (ranks.empty()) throw WireError("control message: without a sender");
  return ranks;
}

template <typename M>
constexpr auto kLastType = UpMessage::Dissolved;
template <>
constexpr auto kLastType<Entry> = Entry::Tune;

template <typename T>
T checked(uint8_t v, T last) {
  if (v > static_cast<uint8_t>(last)) throw WireError("control message: unknown type " + std::to_string(v));
  return static_cast<T>(v);
}

// Writes the fields of a message.
class Put {
 public:
  Put(Writer& w, DictionaryEncoder& names, DictionaryEncoder& sigs) : w_(w), names_(names), sigs_(sigs) {}

  template <typename T>
  void number(T v) {
    w_.varint(static_cast<uint64_t>(v));
  }
  void flag(bool v) { w_.u8(v ? 1 : 0); }
  void text(const std::string& v) { w_.bytes(v); }
  void report(const std::string& v) { w_.bytes(v); }
  void name(const NameRef& v) { w_.bytes(*v); }
  void optional_name(const NameRef& v) { w_.bytes(v ? *v : ""); }
  void known_name(const NameRef& v) { names_.put(w_, *v, true); }
  void members(const std::vector<Rank>& v) {
    w_.varint(v.size());
    for (const Rank m : v) number(m);
  }
  void item(const Item& v) {
    // A name that does not come again would only displace useful ones. Its signature may come again, but not one
    // with digests of weights.
    names_.put(w_, *v.name, v.sig->fields().repeats);
    sigs_.put(w_, v.sig->bytes(), !v.sig->has_weights());
  }
  void items(const std::vector<Item>& v) {
    w_.varint(v.size());
    for (const Item& one : v) item(one);
  }
  void definition(bool defines, uint32_t batch) { w_.varint(defines ? batch + uint64_t{1} : 0); }
  void delay(int64_t ns) { number(ns); }

 private:
  Writer& w_;
  DictionaryEncoder &names_, &sigs_;
};

// Reads the fields of a message, and checks them.
class Get {
 public:
  Get(Reader& r, DictionaryDecoder<NameRef>& names, DictionaryDecoder<SigRef>& sigs)
      : r_(r), names_(names), sigs_(sigs) {}

  template <typename T>
  void number(T& v) {
    v = r_.number<T>();
  }
  void flag(bool& v) { v = r_.u8() != 0; }
  void text(std::string& v) { v = r_.bytes(); }
  void report(std::string& v) {
    v = r_.bytes();
    if (v.size() > kLongestReport) throw WireError("control message: a report that is too long");
  }
  void name(NameRef& v) { v = make_name(r_.bytes()); }
  void optional_name(NameRef& v) {
    if (const auto text = r_.bytes(); !text.empty()) v = make_name(text);
  }
  void known_name(NameRef& v) { v = names_.get(r_, make_name); }
  void members(std::vector<Rank>& v) {
    v = r_.list([&] { return r_.number<Rank>(); });
  }
  void item(Item& v) {
    v.name = names_.get(r_, make_name);
    v.sig = sigs_.get(r_, make_sig);
  }
  void items(std::vector<Item>& v) {
    v = r_.list([&] {
      Item one;
      item(one);
      return one;
    });
  }
  void definition(bool& defines, uint32_t& batch) {
    const uint64_t v = r_.varint();
    if (v > uint64_t{1} << 32) throw WireError("control message: a known batch out of turn");
    defines = v != 0;
    batch = defines ? static_cast<uint32_t>(v - 1) : 0;
  }
  void delay(int64_t& ns) {
    const uint64_t v = r_.varint();
    if (v > kLongestDelayNs) throw WireError("control message: a coalescing delay of more than an hour");
    ns = static_cast<int64_t>(v);
  }

 private:
  Reader& r_;
  DictionaryDecoder<NameRef>& names_;
  DictionaryDecoder<SigRef>& sigs_;
};

// The fields of each message, in their order on the wire: `M` is const for Put.
template <typename Codec, typename M>
void fields(Codec c, M& m)
  requires std::same_as<std::remove_const_t<M>, UpMessage>
{
  switch (m.type) {
    case UpMessage::Ready:
      c.number(m.set), c.flag(m.urgent), c.item(m.item);
      break;
    case UpMessage::Want:
      c.number(m.set), c.known_name(m.item.name);
      break;
    case UpMessage::Poison:
      c.number(m.set), c.name(m.item.name), c.text(m.text);
      break;
    case UpMessage::Arrive:
    case UpMessage::AskDissolve:
    case UpMessage::Dissolved:
      c.number(m.batch), c.number(m.gen);
      break;
    case UpMessage::Join:
      break;
    case UpMessage::Leave:
      c.text(m.text);
      break;
    case UpMessage::Snapshot:
      c.number(m.batch), c.report(m.text);
      break;
  }
}

template <typename Codec, typename E>
void fields(Codec c, E& e)
  requires std::same_as<std::remove_const_t<E>, Entry>
{
  switch (e.type) {
    case Entry::Exec:
      c.number(e.set), c.definition(e.defines, e.batch), c.items(e.items);
      break;
    case Entry::Run:
    case Entry::Dissolve:
      c.number(e.batch), c.number(e.gen);
      break;
    case Entry::Fail:
      c.number(e.set), c.name(e.name), c.text(e.text), c.members(e.poisoners);
      break;
    case Entry::Joined:
      c.number(e.rank);
      break;
    case Entry::Close:
      c.number(e.rank), c.text(e.text);
      break;
    case Entry::AddSet:
      c.number(e.set), c.members(e.members), c.optional_name(e.name);
      break;
    case Entry::RemoveSet:
      c.number(e.set), c.optional_name(e.name);
      break;
    case Entry::SnapshotRequest:
      c.number(e.batch), c.members(e.members);
      break;
    case Entry::Report:
      c.members(e.members), c.report(e.text);
      break;
    case Entry::Observe:
      c.number(e.batch), c.text(e.text);
      break;
    case Entry::SnapshotOf:
      c.members(e.members), c.number(e.rank), c.report(e.text);
      break;
    case Entry::Tune:
      c.delay(e.coalesce_ns);
      break;
  }
}

}  // namespace

std::string members_set_name(const std::vector<int32_t>& members, std::string_view label) {
  std::string name(kMembersSet);
  for (size_t i = 0; i < members.size(); ++i) name += (i ? "," : "") + std::to_string(members[i]);
  return name.append("/").append(label);
}

std::vector<int32_t> members_that_ask(const std::string& name) {
  std::vector<int32_t> members;
  if (!name.starts_with(kMembersSet)) return members;
  const char *at = name.data() + kMembersSet.size(), *const end = name.data() + name.size();
  for (;;) {
    Rank r = -1;
    const auto [next, error] = std::from_chars(at, end, r);
    if (error != std::errc() || r < 0 || next == end || (*next != ',' && *next != '/') ||
        (!members.empty() && r <= members.back()))
      throw WireError("control message: a process set with an absurd list of members");
    members.push_back(r);
    if (*next == '/') return members;
    at = next + 1;
  }
}

namespace {
constexpr std::string_view kOfSet = ".set";

bool names_pair(const std::string& name) {
  return name.starts_with(kMembersSet) && name.ends_with("/" + std::string(kPair));
}
}  // namespace

std::string message_name(const std::string& name, Rank from, Rank to, SetId set) {
  std::string full = name + "." + std::to_string(from) + "-" + std::to_string(to);
  return set == 0 ? full : full.append(kOfSet) + std::to_string(set);
}

SetId set_of_message(const std::string& name) {
  SetId set = 0;
  const size_t at = name.rfind(kOfSet);
  if (at == name.npos) return 0;
  const char *const first = name.data() + at + kOfSet.size(), *const end = name.data() + name.size();
  const auto [next, error] = std::from_chars(first, end, set);
  return error == std::errc() && next == end ? set : 0;
}

bool is_pair(const NameRef& name) { return name && names_pair(*name); }

std::string shown_name(base::OpKind kind, const std::string& name) {
  if (!base::changes_sets(kind)) return name;
  if (!names_pair(name)) return base::op_name(kind);
  const std::vector<int32_t> two = members_that_ask(name);
  return "first message of ranks " + std::to_string(two.front()) + " and " + std::to_string(two.back());
}

template <typename M>
void Encoder<M>::put(std::string& out, const M& m) {
  Writer w(out);
  w.u8(m.type);
  if constexpr (std::same_as<M, UpMessage>) put_ranks(w, m.ranks);
  fields(Put(w, names_, sigs_), m);
}

template <typename M>
M Decoder<M>::get(Reader& r) {
  M m;
  m.type = checked(r.u8(), kLastType<M>);
  if constexpr (std::same_as<M, UpMessage>) m.ranks = get_ranks(r);
  fields(Get(r, names_, sigs_), m);
  return m;
}

template class Encoder<UpMessage>;
template class Decoder<UpMessage>;
template class Encoder<Entry>;
template class Decoder<Entry>;

}  // namespace hvd::agreement
