// See lifecycle.h.
#include "engine/core/lifecycle.h"

#include <array>
#include <cassert>

#include "engine/base/text.h"

namespace hvd {

namespace {

constexpr uint8_t bit(Lifecycle::State state) { return static_cast<uint8_t>(1u << static_cast<uint8_t>(state)); }

using enum Lifecycle::State;

struct Row {
  const char* name;
  uint8_t next;  // the states that may follow
};

// By State. A child can be forked in every state of its parent.
constexpr std::array<Row, 7> kStates{{
    {"Running", bit(Closing) | bit(Aborted) | bit(LeftBehind) | bit(Forked)},
    {"Closing", bit(Stopped) | bit(Aborted) | bit(LeftBehind) | bit(Forked)},
    {"Stopped", bit(Closed) | bit(Forked)},
    {"Aborted", bit(Closed) | bit(Forked)},
    {"LeftBehind", bit(Forked)},
    {"Closed", bit(Forked)},
    {"Forked", bit(Forked)},
}};

}  // namespace

bool Lifecycle::legal(State from, State to) { return kStates[static_cast<size_t>(from)].next & bit(to); }

const char* Lifecycle::name_of(State state) { return kStates[static_cast<size_t>(state)].name; }

void Lifecycle::advance(State to) noexcept {
  State from = state();
  do {
    assert(legal(from, to));
    if (!legal(from, to)) return;
  } while (!state_.compare_exchange_weak(from, to, std::memory_order_acq_rel));
}

void Lifecycle::end(State how, const std::string& message) {
  if (over()) return;
  {
    std::lock_guard lock(mutex_);
    message_ = base::printable(message);
  }
  aborted_.store(how != State::Stopped, std::memory_order_relaxed);
  advance(how);
}

std::string Lifecycle::message() const {
  std::lock_guard lock(mutex_);
  return message_;
}

}  // namespace hvd
