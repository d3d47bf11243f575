// The engine's part in the answers to `hvd doctor` (doctor.h).
#include <utility>

#include "engine/doctor.h"
#include "engine/engine.h"
#include "engine/observe/log.h"
#include "engine/types/rank_list.h"

namespace hvd {

namespace {

std::string count_of(size_t n, const char* one, const char* more) {
  return std::to_string(n) + " " + (n == 1 ? one : more);
}

}  // namespace

void Engine::start_doctor() {
  if (config_.doctor_socket.empty()) return;
  Doctor::Engine calls;
  calls.wake = [this](bool all_ranks) {
    CallUnderWay under_way(*this);
    push({all_ranks ? Command::AskedForAll : Command::Asked, nullptr, 0, {}, {}}, false);
    bell_->ring();
    bell_->ring_background();
  };
  calls.last = [this] { return snapshot_with({}); };
  calls.under_way = [this] { return call_watch_->under_way(observe::now_ns()); };
  calls.size = config_.size;
  try {
    doctor_ = std::make_unique<Doctor>(config_.doctor_facts, program_, std::move(calls));
    doctor_->serve(config_.doctor_socket);
  } catch (const std::exception& e) {  // the job runs without it
    doctor_.reset();
    observe::log(observe::Level::Info, std::string("hvd doctor cannot ask this process: ") + e.what());
  }
}

// Called with driver_ held.
void Engine::tell_doctor(bool all_ranks) {
  if (!doctor_) return;
  std::vector<std::string> lines;
  if (stopped()) {
    std::lock_guard lock(stop_mutex_);
    lines.push_back("the job has ended here: " + stop_text_);
  } else if (closing_) {
    lines.push_back("the job ends in good order: " + closing_text_);
  } else {
    lines.push_back(count_of(live_.size(), "operation is", "operations are") + " under way");
  }
  if (executor_->in_flight()) lines.push_back("a backend carries out a batch now");
  if (const std::string text = call_watch_->under_way(observe::now_ns()); !text.empty()) lines.push_back(text);
  if (executor_->creating()) lines.push_back("communicators are being made");
  if (executor_->outstanding()) lines.push_back("a device has work that is not complete");
  lines.push_back(count_of(node_->entries(), "entry", "entries") + " of the log replayed, " +
                  count_of(node_->messages_up(), "message", "messages") + " sent to the coordinator");
  doctor_->told({snapshot(), std::move(lines), sets_.all()});
  if (!all_ranks || node_->is_aborted() || node_->is_closed()) return;
  const uint32_t number = Doctor::kLooks + static_cast<uint32_t>(config_.rank);
  if (node_->coordinator())
    look_for(config_.rank, number);
  else
    node_->tell(number, "");  // rank 0 asks
}

void Engine::look_for(control::Rank asker, uint32_t number) {
  std::vector<control::Rank> others;
  for (control::Rank r = 0; r < config_.size; ++r)
    if (r != asker) others.push_back(r);
  node_->look(number, std::move(others));
}

// On the root: a question of another rank, or the answer to a question.
void Engine::told_for_doctor(control::Rank rank, uint32_t number, const std::string& text) {
  const auto asker = static_cast<control::Rank>(number - Doctor::kLooks);
  if (asker == config_.rank) {
    if (doctor_) doctor_->told(rank, text);
  } else if (asker < config_.size && !node_->is_aborted() && !node_->is_closed()) {
    text.empty() ? look_for(asker, number) : node_->show(asker, rank, text);
  }
}

void Engine::shown(control::Rank rank, const std::string& text) {
  if (doctor_ && rank >= 0 && rank < config_.size) doctor_->told(rank, text);
}

}  // namespace hvd
