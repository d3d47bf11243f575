// See hostile_relay.h.
#include "hostile_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "engine/agreement/channel.h"
#include "engine/base/operations.h"
#include "hvd/backend_abi.h"

namespace hvd::native {

using namespace hvd::agreement;
using base::OpKind;

namespace {

int64_t strange_size(Rng& rng, int64_t right) {
  return rng.pick(std::vector<int64_t>{-1, -5, 0, 1, right + 1, right * 2, 1 << 16, int64_t{1} << 32, int64_t{1} << 40,
                                       int64_t{1} << 62, INT64_MAX, INT64_MIN});
}

}  // namespace

HostileRelay::HostileRelay(const Settings& settings)
    : upwards_(settings.hostile > settings.other),
      world_(static_cast<uint64_t>(settings.world)),
      rng_(settings.seed),
      up_out_(settings.cache_capacity),
      down_out_(settings.cache_capacity) {
  for (int* pair : {&fds_[0], &fds_[2]})
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "no socket pair");
  thread_ = std::thread([this] { run(); });
}

HostileRelay::~HostileRelay() {
  over_ = true;
  cut();
  thread_.join();
  for (int fd : fds_) ::close(fd);
}

void HostileRelay::cut() {
  for (int fd : fds_) ::shutdown(fd, SHUT_RDWR);
}

void HostileRelay::run() {
  Link hostile(std::make_unique<TcpChannel>(fds_[1]), 0, {}), other(std::make_unique<TcpChannel>(fds_[3]), 1, {});
  while (!over_) {
    pollfd both[] = {{fds_[1], POLLIN, 0}, {fds_[3], POLLIN, 0}};
    for (int i = 0; i < 2; ++i)
      if (!(i == 0 ? hostile : other).idle()) both[i].events |= POLLOUT;
    ::poll(both, 2, 20);
    try {
      while (pass_on(hostile, other) || pass_on(other, hostile)) {
      }
      hostile.flush(true), other.flush(true);
    } catch (const std::exception&) {  // one side has gone
      return cut();
    }
  }
}

bool HostileRelay::pass_on(Link& from, Link& to) {
  const bool from_hostile = to.peer == 1;
  const bool any = from.receive(
      [&](std::string_view frame) {
        if (!from_hostile) return to.send_frame(frame);
        if (muted_) return;
        to.send_frame(upwards_ ? changed_up(frame) : changed_down(frame));
      },
      [&](std::string_view text) {
        if (!from_hostile || !muted_) to.send_abort(text);
      });
  to.flush(true);
  return any;
}

std::string HostileRelay::changed_up(std::string_view frame) {
  std::string bytes;
  Reader r(frame);
  while (!r.done()) {
    UpMessage m = up_in_.get(r);
    ++messages;
    if (m.type == UpMessage::Ready && (seen_.size() < 20 || rng_.one_in(4))) seen_.push_back(m.item);
    const bool wrong = spoils();
    if (wrong) ++changed, change(m);
    if (wrong && rng_.one_in(12)) continue;  // never said
    up_out_.put(bytes, m);
    if (wrong && rng_.one_in(8)) up_out_.put(bytes, m);
  }
  return bytes;
}

std::string HostileRelay::changed_down(std::string_view frame) {
  std::string bytes;
  Reader r(frame);
  while (!r.done()) {
    Entry e = down_in_.get(r);
    ++messages;
    for (const Item& item : e.items)
      if (seen_.size() < 20 || rng_.one_in(4)) seen_.push_back(item);
    const bool wrong = spoils();
    if (wrong) ++changed, change(e);
    if (wrong && rng_.one_in(12)) continue;
    down_out_.put(bytes, e);
    if (wrong && rng_.one_in(8)) down_out_.put(bytes, e);
  }
  return bytes;
}

Item HostileRelay::invented() {
  if (!seen_.empty() && !rng_.one_in(4)) return rng_.pick(seen_);
  SignatureFields f;
  f.kind = rng_.pick(std::vector<OpKind>{OpKind::Allreduce, OpKind::Allgather, OpKind::Alltoall, OpKind::Barrier,
                                         OpKind::Broadcast, OpKind::CreateWindow, OpKind::Send});
  for (uint64_t n = rng_.below(3); n > 0; --n) f.tensors.push_back({HVD_FLOAT32, {4, 4}});
  const std::string name = rng_.pick(
      std::vector<std::string>{"invented", kSetsName, "#set/0,1/x", "#set/0/#pair", "#set/0,1/#pair", "#set/0,7/x"});
  return {std::make_shared<const std::string>(name), std::make_shared<const Signature>(std::move(f))};
}

