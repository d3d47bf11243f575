// See messages.h.
#include "messages.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "hvd/backend_abi.h"

namespace hvd::native {
namespace {

using base::OpKind;

calls::RequestRef submit(Engine& engine, int from, int to, std::optional<std::string> name, int32_t set, float* data,
                         int64_t count, bool waits) {
  agreement::SignatureFields f;
  f.kind = OpKind::Send;
  f.root = from;
  f.repeats = false;
  f.tensors = {{HVD_FLOAT32, {count}}};
  calls::Tensor t;
  t.dtype = HVD_FLOAT32;
  t.shape = {count};
  t.data = data;
  return engine.submit(std::make_shared<const agreement::Signature>(std::move(f)), {.kind = OpKind::Send,
                                                                                    .name = std::move(name),
                                                                                    .process_set = set,
                                                                                    .root = from,
                                                                                    .to = to,
                                                                                    .in = {t},
                                                                                    .out = {t},
                                                                                    .waits = waits});
}

struct Message {
  int from = 0;
  float value = 0;
  std::vector<float> data;
  calls::RequestRef request;
};

void finish(Engine& engine, const Message& m, int rank, Course& course) {
  while (!engine.wait(*m.request, 5'000'000)) {
  }
  const std::string what = "rank " + std::to_string(rank) + ", " + *m.request->item.name + ": ";
  if (!m.request->ok()) {
    require(course.may_end.load(), what + m.request->error());
    course.failed.fetch_add(1);
    return;
  }
  for (const float x : m.data) require(x == m.value, what + "a wrong value");
  course.done.fetch_add(1);
}

}  // namespace

void run_messages(Engine& engine, int rank, int ranks, int count, uint64_t seed, Course& course) {
  Rng all(seed), own(seed + static_cast<uint64_t>(rank) + 1);
  std::vector<std::unique_ptr<Message>> live;
  const auto land = [&] {
    own.shuffle(live);
    for (const auto& m : live) finish(engine, *m, rank, course);
    live.clear();
  };
  try {
    for (int k = 0; k < count; ++k) {
      // Drawn alike on all ranks, also what does not concern this one.
      const auto from = static_cast<int>(all.below(static_cast<uint64_t>(ranks)));
      const auto to = static_cast<int>((static_cast<uint64_t>(from) + 1 + all.below(static_cast<uint64_t>(ranks) - 1)) %
                                       static_cast<uint64_t>(ranks));
      const int64_t length = all.one_in(8) ? all.between(2'000, 9'000) : all.between(0, 200);
      const bool named = all.one_in(2);
      if (rank != from && rank != to) continue;
      auto m = std::make_unique<Message>();
      m->from = from;
      m->value = static_cast<float>(k + 1);
      m->data.assign(static_cast<size_t>(length), rank == from ? m->value : 0);
      m->request = submit(engine, from, to, named ? std::optional("m" + std::to_string(k)) : std::nullopt, 0,
                          m->data.data(), length, false);
      live.push_back(std::move(m));
      if (own.one_in(6)) land();
    }
    land();
  } catch (const RequestFailed& e) {
    require(course.may_end.load(), "rank " + std::to_string(rank) + " was told: " + e.what());
  }
  // The engine may use the memory until the requests are done.
  for (const auto& m : live)
    while (m->request && !engine.wait(*m->request, 5'000'000)) {
    }
}

LostMessage::LostMessage(Engine& engine, int rank, const Set& set) : engine_(engine) {
  if (set.members.size() > 2 && rank == set.members[0])
    request_ = submit(engine, rank, set.members[1], std::nullopt, set.number, &value_, 1, false);
}

void LostMessage::wait() const {
  while (request_ && !engine_.wait(*request_, 5'000'000)) {
  }
}

void LostMessage::check(Course& course) const {
  if (!request_) return;
  wait();
  require(request_->failed(), "a message that no rank receives was received");
  require(request_->failure() == base::Failure::SetRemoved || course.may_end.load(),
          "a message outlived its set: " + request_->error());
}

}  // namespace hvd::native
