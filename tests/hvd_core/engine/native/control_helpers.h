// Requests and a coordinator with a readable log, for the checks of control_test.cc.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/coordinator.h"
#include "engine/agreement/fusion.h"
#include "hvd/backend_abi.h"
#include "named_checks.h"

namespace hvd::native {

using namespace hvd::agreement;

constexpr int64_t kDelay = 1000;  // the coalescing delay in these checks

struct Options {
  int32_t dtype = HVD_FLOAT32;
  std::vector<int64_t> elements = {4};  // of each tensor; several make a group
  int32_t op = HVD_SUM;
  base::OpKind kind = base::OpKind::Allreduce;
  std::string device = "cpu";
  double prescale = 1.0;
  bool repeats = true;
};

inline Item item(const std::string& name, const Options& o = {}) {
  SignatureFields f;
  f.kind = o.kind;
  f.reduce_op = o.op;
  f.prescale = o.prescale;
  f.device_type = o.device;
  f.repeats = o.repeats;
  for (int64_t n : o.elements) f.tensors.push_back({o.dtype, {n}});
  return {std::make_shared<const std::string>(name), std::make_shared<const Signature>(std::move(f))};
}

// "a b" for a batch of requests a and b.
inline std::string names(const std::vector<Item>& items) {
  std::string text;
  for (const Item& x : items) text += (text.empty() ? "" : " ") + *x.name;
  return text;
}

// A coordinator of `world` ranks, its log as text, and the messages of ranks in short.
struct Root final : Coordinator::Log {
  explicit Root(Rank ranks, uint32_t repeats = 1, FusionConfig fusion = {1024, kDelay}, AutotuneConfig autotune = {})
      : world(ranks),
        coordinator(
            {.world = ranks, .fusion = fusion, .autotune = std::move(autotune), .repeats_before_known = repeats},
            *this) {}

  const Rank world;
  std::vector<std::string> log;
  Coordinator coordinator;

  void append(Entry e) override {
    const std::string batch = std::to_string(e.batch) + "." + std::to_string(e.gen);
    switch (e.type) {
      case Entry::Exec:
        return log.push_back("EXEC " + names(e.items) + (e.defines ? " as " + std::to_string(e.batch) : ""));
      case Entry::Run:
        return log.push_back("RUN " + batch);
      case Entry::Dissolve:
        return log.push_back("DISSOLVE " + batch);
      case Entry::Fail:
        return log.push_back("FAIL " + *e.name + (e.poisoners.empty() ? "" : " poisoned"));
      case Entry::Joined:
        return log.push_back("JOINED " + std::to_string(e.rank));
      case Entry::Close:
        return log.push_back("CLOSE");
      case Entry::AddSet:
        return log.push_back("ADDSET " + std::to_string(e.set));
      case Entry::Observe:
        return log.push_back("OBSERVE " + std::to_string(e.batch) + " " + e.text);
      case Entry::RemoveSet:
        return log.push_back("REMOVESET " + std::to_string(e.set));
      case Entry::Tune:
        return log.push_back("TUNE " + std::to_string(e.coalesce_ns));
      case Entry::SnapshotRequest:
      case Entry::Report:
      case Entry::SnapshotOf:
        return;  // not the coordinator's
    }
  }
  void ready(Rank r, const Item& x, bool urgent = false, int64_t now = 0) {
    UpMessage m = UpMessage::of(UpMessage::Ready, r);
    m.item = x;
    m.urgent = urgent;
    coordinator.receive(m, now);
  }
  void all_ready(const Item& x, bool urgent = false, int64_t now = 0) {
    for (Rank r = 0; r < world; ++r) ready(r, x, urgent, now);
  }
  void batch(UpMessage::Type type, Rank r, uint32_t id, uint32_t gen, int64_t now = 0) {
    UpMessage m = UpMessage::of(type, r);
    m.batch = id;
    m.gen = gen;
    coordinator.receive(m, now);
  }
  void named(UpMessage::Type type, Rank r, const std::string& name) {
    UpMessage m = UpMessage::of(type, r);
    m.item.name = std::make_shared<const std::string>(name);
    coordinator.receive(m, 0);
  }
  // The entries since the last call, after the coalescing delay or at `now`.
  std::vector<std::string> entries(int64_t now = INT64_MAX - 1) {
    coordinator.form_batches(now);
    return std::exchange(log, {});
  }
  // Executes a and b in one batch so often that they become known batch 0.
  void learn() {
    for (int i = 0; i < 2; ++i) {
      all_ready(item("a"));
      all_ready(item("b"));
      coordinator.form_batches(INT64_MAX - 1);
    }
    EXPECT((std::exchange(log, {}) == std::vector<std::string>{"EXEC a b", "EXEC a b as 0"}));
  }
};

}  // namespace hvd::native
