// Encoding of the control plane's messages. See messages.h.
#include "engine/agreement/messages.h"

#include <charconv>
#include <utility>

namespace hvd::agreement {
namespace {

constexpr uint64_t kMaxRanks = 1u << 20;
constexpr uint64_t kLongestDelayNs = 3'600'000'000'000;

NameRef make_name(std::string_view text) { return std::make_shared<const std::string>(text); }
SigRef make_sig(std::string_view bytes) { return Signature::parse(bytes); }

void put_item(Writer& w, DictionaryEncoder& names, DictionaryEncoder& sigs, const Item& item) {
  // A name that does not come again would only displace useful ones. Its signature may come again, but not one
  // with digests of weights.
  names.put(w, *item.name, item.sig->fields().repeats);
  sigs.put(w, item.sig->bytes(), !item.sig->has_weights());
}

Item get_item(Reader& r, DictionaryDecoder<NameRef>& names, DictionaryDecoder<SigRef>& sigs) {
  Item item;
  item.name = names.get(r, make_name);
  item.sig = sigs.get(r, make_sig);
  return item;
}

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

void put_members(Writer& w, const std::vector<Rank>& members) {
  w.varint(members.size());
  for (Rank m : members) w.varint(static_cast<uint64_t>(m));
}

std::vector<Rank> get_members(Reader& r) {
  return r.list([&] { return r.number<Rank>(); });
}

std::string_view report_text(Reader& r) {
  const std::string_view text = r.bytes();
  if (text.size() > kLongestReport) throw WireError("control message: a report that is too long");
  return text;
}

template <typename T>
T checked(uint8_t v, T last) {
  if (v > static_cast<uint8_t>(last)) throw WireError("control message: unknown type " + std::to_string(v));
  return static_cast<T>(v);
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

void UpEncoder::put(std::string& out, const UpMessage& m) {
  Writer w(out);
  w.u8(m.type);
  put_ranks(w, m.ranks);
  switch (m.type) {
    case UpMessage::Ready:
      w.varint(m.set);
      w.u8(m.urgent ? 1 : 0);
      put_item(w, names_, sigs_, m.item);
      break;
    case UpMessage::Want:
      w.varint(m.set);
      names_.put(w, *m.item.name, true);
      break;
    case UpMessage::Poison:
      w.varint(m.set);
      w.bytes(*m.item.name);
      w.bytes(m.text);
      break;
    case UpMessage::Arrive:
    case UpMessage::AskDissolve:
    case UpMessage::Dissolved:
      w.varint(m.batch);
      w.varint(m.gen);
      break;
    case UpMessage::Join:
      break;
    case UpMessage::Leave:
      w.bytes(m.text);
      break;
    case UpMessage::Told:
      w.varint(m.batch);
      w.bytes(m.text);
      break;
  }
}

UpMessage UpDecoder::get(Reader& r) {
  UpMessage m;
  m.type = checked(r.u8(), UpMessage::Dissolved);
  m.ranks = get_ranks(r);
  switch (m.type) {
    case UpMessage::Ready:
      m.set = r.number<SetId>();
      m.urgent = r.u8() != 0;
      m.item = get_item(r, names_, sigs_);
      break;
    case UpMessage::Want:
      m.set = r.number<SetId>();
      m.item.name = names_.get(r, make_name);
      break;
    case UpMessage::Poison:
      m.set = r.number<SetId>();
      m.item.name = make_name(r.bytes());
      m.text = r.bytes();
      break;
    case UpMessage::Arrive:
    case UpMessage::AskDissolve:
    case UpMessage::Dissolved:
      m.batch = r.number<uint32_t>();
      m.gen = r.number<uint32_t>();
      break;
    case UpMessage::Join:
      break;
    case UpMessage::Leave:
      m.text = r.bytes();
      break;
    case UpMessage::Told:
      m.batch = r.number<uint32_t>();
      m.text = report_text(r);
      break;
  }
  return m;
}

void EntryEncoder::put(std::string& out, const Entry& e) {
  Writer w(out);
  w.u8(e.type);
  switch (e.type) {
    case Entry::Exec:
      w.varint(e.set);
      w.varint(e.defines ? e.batch + uint64_t{1} : 0);
      w.varint(e.items.size());
      for (const auto& item : e.items) put_item(w, names_, sigs_, item);
      break;
    case Entry::Run:
    case Entry::Dissolve:
      w.varint(e.batch);
      w.varint(e.gen);
      break;
    case Entry::Fail:
      w.varint(e.set);
      w.bytes(*e.name);
      w.bytes(e.text);
      put_members(w, e.poisoners);
      break;
    case Entry::Joined:
      w.varint(static_cast<uint64_t>(e.rank));
      break;
    case Entry::Close:
      w.varint(static_cast<uint64_t>(e.rank));
      w.bytes(e.text);
      break;
    case Entry::AddSet:
      w.varint(e.set);
      put_members(w, e.members);
      w.bytes(e.name ? *e.name : "");
      break;
    case Entry::RemoveSet:
      w.varint(e.set);
      w.bytes(e.name ? *e.name : "");
      break;
    case Entry::Look:
      w.varint(e.batch);
      put_members(w, e.members);
      break;
    case Entry::Report:
      put_members(w, e.members);
      w.bytes(e.text);
      break;
    case Entry::Observe:
      w.varint(e.batch);
      w.bytes(e.text);
      break;
    case Entry::Shown:
      put_members(w, e.members);
      w.varint(static_cast<uint64_t>(e.rank));
      w.bytes(e.text);
      break;
    case Entry::Tune:
      w.varint(static_cast<uint64_t>(e.coalesce_ns));
      break;
  }
}

Entry EntryDecoder::get(Reader& r) {
  Entry e;
  e.type = checked(r.u8(), Entry::Tune);
  switch (e.type) {
    case Entry::Exec: {
      e.set = r.number<SetId>();
      const auto defines = r.varint();
      e.defines = defines != 0;
      if (defines > uint64_t{1} << 32) throw WireError("control message: a known batch out of turn");
      e.batch = e.defines ? static_cast<uint32_t>(defines - 1) : 0;
      e.items = r.list([&] { return get_item(r, names_, sigs_); });
      break;
    }
    case Entry::Run:
    case Entry::Dissolve:
      e.batch = r.number<uint32_t>();
      e.gen = r.number<uint32_t>();
      break;
    case Entry::Fail:
      e.set = r.number<SetId>();
      e.name = make_name(r.bytes());
      e.text = r.bytes();
      e.poisoners = get_members(r);
      break;
    case Entry::Joined:
      e.rank = r.number<Rank>();
      break;
    case Entry::Close:
      e.rank = r.number<Rank>();
      e.text = r.bytes();
      break;
    case Entry::AddSet:
      e.set = r.number<SetId>();
      e.members = get_members(r);
      if (const auto name = r.bytes(); !name.empty()) e.name = make_name(name);
      break;
    case Entry::RemoveSet:
      e.set = r.number<SetId>();
      if (const auto name = r.bytes(); !name.empty()) e.name = make_name(name);
      break;
    case Entry::Look:
      e.batch = r.number<uint32_t>();
      e.members = get_members(r);
      break;
    case Entry::Report:
      e.members = get_members(r);
      e.text = report_text(r);
      break;
    case Entry::Observe:
      e.batch = r.number<uint32_t>();
      e.text = r.bytes();
      break;
    case Entry::Shown:
      e.members = get_members(r);
      e.rank = r.number<Rank>();
      e.text = report_text(r);
      break;
    case Entry::Tune:
      if (const uint64_t delay = r.varint(); delay <= kLongestDelayNs)
        e.coalesce_ns = static_cast<int64_t>(delay);
      else
        throw WireError("control message: a coalescing delay of more than an hour");
      break;
  }
  return e;
}

}  // namespace hvd::agreement
