// One process's place in the control tree: its Participant, on rank 0 the Coordinator, and the links to its neighbours.
//
// Node carries messages between them: up through the parent link or into the local coordinator, log entries down to the
// children before they are replayed here. It has no thread and no clock; the thread that drives the engine calls it.
// The protocol is tested with N nodes in one process, joined by queues.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/coordinator.h"
#include "engine/agreement/link.h"
#include "engine/agreement/merger.h"
#include "engine/agreement/participant.h"
#include "engine/base/own_pages.h"

namespace hvd::agreement {

struct NodeConfig {
  Rank rank = 0, world = 1;
  uint32_t cache_capacity = 1024;
  FusionConfig fusion;
  AutotuneConfig autotune;                // on the root
  int64_t dissolve_after_ns = 1'000'000;  // how long this rank may hold part of a known batch (R5)
  uint32_t repeats_before_known = 3;
  bool known_batches = true;
  recorder::Observer* observer = nullptr;  // on the root
  // How long an inner node may keep a message of one rank of its subtree until the other ranks say the same (R13).
  int64_t merge_ns = 5'000'000;
  // A neighbour that begins a control message and sends no further byte of it for so long ends the job.
  int64_t unfinished_frame_ns = 30'000'000'000;
};

class Node final : private Participant::Outbox, private Coordinator::Log {
 public:
  // The node's owner: receives the participant's events, and the two of the node itself.
  struct Host : Participant::Events {
    // The first cause of an abort that this node learns of, once (R12).
    virtual void aborted(const std::string& cause) = 0;
    virtual void link_lost(Rank peer, const std::string& why) = 0;
    virtual void warn(const std::string&) {}  // a warning for the user, on the root
    // For stall reports (R14): the root asks what this rank does, and wants send_snapshot() with this number; another
    // rank has answered (on the root); the root's report is to be logged here.
    virtual void snapshot_requested(uint32_t) {}
    virtual void snapshot_received(Rank, uint32_t, const std::string&) {}
    virtual void report_received(const std::string&) {}
    // The snapshot of another rank, for which this rank has asked the root.
    virtual void snapshot_for_doctor(Rank, const std::string&) {}
  };

  // `parent` is null on the root.
  Node(NodeConfig config, std::unique_ptr<Link> parent, std::vector<std::unique_ptr<Link>> children, Host& host);

  // As Participant's functions of these names.
  bool submit(SetId set, Item item, RequestRef request, Hurry hurry, int64_t now);
  void poison(SetId set, const std::string& name, const std::string& text) { me_.poison(set, name, text); }
  void wanted(SetId set, const std::string& name) { me_.wanted(set, name); }
  void join() { me_.join(); }
  bool has_joined() const { return me_.has_joined(); }
  void leave(const std::string& text) { me_.leave(text); }

  // For stall reports (R14). On the root: asks `ranks` for their snapshots, and has `ranks` log a text. On any rank:
  // answers.
  void request_snapshots(uint32_t number, std::vector<Rank> ranks);
  void report(std::vector<Rank> ranks, std::string text);
  // On the root: passes the snapshot of `from` on to `asker`.
  void forward_snapshot(Rank asker, Rank from, std::string text);
  void send_snapshot(uint32_t number, std::string text);

  // Reads all links, lets the coordinator decide, sends messages, replays entries. Returns whether anything happened.
  bool step(int64_t now);
  // True when no message waits to be sent.
  bool flushed() const;
  int64_t next_deadline() const;

  // Tells all neighbours, once; the host receives aborted() unless it already has.
  void abort(const std::string& cause);
  bool is_aborted() const { return aborted_; }
  bool is_closed() const { return me_.is_closed(); }
  // The neighbour is known to be dead: nothing is kept for it any more.
  void forget(Rank peer);

  // Messages that this node has sent up, and entries that it has replayed.
  uint64_t messages_up() const { return messages_up_; }
  uint64_t entries() const { return entries_; }
  Coordinator* coordinator() { return coordinator_.get(); }
  const std::vector<Link*>& links() const { return links_; }

 private:
  // Participant::Outbox
  void send(UpMessage m) override { towards_root(std::move(m), now_); }
  // Coordinator::Log
  void append(Entry e) override;
  void warn(const std::string& text) override { host_.warn(text); }

  void towards_root(UpMessage m, int64_t now);
  void send_up(const UpMessage& m);
  void answer_host(const Entry& e);
  bool read_links(int64_t now);
  template <typename OnFrame>
  bool read(Link& link, int64_t now, OnFrame&& on_frame);
  void on_up_frame(size_t child, std::string_view payload, int64_t now);
  void on_down_frame(std::string_view payload);
  bool drain(int64_t now);
  void send_down();
  void flush(int64_t now);
  void lose(Link& link, const std::string& why);
  std::string refusal(Rank sender, const std::string& why) const;

  NodeConfig config_;
  Host& host_;
  Participant me_;
  std::unique_ptr<Coordinator> coordinator_;  // on the root
  std::unique_ptr<Merger> merger_;            // on inner nodes
  std::unique_ptr<Link> parent_;
  std::vector<std::unique_ptr<Link>> children_;
  std::vector<Link*> links_;

  base::OwnPages pages_;  // of the encoders and decoders
  Encoder<UpMessage> up_encoder_;
  std::vector<Decoder<UpMessage>> up_decoders_;  // one per child
  Encoder<Entry> entry_encoder_;
  Decoder<Entry> entry_decoder_;
  std::string up_frame_, down_frame_;
  bool up_urgent_ = false;                // the parent must be woken for up_frame_ at once
  int64_t parent_asleep_since_ = kNever;  // sent to the parent without waking it
  std::deque<UpMessage> to_coordinator_;
  std::deque<Entry> to_replay_;
  int64_t now_ = 0;  // of the call under way
  uint64_t messages_up_ = 0, entries_ = 0;
  bool aborted_ = false;
  std::vector<RankSet> below_;  // the ranks that each child speaks for
  Rank sender_ = 0;             // of the message or entry under way, for the cause of an abort
};

}  // namespace hvd::agreement
