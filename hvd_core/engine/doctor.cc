// See doctor.h. An answer is a line of facts, then parts: "PART kind rank bytes", a line end, the bytes. Its reader is
// hvd_core/_cli/doctor.py.
#include "engine/doctor.h"

#include <utility>

#include "engine/control/snapshot_wire.h"
#include "engine/observe/json.h"

namespace hvd {

using namespace std::chrono_literals;
using observe::Json;

namespace {

constexpr auto kDriverTime = 1000ms, kStacksTime = 2500ms, kTreeTime = 2500ms;

void add_part(std::string& answer, std::string_view kind, int32_t rank, const std::string& data) {
  answer += "PART " + std::string(kind) + " " + std::to_string(rank) + " " + std::to_string(data.size()) + "\n" + data;
}

std::string json_of(const std::map<int32_t, std::vector<int32_t>>& process_sets) {
  Json all = Json::object();
  for (const auto& [number, members] : process_sets) {
    Json list = Json::array();
    for (int32_t r : members) list.push(Json(r));
    all.set(std::to_string(number), list);
  }
  return all.text();
}

}  // namespace

Doctor::Doctor(std::string facts, std::shared_ptr<const observe::Program> program, Engine engine)
    : facts_(std::move(facts)), engine_(std::move(engine)), has_program_(program != nullptr) {
  if (program)
    looker_ = std::make_unique<observe::Looker>(std::move(program), [this](observe::Threads seen) {
      std::lock_guard lock(mutex_);
      threads_ = std::move(seen);
      changed_.notify_all();
    });
}

void Doctor::serve(const std::string& name) {
  server_ =
      std::make_unique<observe::AskServer>(name, [this](const std::string& question) { return answer(question); });
}

void Doctor::stop() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  server_.reset();
  looker_.reset();
}

void Doctor::told(Told own) {
  std::lock_guard lock(mutex_);
  own_ = std::move(own);
  changed_.notify_all();
}

void Doctor::told(int32_t rank, std::string snapshot) {
  std::lock_guard lock(mutex_);
  others_[rank] = std::move(snapshot);
  changed_.notify_all();
}

template <typename Ready>
void Doctor::wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time, Ready&& ready) {
  changed_.wait_for(lock, time, [&] { return quit_ || ready(); });
}

std::string Doctor::answer(const std::string& question) {
  if (question == "facts") return facts_ + "\n";
  const bool all_ranks = question == "job";
  {
    std::lock_guard lock(mutex_);
    own_.reset();
    threads_.reset();
    others_.clear();
  }
  std::string why_no_stacks;
  try {
    if (looker_) looker_->look();
  } catch (const std::exception& e) {
    why_no_stacks = e.what();
  }
  engine_.wake(all_ranks);
  std::unique_lock lock(mutex_);
  wait(lock, kDriverTime, [this] { return own_.has_value(); });
  if (has_program_ && why_no_stacks.empty()) wait(lock, kStacksTime, [this] { return threads_.has_value(); });
  std::string text = facts_ + "\n";
  std::optional<Told> own = std::exchange(own_, std::nullopt);
  observe::Snapshot snapshot;
  if (own) {
    snapshot = std::move(own->snapshot);
    for (const std::string& line : own->engine) add_part(text, "engine", snapshot.rank, line);
    add_part(text, "sets", snapshot.rank, json_of(own->process_sets));
  } else {
    lock.unlock();
    snapshot = engine_.last();
    const std::string call = engine_.under_way();
    lock.lock();
    add_part(text, "stuck", snapshot.rank, "");
    if (!call.empty()) add_part(text, "engine", snapshot.rank, call);
  }
  if (threads_)
    snapshot.program = std::move(*threads_);
  else
    snapshot.program.note = !why_no_stacks.empty() ? why_no_stacks : "the stacks did not come in time";
  lock.unlock();
  std::vector<observe::Place*> places;
  for (observe::Submission& s : snapshot.waiting) places.push_back(&s.place);
  if (looker_ && why_no_stacks.empty()) looker_->read_sources(places);
  add_part(text, "snapshot", snapshot.rank, control::encode(snapshot));
  lock.lock();
  if (!all_ranks) return text;
  wait(lock, kTreeTime, [this] { return others_.size() + 1 >= static_cast<size_t>(engine_.size); });
  for (const auto& [rank, data] : others_)
    if (rank != snapshot.rank) add_part(text, "snapshot", rank, data);
  return text;
}

}  // namespace hvd
