// The functions of the table. See frontend.h.
#include "engine/frontend/frontend.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "engine/base/operations.h"
#include "engine/frontend/c_table.h"

namespace hvd::frontend {
namespace {

constexpr int32_t kNoEngine = -1, kUnknownSet = -3, kNotMember = -4;
const char* const kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// The engine that the table serves. A forked child gets a new Slot, because a thread of the parent may have held the
// mutex during the fork.
struct Slot {
  std::mutex mutex;
  std::shared_ptr<Frontend> frontend;
  bool forked = false;
};
std::atomic<Slot*> slot{new Slot};

std::shared_ptr<Frontend> current() {
  Slot* s = slot.load();
  std::lock_guard lock(s->mutex);
  return s->frontend;
}

const char* why_no_engine() {
  Slot* s = slot.load();
  std::lock_guard lock(s->mutex);
  return s->forked ? calls::kForkedText : kNotInitialized;
}

void submit(const hvd_fe_call* call) {
  if (auto frontend = current())
    submit_native(std::move(frontend), *call);
  else
    refuse_native(*call, HVD_FE_FAILED_PRECONDITION, why_no_engine());
}

void run(const hvd_fe_call* call) {
  if (auto frontend = current())
    run_native(*frontend, *call);
  else
    refuse_native(*call, HVD_FE_FAILED_PRECONDITION, why_no_engine());
}

void poison(int32_t op, int32_t, const char* name, int32_t process_set, const char* text) {
  const auto frontend = current();
  if (!frontend) return;
  try {
    const auto kind = kind_of(op);
    frontend->engine().poison(process_set, kind, name_of(kind, name), text ? text : "no reason was given");
  } catch (const std::exception&) {
    // The engine has stopped, so that the other ranks' calls have failed; or there is no operation of this number.
  }
}

template <typename F>
int32_t ask(F&& question) {
  const auto frontend = current();
  return frontend ? question(frontend->engine()) : kNoEngine;
}

int32_t rank() {
  return ask([](Engine& e) { return e.config().rank; });
}

int32_t size() {
  return ask([](Engine& e) { return e.config().size; });
}

int32_t local_rank() {
  return ask([](Engine& e) {
    const auto& hosts = e.config().hosts;
    const auto mine = hosts.begin() + e.config().rank;
    return static_cast<int32_t>(std::count(hosts.begin(), mine, *mine));
  });
}

int32_t local_size() {
  return ask([](Engine& e) {
    const auto& hosts = e.config().hosts;
    return static_cast<int32_t>(std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(e.config().rank)]));
  });
}

calls::ProcessSetRef find_set(Engine& e, int32_t process_set) {
  try {
    return e.process_sets().find(process_set, "process set");
  } catch (const InvalidRequest&) {
    return nullptr;
  }
}

int32_t process_set_rank(int32_t process_set) {
  return ask([&](Engine& e) {
    const auto set = find_set(e, process_set);
    return !set ? kUnknownSet : set->includes_me() ? set->my_rank : kNotMember;
  });
}

int32_t process_set_size(int32_t process_set) {
  return ask([&](Engine& e) {
    const auto set = find_set(e, process_set);
    return set ? static_cast<int32_t>(set->ranks.size()) : kUnknownSet;
  });
}

int64_t rows_of_this_rank(int64_t rows, int32_t process_set) {
  const auto frontend = current();
  if (!frontend) return kNoEngine;
  const auto set = find_set(frontend->engine(), process_set);
  if (!set) return kUnknownSet;
  if (!set->includes_me()) return kNotMember;
  return base::scattered_rows(rows, set->my_rank, static_cast<int32_t>(set->ranks.size()));
}

int32_t serves(const char* device_type) {
  return ask([&](Engine& e) { return e.serves(device_type ? device_type : "cpu") ? 1 : 0; });
}

constexpr hvd_fe_table kTable{sizeof(hvd_fe_table),
                              HVD_FRONTEND_VERSION,
                              submit,
                              run,
                              poison,
                              rank,
                              size,
                              local_rank,
                              local_size,
                              process_set_rank,
                              process_set_size,
                              rows_of_this_rank,
                              serves};

}  // namespace

const hvd_fe_table* frontend_table() { return &kTable; }

// The earlier frontend is destroyed with the argument, after the mutex is unlocked: its engine may go with it.
void serve(std::shared_ptr<Frontend> frontend) {
  Slot* s = slot.load();
  std::lock_guard lock(s->mutex);
  s->frontend.swap(frontend);
  s->forked = false;
}

void withdraw(const Frontend& frontend) {
  Slot* s = slot.load();
  std::shared_ptr<Frontend> gone;  // destroyed after the mutex is unlocked: its engine may go with it
  std::lock_guard lock(s->mutex);
  if (s->frontend.get() == &frontend) gone = std::move(s->frontend);
}

void in_forked_child() noexcept {
  auto* fresh = new Slot;
  fresh->forked = slot.load()->frontend != nullptr || slot.load()->forked;
  slot.store(fresh);
}

}  // namespace hvd::frontend