SigRef HostileRelay::change(const SigRef& sig) {
  if (!sig) return sig;
  SignatureFields f = sig->fields();
  f.weights.clear();
  TensorSpec* const t = f.tensors.empty() ? nullptr : &f.tensors[rng_.below(f.tensors.size())];
  switch (rng_.below(10)) {
    case 0:
    case 1:
      if (t) t->dtype = static_cast<int32_t>(rng_.between(-1, HVD_DTYPE_COUNT));
      break;
    case 2:
    case 3:
      if (t && !t->shape.empty()) {
        int64_t& size = t->shape[rng_.below(t->shape.size())];
        size = strange_size(rng_, size);
      }
      break;
    case 4:
      if (t) t->shape.push_back(strange_size(rng_, 1));
      break;
    case 5:
      if (t) t->shape.clear();
      break;
    case 6:
      f.tensors.insert(f.tensors.end(), 1 + rng_.below(3), t ? TensorSpec(*t) : TensorSpec{HVD_FLOAT64, {100}});
      break;
    case 7:
      if (t) f.tensors.pop_back();
      break;
    case 8:
      f.root = any_rank() - 1;
      f.reduce_op = static_cast<int32_t>(rng_.between(-1, 8));
      break;
    default:
      do {
        f.kind = static_cast<OpKind>(rng_.below(base::kOpKinds));
      } while (f.kind == OpKind::Join);
  }
  if (f.kind == OpKind::AddProcessSet && rng_.one_in(2))
    f.ranks = rng_.pick(std::vector<std::vector<int32_t>>{{}, {0}, {1, 0}, {0, 0}, {0, 99}, {-1}});
  return std::make_shared<const Signature>(std::move(f));
}

void HostileRelay::change(UpMessage& m) {
  switch (rng_.below(8)) {
    case 0:
      m.ranks.insert(any_rank() % (1 << 18));
      break;
    case 1:
      m.ranks = {};
      m.ranks.insert(any_rank() % (1 << 18));
      break;
    case 2:
      m.set = static_cast<SetId>(rng_.below(4));
      break;
    case 3:
      m.batch = static_cast<uint32_t>(rng_.below(4)), m.gen = static_cast<uint32_t>(rng_.below(4));
      m.type = rng_.one_in(2) ? UpMessage::Arrive : UpMessage::AskDissolve;
      break;
    case 4:
      m.type = static_cast<UpMessage::Type>(rng_.below(8));
      m.item = invented();
      break;
    default:
      if (m.type != UpMessage::Ready) m.item = invented(), m.type = UpMessage::Ready;
      m.item.sig = change(m.item.sig);
  }
  if (!m.item.name) m.item = invented();
}

void HostileRelay::change(Entry& e) {
  const uint64_t what = rng_.below(12);
  if (what < 6 && e.type == Entry::Exec && !e.items.empty()) {
    Item& item = e.items[rng_.below(e.items.size())];
    if (what < 3) item.sig = change(item.sig);
    if (what == 3) e.items.push_back(invented());
    if (what == 4) e.items.erase(e.items.begin() + static_cast<ptrdiff_t>(rng_.below(e.items.size())));
    if (what == 5) e.items.push_back(rng_.pick(e.items));
    if (rng_.one_in(4)) e.defines = !e.defines, e.batch = static_cast<uint32_t>(rng_.below(3));
    return;
  }
  if (what < 6 && e.type == Entry::AddSet) {
    e.members = rng_.pick(std::vector<std::vector<Rank>>{
        {}, {0}, {1}, {1, 0}, {0, 0}, {0, 1}, {0, 1, 2, 3}, {any_rank()}, {0, any_rank()}});
    return;
  }
  if (what == 6) {
    e.set = static_cast<SetId>(rng_.below(4));
    return;
  }
  if (what == 7) {
    e.batch = static_cast<uint32_t>(rng_.below(4)), e.gen = static_cast<uint32_t>(rng_.below(4));
    return;
  }
  // Another entry. Not one that switches a timeline: its path is a file to write.
  Entry other;
  do {
    other.type = static_cast<Entry::Type>(rng_.below(13));
  } while (other.type == Entry::Observe);
  other.set = static_cast<SetId>(rng_.below(3));
  for (uint64_t n = rng_.below(4); n > 0; --n) other.items.push_back(invented());
  other.defines = rng_.one_in(4);
  other.batch = static_cast<uint32_t>(rng_.below(3)), other.gen = static_cast<uint32_t>(rng_.below(3));
  other.name = rng_.one_in(2) && other.type != Entry::Fail ? nullptr : invented().name;
  other.text = "said by a rank that is wrong";
  for (uint64_t n = rng_.below(4); n > 0; --n) other.members.push_back(any_rank());
  other.poisoners = other.members;
  other.rank = any_rank();
  other.coalesce_ns = static_cast<int64_t>(rng_.below(1'000'000));
  e = std::move(other);
}

}  // namespace hvd::native
