// Carrying messages between the participant, the coordinator and the neighbours. See node.h.
#include "engine/agreement/node.h"

#include <algorithm>
#include <utility>

namespace hvd::agreement {
namespace {
// How often a node looks at a frame that has begun and does not end.
constexpr int64_t kLookNs = 1'000'000'000;
}  // namespace

Node::Node(NodeConfig config, std::unique_ptr<Link> parent, std::vector<std::unique_ptr<Link>> children, Host& host)
    : config_(config),
      host_(host),
      me_(config.rank, config.world, config.dissolve_after_ns, *this, host),
      parent_(std::move(parent)),
      children_(std::move(children)),
      up_encoder_(config.cache_capacity, pages_.get()),
      entry_encoder_(config.cache_capacity, pages_.get()),
      entry_decoder_(pages_.get()) {
  for (size_t i = 0; i < children_.size(); ++i) up_decoders_.emplace_back(pages_.get());
  if (!parent_) {
    CoordinatorConfig c;
    c.world = config.world;
    c.fusion = config.fusion;
    c.repeats_before_known = config.repeats_before_known;
    c.known_batches = config.known_batches;
    c.observer = config.observer;
    c.autotune = std::move(config.autotune);
    coordinator_.reset(new Coordinator(c, *this));
  } else {
    links_.push_back(parent_.get());
    if (!children_.empty()) {
      std::vector<Rank> subtree{config.rank};
      for (auto& c : children_) subtree.insert(subtree.end(), c->subtree.begin(), c->subtree.end());
      std::sort(subtree.begin(), subtree.end());
      merger_ =
          std::make_unique<Merger>(std::move(subtree), config.merge_ns, [this](const UpMessage& m) { send_up(m); });
    }
  }
  for (auto& c : children_) {
    links_.push_back(c.get());
    RankSet& below = below_.emplace_back();
    for (const Rank r : c->subtree) below.insert(r);
  }
}

bool Node::submit(SetId set, Item item, RequestRef request, Hurry hurry, int64_t now) {
  now_ = now;
  return me_.submit(set, std::move(item), std::move(request), hurry, now);
}

void Node::towards_root(UpMessage m, int64_t now) {
  if (coordinator_)
    to_coordinator_.push_back(std::move(m));
  else if (merger_)
    merger_->receive(std::move(m), now);
  else
    send_up(m);
}

void Node::send_up(const UpMessage& m) {
  up_urgent_ |= (m.type != UpMessage::Ready && m.type != UpMessage::Dissolved) || m.urgent;
  up_encoder_.put(up_frame_, m);
  ++messages_up_;
}

int64_t Node::next_deadline() const {
  if (aborted_) return kNever;
  int64_t t = me_.next_deadline();
  if (coordinator_) t = std::min(t, coordinator_->next_deadline());
  if (merger_) t = std::min(t, merger_->next_deadline());
  if (parent_asleep_since_ != kNever) t = std::min(t, parent_asleep_since_ + config_.fusion.coalesce_ns / 2);
  for (const Link* link : links_)
    if (!link->lost && link->unfinished()) t = std::min(t, now_ + kLookNs);
  return t;
}

void Node::append(Entry e) {
  if (!children_.empty()) entry_encoder_.put(down_frame_, e);
  to_replay_.push_back(std::move(e));
}

void Node::request_snapshots(uint32_t number, std::vector<Rank> ranks) {
  append({.type = Entry::SnapshotRequest, .batch = number, .members = std::move(ranks)});
}

void Node::report(std::vector<Rank> ranks, std::string text) {
  append({.type = Entry::Report, .text = std::move(text), .members = std::move(ranks)});
}

void Node::forward_snapshot(Rank asker, Rank from, std::string text) {
  append({.type = Entry::SnapshotOf, .text = std::move(text), .members = {asker}, .rank = from});
}

void Node::send_snapshot(uint32_t number, std::string text) {
  UpMessage m = UpMessage::of(UpMessage::Snapshot, config_.rank);
  m.batch = number;
  m.text = std::move(text);
  towards_root(std::move(m), now_);
}

void Node::answer_host(const Entry& e) {
  if (is_closed() || std::find(e.members.begin(), e.members.end(), config_.rank) == e.members.end()) return;
  if (e.type == Entry::SnapshotRequest)
    host_.snapshot_requested(e.batch);
  else if (e.type == Entry::SnapshotOf)
    host_.snapshot_for_doctor(e.rank, e.text);
  else
    host_.report_received(e.text);
}

// Why this rank cannot go on with what `sender` has sent. All nodes read the root's log as it is, so that a node
// between them that has changed it is named too.
std::string Node::refusal(Rank sender, const std::string& why) const {
  std::string text = "rank " + std::to_string(config_.rank) + ": ";
  if (sender != config_.rank) text += "rank " + std::to_string(sender) + ": ";
  if (parent_ && sender == 0 && parent_->peer != 0) text += "(sent on by rank " + std::to_string(parent_->peer) + ") ";
  return text + why;
}

bool Node::step(int64_t now) {
  bool any = false;
  now_ = now;
  sender_ = config_.rank;
  try {
    me_.on_time(now);
    if (merger_) merger_->on_time(now);
    any = read_links(now);
    while (!aborted_ && drain(now)) any = true;
  } catch (const WireError& e) {
    abort(refusal(sender_, e.what()));
  } catch (const std::logic_error& e) {
    abort(refusal(sender_, std::string("broken protocol: ") + e.what()));
  }
  flush(now);
  return any;
}

// One round: the coordinator takes the messages and forms batches; the entries go down; then they are replayed here.
bool Node::drain(int64_t now) {
  bool any = false;
  if (coordinator_) {
    while (!to_coordinator_.empty()) {
      UpMessage m = std::move(to_coordinator_.front());
      to_coordinator_.pop_front();
      sender_ = m.rank();
      if (m.type != UpMessage::Snapshot)
        coordinator_->receive(m, now);
      else if (m.rank() < config_.world)
        host_.snapshot_received(m.rank(), m.batch, m.text);
      any = true;
    }
    sender_ = config_.rank;
    coordinator_->form_batches(now);
    send_down();
  }
  while (!to_replay_.empty()) {
    Entry e = std::move(to_replay_.front());
    to_replay_.pop_front();
    ++entries_;
    sender_ = 0;
    if (merger_) merger_->see(e);
    me_.replay(e);
    if (e.type == Entry::SnapshotRequest || e.type == Entry::Report || e.type == Entry::SnapshotOf) answer_host(e);
    if (e.type == Entry::Tune) {
      config_.fusion.coalesce_ns = e.coalesce_ns;
      me_.set_dissolve_delay(e.coalesce_ns);
    }
    any = true;
  }
  return any;
}

void Node::send_down() {
  if (down_frame_.empty()) return;
  for (auto& c : children_) {
    if (c->lost) continue;
    c->send_frame(down_frame_);
    try {
      c->flush(true);
    } catch (const ChannelClosed& e) {
      lose(*c, e.what());
    }
  }
  down_frame_.clear();
}

void Node::flush(int64_t now) {
  bool urgent = false;
  if (!up_frame_.empty()) {
    if (parent_ && !parent_->lost) parent_->send_frame(up_frame_);
    up_frame_.clear();
    // No caller waits yet. The parent finds the message by itself if it submits as often as this rank does. It is woken
    // when half of the coalescing delay has passed.
    if (!up_urgent_ && config_.fusion.coalesce_ns > 1)
      parent_asleep_since_ = std::min(parent_asleep_since_, now);
    else
      urgent = true;
    up_urgent_ = false;
  }
  const bool wake_parent = urgent || parent_asleep_since_ == kNever;
  for (Link* link : links_) {
    if (link->lost) continue;
    try {
      link->flush(wake_parent || link != parent_.get());
    } catch (const ChannelClosed& e) {
      lose(*link, e.what());
    }
  }
  if (parent_asleep_since_ == kNever) return;
  if (!parent_ || parent_->lost || parent_->channel().peer_has_read_all()) {
    parent_asleep_since_ = kNever;
  } else if (urgent || now >= parent_asleep_since_ + config_.fusion.coalesce_ns / 2) {
    parent_asleep_since_ = kNever;
    parent_->channel().wake_peer();
  }
}

bool Node::flushed() const {
  for (const Link* link : links_)
    if (!link->lost && !link->idle()) return false;
  return up_frame_.empty() && down_frame_.empty();
}

bool Node::read_links(int64_t now) {
  bool any = false;
  for (size_t i = 0; i < children_.size(); ++i)
    any |= read(*children_[i], now, [&](std::string_view frame) { on_up_frame(i, frame, now); });
  if (parent_) any |= read(*parent_, now, [&](std::string_view frame) { on_down_frame(frame); });
  return any;
}

template <typename OnFrame>
bool Node::read(Link& link, int64_t now, OnFrame&& on_frame) {
  if (link.lost) return false;
  const auto refuse = [&](const std::string& why) {
    abort(refusal(&link == parent_.get() ? 0 : link.peer, why));
    link.lost = true;  // what follows cannot be read either
  };
  try {
    const bool any = link.receive(on_frame, [&](std::string_view text) { abort(std::string(text)); });
    if (link.stalled_frame_ns(now) >= config_.unfinished_frame_ns)
      refuse("it has sent " + link.unfinished_text() + " of a control message, and nothing for " +
             std::to_string(config_.unfinished_frame_ns / 1'000'000'000) + " s");
    return any;
  } catch (const ChannelClosed& e) {
    lose(link, e.what());
  } catch (const WireError& e) {
    refuse(e.what());
  }
  return false;
}

void Node::on_up_frame(size_t child, std::string_view payload, int64_t now) {
  Reader r(payload);
  while (!r.done()) {
    UpMessage m = up_decoders_[child].get(r);
    if (!m.ranks.within(below_[child])) throw WireError("control message: in the name of another rank");
    towards_root(std::move(m), now);
  }
}

void Node::on_down_frame(std::string_view payload) {
  // All nodes read the same stream, so children get the same bytes, before anything is replayed here.
  down_frame_ = payload;
  send_down();
  Reader r(payload);
  while (!r.done()) to_replay_.push_back(entry_decoder_.get(r));
}

void Node::lose(Link& link, const std::string& why) {
  if (link.lost) return;
  link.lost = true;
  host_.link_lost(link.peer, why);
}

void Node::forget(Rank peer) {
  for (Link* link : links_)
    if (link->peer == peer) link->lost = true;
}

void Node::abort(const std::string& cause) {
  if (aborted_ || is_closed()) return;
  aborted_ = true;
  for (Link* link : links_)
    if (!link->lost) link->send_abort(cause);
  for (Link* link : links_) {
    if (link->lost) continue;
    try {
      link->flush(true);
    } catch (const ChannelClosed&) {
      link->lost = true;
    }
  }
  host_.aborted(cause);
}

}  // namespace hvd::agreement
