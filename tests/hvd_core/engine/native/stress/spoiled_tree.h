// A tree of real control nodes on a virtual clock that receive spoiled messages. Their host checks the rules that the
// engine relies on.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "engine/agreement/node.h"
#include "engine/base/operations.h"
#include "engine/calls/request.h"
#include "hvd/backend_abi.h"
#include "rng.h"
#include "spoiled_pipe.h"

namespace hvd::native {

using namespace hvd::agreement;

// The rules that the engine relies on, also with spoiled messages.
struct Host final : Node::Host {
  int world = 0;
  std::set<RequestRef> open;
  std::set<SetId> sets;  // besides that of all ranks
  bool spoiled = false;
  int ends = 0, aborts = 0;

  void over(const RequestRef& request) {
    if (request) require(open.erase(request) == 1, "a request was reported that is not under way");
  }
  void execute(SetId, std::vector<BatchItem> items) override {
    require(!items.empty(), "an empty batch");
    for (const auto& x : items) {
      require(x.item.name && x.item.sig, "a batch without names or signatures");
      over(x.request);
    }
  }
  void fail(const RequestRef& request, base::Failure, const std::string&) override { over(request); }
  void joined(Rank last) override { require(last >= 0 && last < world, "joined by a rank that does not exist"); }
  void closed(Rank, const std::string&) override { require(++ends == 1, "closed twice"); }
  void set_added(SetId set, const std::vector<Rank>& members, RequestRef request, const NameRef&) override {
    sets.insert(set);
    for (Rank r : members) require(r >= 0 && r < world, "a process set with a rank that does not exist");
    over(request);
  }
  void set_removed(SetId set, RequestRef request) override {
    sets.erase(set);
    over(request);
  }
  void aborted(const std::string& cause) override {
    require(++aborts == 1, "aborted twice");
    require(spoiled, "aborted for no reason: " + cause);
  }
  void link_lost(Rank, const std::string&) override {}
};

class Grove {
 public:
  Grove(Rng& rng, bool spoil_some) : rng_(rng), spoil_(spoil_some) {
    const auto parents = rng.pick(std::vector<std::vector<Rank>>{{-1, 0}, {-1, 0, 0}, {-1, 0, 1}, {-1, 0, 0, 2}});
    const auto n = parents.size();
    hosts_.resize(n);
    up_.resize(n);
    down_.resize(n);
    NodeConfig c;
    c.world = static_cast<Rank>(n);
    c.cache_capacity = rng.pick(std::vector<uint32_t>{0, 2, 64});
    c.fusion.threshold = rng.pick(std::vector<uint64_t>{0, 64, 1u << 20});
    c.repeats_before_known = 1;
    for (size_t r = 0; r < n; ++r) {
      hosts_[r].world = c.world;
      hosts_[r].spoiled = spoil_some;
      c.rank = static_cast<Rank>(r);
      std::unique_ptr<Link> parent;
      if (r > 0) parent = channel(up_[r], down_[r], parents[r], {});
      std::vector<std::unique_ptr<Link>> children;
      for (size_t k = r + 1; k < n; ++k)
        if (parents[k] == c.rank)
          children.push_back(channel(down_[k], up_[k], static_cast<Rank>(k), below(parents, k)));
      nodes_.push_back(std::make_unique<Node>(c, std::move(parent), std::move(children), hosts_[r]));
    }
  }

  void live(int steps) {
    for (int step = 0; step < steps; ++step) {
      act();
      now_ += rng_.pick(std::vector<int64_t>{0, 1'000, 2'000'000});
      nodes_[rng_.below(nodes_.size())]->step(now_);
      for (size_t r = 1; r < nodes_.size(); ++r)
        for (Pipe* p : {&up_[r], &down_[r]})
          if (rng_.below(10) < 7) p->deliver(rng_, spoil_ && rng_.one_in(40));
    }
    for (int round = 0; round < 60; ++round) {
      now_ += 1'000'000;
      for (auto& node : nodes_) node->step(now_);
      for (size_t r = 1; r < nodes_.size(); ++r) {
        up_[r].deliver(rng_, false);
        down_[r].deliver(rng_, false);
      }
    }
  }
  bool any_aborted() const {
    for (const Host& h : hosts_)
      if (h.aborts) return true;
    return false;
  }

 private:
  std::unique_ptr<Link> channel(Pipe& out, Pipe& in, Rank peer, std::vector<int32_t> subtree) {
    return std::make_unique<Link>(std::make_unique<PipeChannel>(out, in, rng_.next()), peer, std::move(subtree));
  }
  static std::vector<int32_t> below(const std::vector<Rank>& parents, size_t top) {
    std::vector<int32_t> found{static_cast<int32_t>(top)};
    for (size_t k = top + 1; k < parents.size(); ++k)
      if (std::find(found.begin(), found.end(), parents[k]) != found.end()) found.push_back(static_cast<int32_t>(k));
    return found;
  }

  void act() {
    const size_t r = rng_.below(nodes_.size());
    Node& node = *nodes_[r];
    if (node.is_aborted() || node.is_closed() || node.has_joined()) return;
    const std::string name = "t" + std::to_string(rng_.below(4));
    const uint64_t what = rng_.below(40);
    SignatureFields f;
    f.tensors.push_back({HVD_FLOAT32, {rng_.between(1, 2)}});
    f.repeats = !rng_.one_in(5);
    if (what < 24) {
      // The made-up sets have the first two ranks.
      const auto& sets = hosts_[r].sets;
      submit(node, r, r < 2 && !sets.empty() && rng_.one_in(3) ? *sets.rbegin() : 0, name, std::move(f),
             rng_.one_in(3));
    } else if (what < 28) {
      node.poison(0, name, "bad");
    } else if (what < 32) {
      node.wanted(0, name);
    } else if (what == 32) {
      f.tensors.clear();
      f.repeats = false;
      f.kind = base::OpKind::AddProcessSet;
      f.ranks = {0, 1};
      if (!hosts_[r].sets.empty() && rng_.one_in(2)) {
        f.kind = base::OpKind::RemoveProcessSet;
        f.root = static_cast<int32_t>(*hosts_[r].sets.begin());
        f.ranks.clear();
      }
      submit(node, r, 0, kSetsName, std::move(f), true);
    } else if (what == 33) {
      node.join();
    } else if (what == 34 && rng_.one_in(10)) {
      node.leave("that is all");
    }
  }
  void submit(Node& node, size_t r, SetId set, const std::string& name, SignatureFields f, bool urgent) {
    const auto request = std::make_shared<calls::Request>();
    hosts_[r].open.insert(request);
    Item item{std::make_shared<const std::string>(name), std::make_shared<const Signature>(std::move(f))};
    if (!node.submit(set, std::move(item), request, urgent ? Hurry::Waits : Hurry::None, now_))
      hosts_[r].open.erase(request);
  }

  Rng& rng_;
  const bool spoil_;
  int64_t now_ = 0;
  std::vector<Host> hosts_;
  std::vector<Pipe> up_, down_;  // by the lower end's rank
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace hvd::native
