// See sources.h.
#include "engine/observe/sources.h"

#include <exception>
#include <utility>

#include "engine/observe/stacks.h"
#include "engine/observe/threads.h"

namespace hvd::observe {
namespace {

// How long the end waits for a file that is being read.
constexpr auto kLastWait = std::chrono::milliseconds(200);

}  // namespace

Sources::~Sources() {
  std::unique_lock lock(state_->mutex);
  if (!thread_.joinable()) return;
  state_->quit = true;
  state_->changed.notify_all();
  const bool ends = state_->changed.wait_for(lock, kLastWait, [this] { return state_->ended; });
  lock.unlock();
  if (ends)
    thread_.join();
  else
    thread_.detach();
}

void Sources::read(const std::vector<Place*>& places, std::chrono::milliseconds patience) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.reading || s.wanted) return;
  s.known.clear();
  s.places.clear();
  for (const Place* p : places)
    if (p->known() && p->line > 0) s.places.push_back(*p);
  if (s.places.empty()) return;
  if (!thread_.joinable()) thread_ = start_thread("hvd-sources", [state = state_] { serve(*state); });
  s.wanted = true;
  s.changed.notify_all();
  s.changed.wait_for(lock, patience, [&] { return !s.wanted && !s.reading; });
  lock.unlock();
  for (Place* p : places) fill_in(*p);
}

void Sources::fill_in(Place& place) const {
  const std::lock_guard lock(state_->mutex);
  for (const Place& p : state_->known)
    if (p.line == place.line && p.file == place.file) {
      place.source = p.source;
      return;
    }
}

void Sources::serve(State& s) noexcept {
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return s.quit || s.wanted; });
    if (s.quit) break;
    s.wanted = false;
    s.reading = true;
    try {
      for (std::vector<Place> places = std::exchange(s.places, {}); !places.empty() && !s.quit; places.pop_back()) {
        lock.unlock();
        try {
          add_source(places.back());
        } catch (const std::exception&) {  // no memory: the report lacks the line
        }
        lock.lock();
        s.known.push_back(std::move(places.back()));
      }
    } catch (const std::exception&) {  // likewise
      if (!lock.owns_lock()) lock.lock();
    }
    s.reading = false;
    s.changed.notify_all();
  }
  s.ended = true;
  s.changed.notify_all();
}

}  // namespace hvd::observe
