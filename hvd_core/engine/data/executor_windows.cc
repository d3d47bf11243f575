// The entry of the log that creates a window: memory of this rank that the set's other ranks reduce in place.
//
// In log order on all members: windows that no rank uses any more are agreed on and ended, the new one is created on a
// thread of its own, which waits for the members, and all compare whether they have it. A rank that lacks memory makes
// all of them take ordinary memory; if it lacks that too, the request fails on all of them. See executor.h.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "engine/data/executor.h"
#include "engine/observe/log.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

namespace {

constexpr int64_t kPast = 1;  // a deadline

// What one entry has found out, kept by the steps of its schedule.
struct Creating {
  std::vector<uint8_t> ended;  // by window of the set: no tensor is left on it, here and then on all ranks
  uint8_t have = 0;            // this rank has the new window, and then all ranks have it
  plugin::WindowRef window;
  std::string why;  // this rank could not have it
};

// The least of the members' values takes the place of this rank's.
void write_least(Schedule& schedule, SetComms& set, uint8_t* values, uint64_t n, uint64_t seq) {
  plugin::Collective c;
  c.coll = HVD_ALLREDUCE;
  c.dtype = HVD_UINT8;
  c.op = HVD_MIN;
  c.in = c.out = {{values, 0, n}};
  c.counts = {n};
  c.deadline_ns = HVD_NO_DEADLINE;
  c.seq = seq;
  set.write_steps(schedule, c);
}

// The members' lists of windows stay equal, also if this fails.
void end_window(SetComms& set, plugin::Communicator& comm, const plugin::WindowRef& window, int64_t deadline_ns) {
  try {
    comm.destroy_window(*window, deadline_ns);
    std::erase(set.unended_windows, window);
  } catch (const plugin::BackendError& e) {
    auto& unended = set.unended_windows;
    if (std::find(unended.begin(), unended.end(), window) == unended.end()) unended.push_back(window);
    observe::log(observe::Level::Debug, e.what());
  }
}

uint64_t bytes_of(const control::TensorSpec& spec) {
  uint64_t bytes = types::dtype_bytes(spec.dtype);
  for (int64_t d : spec.shape) bytes *= static_cast<uint64_t>(d);
  return bytes;
}

queue::Output output_of(const control::TensorSpec& spec) {
  queue::Output out;
  out.dtype = spec.dtype;
  out.shape = spec.shape;
  return out;
}

// Ordinary memory for all members, or for none of them. `why`: they have no window. `request` is null on a rank that
// has joined, and `spec` lives as long as the entry.
void write_ordinary(Schedule& schedule, SetComms& set, queue::Request* request, const control::TensorSpec& spec,
                    std::string why, uint64_t seq) {
  struct Allocating {
    uint8_t have = 1;
    std::unique_ptr<void, queue::FreeDeleter> memory;
    std::string why;
  };
  const auto state = std::make_shared<Allocating>();
  schedule.keep(state);
  state->why = std::move(why);
  try {
    if (request) state->memory = queue::allocate(bytes_of(spec));
  } catch (const std::bad_alloc&) {
    state->have = 0;
  }
  const bool lacks = state->have == 0;
  write_least(schedule, set, &state->have, 1, seq);
  schedule.compute([=, &spec](Schedule&) {
    if (!state->have)
      throw plugin::Refused(std::string(lacks ? "this rank" : "another rank") + " has no memory for an array of " +
                            std::to_string(bytes_of(spec)) + " bytes, and " + state->why);
    if (!request) return;
    queue::Output out = output_of(spec);
    out.data = std::move(state->memory);
    out.no_window = state->why;
    request->outputs.push_back(std::move(out));
  });
}

}  // namespace

void Executor::write_window(Entry& entry, const std::shared_ptr<SetComms>& set) {
  // An entry of its own, so that there is one request, with one tensor.
  queue::Request* const request = entry.work[0].request.get();
  const control::TensorSpec& spec = entry.work[0].item.sig->fields().tensors[0];
  std::string why;
  plugin::Communicator* const comm = set->window_comm(&why);
  if (!comm)
    return write_ordinary(*schedule_, *set, request, spec, "the process set has no shared memory for tensors: " + why,
                          seq_);
  const auto state = std::make_shared<Creating>();
  schedule_->keep(state);  // a backend may still write to its values when all computations are dropped
  for (const plugin::WindowRef& window : set->windows) state->ended.push_back(window.use_count() == 1);
  if (!state->ended.empty()) write_least(*schedule_, *set, state->ended.data(), state->ended.size(), seq_);
  const std::string key =
      job_ + "/set/" + std::to_string(entry.set) + "/window/" + std::to_string(set->windows_asked_for++);
  schedule_->compute([=, this, &spec](Schedule& then) {
    start_creation([=, store = store_, deadline_ns = observe::now_ns() + create_ns_, bytes = bytes_of(spec)] {
      for (size_t i = state->ended.size(); i-- > 0;) {
        if (!state->ended[i]) continue;
        end_window(*set, *comm, set->windows[i], deadline_ns);
        set->windows.erase(set->windows.begin() + static_cast<ptrdiff_t>(i));
      }
      return std::static_pointer_cast<void>(comm->create_window(key, *store, bytes, deadline_ns));
    });
    then.poll([this] { return creation_->done(); },
              [this](int64_t until_ns) {
                if (creation_) creation_->wait(until_ns);
              });
    then.compute([=, this](Schedule& last) {
      const auto creation = std::move(creation_);
      try {
        state->window = std::static_pointer_cast<plugin::Window>(creation->take());
        set->unended_windows.push_back(state->window);  // also if the ranks never agree on it
        state->have = 1;
      } catch (const plugin::BackendError& e) {
        state->why = e.what();
      }
      write_least(last, *set, &state->have, 1, seq_);
    });
  });
  schedule_->compute([=, this, &spec](Schedule& then) {
    if (state->have) {
      std::erase(set->unended_windows, state->window);
      set->windows.push_back(state->window);
      if (!request) return state->window.reset();  // this rank has joined
      queue::Output out = output_of(spec);
      out.window = std::move(state->window);
      return request->outputs.push_back(std::move(out));
    }
    if (state->window) {
      end_window(*set, *comm, state->window, kPast);
      state->why = "another rank could not make it; its log has the reason";
    }
    write_ordinary(then, *set, request, spec, "the shared memory could not be made: " + state->why, seq_);
  });
}

}  // namespace hvd::data
