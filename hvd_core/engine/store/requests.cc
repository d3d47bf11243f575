// The requests of the store's clients: they are read from a connection's buffer, carried out on the table of values,
// and answered into the connection's other buffer. See service.h.
#include <sys/epoll.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "engine/observe/log.h"
#include "engine/store/service.h"
#include "engine/store/store_server.h"

namespace hvd::store {
namespace {

enum Op : uint8_t { kSet = 1, kGet = 2, kAdd = 3, kDel = 4, kWill = 5, kAny = 6, kGather = 7, kAbsent = 8, kClear = 9 };

constexpr size_t kMostAwaited = 8;  // keys of one ANY
constexpr int64_t kForEverMs = int64_t{1} << 40;

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

template <class T>
std::string_view bytes_of(const T& v) {
  return {reinterpret_cast<const char*>(&v), sizeof v};
}

// Appends the keys of an ANY after its first: u16 length | bytes, each.
bool more_keys(std::string_view payload, std::vector<std::string>* keys) {
  while (!payload.empty()) {
    if (payload.size() < 2 || keys->size() == kMostAwaited) return false;
    const size_t bytes = number_at<uint16_t>(payload, 0);
    if (bytes > kMostKeyBytes || bytes > payload.size() - 2) return false;
    const std::string_view key = payload.substr(2, bytes);
    if (std::find(keys->begin(), keys->end(), key) != keys->end()) return false;  // a client asks once for a key
    keys->emplace_back(key);
    payload.remove_prefix(2 + bytes);
  }
  return true;
}

}  // namespace

bool Service::answer_all(Connection& c) {
  size_t at = 0;
  bool fine = true;
  while (fine && !c.handshake && (!c.waits || c.waits_for_any) && c.unsent.size() - c.sent < kMostUnsent &&
         c.received.size() - at >= 4) {
    const size_t size = number_at<uint32_t>(c.received, at);
    why_ = "a request of a wrong size";
    fine = size >= 3 && size <= kMostRequestBytes;
    const size_t tag = c.seals ? sealing::FrameSeal::kTagBytes : 0;
    if (!fine || c.received.size() - at < 4 + size + tag) break;
    char* const start = c.received.data() + at + 4;
    why_ = "a request that was changed on the way";
    fine = !c.seals || c.seals->in.open(static_cast<uint32_t>(size), start, size, start + size);
    if (!fine) {
      // The client learns no more than the end of its connection, which has other causes too.
      observe::log(observe::Level::Error, std::string("store: the connection of a rank is closed: ") + why_);
      break;
    }
    if (c.waits) {  // the client's next request ends an ANY
      stop_waiting(c);
      reply(c, kTimeout);
    }
    const std::string request(start, size);
    at += 4 + size + tag;
    fine = answer(c, request);
  }
  c.received.erase(0, at);
  if (c.received.empty()) c.received.shrink_to_fit();
  return fine;
}

bool Service::answer(Connection& c, std::string_view request) {
  const uint8_t op = static_cast<uint8_t>(request[0]);
  const size_t key_bytes = number_at<uint16_t>(request, 1);
  why_ = "a key or a payload of a wrong size";
  if (key_bytes > kMostKeyBytes || 3 + key_bytes > request.size()) return false;
  std::string key(request.substr(3, key_bytes));
  const std::string_view payload = request.substr(3 + key_bytes);
  if ((op == kGet || op == kAdd) && payload.size() != sizeof(int64_t)) return false;
  if (op == kAbsent && payload.size() != sizeof(uint32_t)) return false;
  switch (op) {
    case kSet:
      reply(c, kOk);
      set(key, std::string(payload));
      break;
    case kGet:
      get(c, std::move(key), number_at<int64_t>(payload, 0));
      break;
    case kAdd:
      add(c, key, number_at<int64_t>(payload, 0));
      break;
    case kDel:
      values_.erase(key);
      reply(c, kOk);
      break;
    case kWill:
      c.will_key = std::move(key);
      c.will = payload;
      reply(c, kOk);
      break;
    case kAny: {
      std::vector<std::string> keys{std::move(key)};
      if (!more_keys(payload, &keys)) return false;
      any(c, std::move(keys));
      break;
    }
    case kGather:
      return gather(c, key, payload);
    case kAbsent:
      absent(c, key, number_at<uint32_t>(payload, 0));
      break;
    case kClear:
      clear(key);
      reply(c, kOk);
      break;
    default:
      reply(c, kError, "unknown operation " + std::to_string(op));
  }
  return true;
}

void Service::get(Connection& c, std::string key, int64_t timeout_ms) {
  if (const auto found = values_.find(key); found != values_.end()) return reply(c, kOk, found->second);
  if (timeout_ms == 0) return reply(c, kTimeout);
  waiting_[key].push_back(&c);
  c.awaited = {std::move(key)};
  c.waits = true;
  if (timeout_ms > 0 && timeout_ms < kForEverMs) set_timer(c, observe::now_ns() + timeout_ms * 1'000'000);
}

void Service::any(Connection& c, std::vector<std::string> keys) {
  for (size_t i = 0; i < keys.size(); ++i)
    if (const auto found = values_.find(keys[i]); found != values_.end())
      return reply(c, kOk, std::string(1, static_cast<char>(i)) + found->second);
  for (const std::string& key : keys) waiting_[key].push_back(&c);
  c.awaited = std::move(keys);
  c.waits = c.waits_for_any = true;
}

void Service::add(Connection& c, const std::string& key, int64_t delta) {
  int64_t total = 0;
  bool fine = true;
  if (const auto found = values_.find(key); found != values_.end()) {
    const char *const first = found->second.data(), *const last = first + found->second.size();
    const auto [end, error] = std::from_chars(first, last, total);
    fine = error == std::errc{} && end == last;
  }
  if (!fine || __builtin_add_overflow(total, delta, &total))
    return reply(c, kError, "the value is not a number of 64 bits");
  reply(c, kOk, bytes_of(total));
  set(key, std::to_string(total));
}

bool Service::gather(Connection& c, const std::string& key, std::string_view payload) {
  std::optional<Gather::Part> part = Gather::parse(payload);
  why_ = "a part of a gathered value of a wrong form";
  if (!part) return false;
  Gather& to = gathers_[key];
  const bool is_new = to.add(*part);
  if (is_new && !part->own.empty()) set(key + '/' + std::to_string(part->members.front()), part->own);
  reply(c, kOk, std::string(1, is_new ? 1 : 0));
  if (!is_new) return true;
  to.keep(std::move(*part));
  if (to.is_complete())
    for (auto& [label, value] : to.take()) set(label.empty() ? key : key + ':' + label, std::move(value));
  return true;
}

void Service::absent(Connection& c, const std::string& key, uint32_t members) {
  const auto found = gathers_.find(key);
  std::string text;
  for (uint32_t i = 0; i < std::min(members, kMostMembers); ++i)
    if (found == gathers_.end() || !found->second.has(i)) text += bytes_of(i);
  reply(c, kOk, text);
}

void Service::clear(const std::string& prefix) {
  const auto begins = [&prefix](const auto& item) { return item.first.starts_with(prefix); };
  std::erase_if(values_, begins);
  std::erase_if(gathers_, begins);
}

void Service::set(const std::string& key, std::string value) {
  std::string& kept = values_[key];
  kept = std::move(value);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  const std::vector<Connection*> those = std::move(found->second);
  waiting_.erase(found);
  for (Connection* c : those) {
    clear_timer(*c);
    std::string answer;
    if (c->waits_for_any) answer.push_back(static_cast<char>(std::ranges::find(c->awaited, key) - c->awaited.begin()));
    stop_waiting(*c);
    reply(*c, kOk, answer + kept);
  }
  // Their next requests may change the store again, so they come after all answers, on the turn of their descriptors.
  for (Connection* c : those) watch(*c, EPOLLIN | EPOLLOUT);
}

void Service::reply(Connection& c, uint8_t status, std::string_view payload) {
  const auto size = static_cast<uint32_t>(1 + payload.size());
  c.unsent += bytes_of(size);
  if (c.seals) {
    std::string body(1, static_cast<char>(status));
    body += payload;
    c.seals->out.seal(size, body, &c.unsent);
  } else {
    c.unsent.push_back(static_cast<char>(status));
    c.unsent += payload;
  }
}

void Service::stop_waiting(Connection& c) {
  c.waits = c.waits_for_any = false;
  for (const std::string& key : c.awaited) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) continue;
    std::erase(found->second, &c);
    if (found->second.empty()) waiting_.erase(found);
  }
  c.awaited.clear();
}

// A value that is there stays: the first failure is the one that counts.
void Service::carry_out_will(Connection& c) {
  const std::string key = std::exchange(c.will_key, {}), value = std::exchange(c.will, {});
  if (!key.empty() && !values_.contains(key)) set(key, value);
}

}  // namespace hvd::store
