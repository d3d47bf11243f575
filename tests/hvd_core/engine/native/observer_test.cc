// The observer without an engine: the timeline's lines where several tensors have no name of their own, and where
// operations without names come and go; the recorder's texts where there is no room for further ones.
//
//   observer_test          prints the names of the checks
//   observer_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/recorder/observer.h"

#include <malloc.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/operations.h"
#include "engine/recorder/timeline_format.h"
#include "named_checks.h"

using namespace hvd::recorder;

namespace {

constexpr auto kAllreduce = static_cast<uint8_t>(hvd::base::OpKind::Allreduce);

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

struct Trace {
  Texts texts{[](uint32_t, std::string_view) {}};
  std::string out;
  TimelineFormat format{texts, 0, &out};
  int64_t now = 0;

  void take(Event e) {
    e.time = now += 1000;
    format.take(e);
  }
  void submit(uint32_t name, uint64_t number) {
    take({.kind = EventKind::Submitted, .detail = kAllreduce, .name = name, .b = number});
  }
  void enter(uint64_t batch, uint32_t name, uint64_t number) {
    take({.kind = EventKind::Entry, .detail = kAllreduce, .name = name, .what = 1, .a = batch, .b = number});
  }
  void done(uint64_t batch) { take({.kind = EventKind::Done, .a = batch}); }
  size_t begun() const { return count(out, "\"ph\":\"B\""); }
  size_t ended() const { return count(out, "\"ph\":\"E\""); }
};

// When so many names are known that further ones get none, operations of two batches are one tensor of the trace.
void batches_share_a_tensor_without_a_name() {
  Trace t;
  for (int i = 0; i < (1 << 16); ++i) t.texts.id("name." + std::to_string(i));
  const uint32_t name = t.texts.id("one too many");
  EXPECT(name == 0);
  t.submit(name, 5);
  t.enter(1, name, 5);
  t.enter(2, name, 5);
  t.take({.kind = EventKind::Step, .detail = 1, .name = 1, .a = 2});
  t.done(1);
  t.take({.kind = EventKind::Step, .detail = 1, .name = 2, .a = 2});
  t.take({.kind = EventKind::Failed, .name = name, .b = 5});
  t.done(2);
  EXPECT(t.begun() == t.ended() && t.begun() > 0);
  t.enter(3, name, 5);
  t.done(3);
  EXPECT(t.begun() == t.ended());
}

// A batch whose end was overwritten in the ring, and whose number comes again.
void a_batch_that_comes_again_ends() {
  Trace t;
  const uint32_t name = t.texts.id("allreduce.noname");
  t.enter(1, name, 1);
  t.enter(1, name, 2);
  t.done(1);
  t.format.lost(10, t.now);
  t.done(1);
  t.enter(2, name, 1);
  t.done(2);
  EXPECT(t.begun() == t.ended());
}

void operations_without_names_leave_nothing() {
  Trace t;
  const uint32_t name = t.texts.id("allreduce.noname");
  uint64_t number = 0;
  const auto rounds = [&](int n) {
    for (int i = 0; i < n; ++i) {
      t.submit(name, ++number);
      t.take({.kind = EventKind::Failed, .name = name, .b = number});
      t.submit(name, ++number);
      t.enter(number, name, number);
      t.take({.kind = EventKind::Ready, .detail = kAllreduce, .name = name, .a = 1, .b = number});
      t.done(number);
      t.out.clear();
    }
  };
  rounds(1000);
  const size_t before = ::mallinfo2().uordblks;
  rounds(50'000);
  EXPECT(::mallinfo2().uordblks < before + (1u << 20));
  t.submit(name, ++number);
  t.format.lost(1, t.now);
  t.format.end_spans(t.now, false);
  EXPECT(t.begun() == 1 && t.ended() == 1);
}

// A program that gives each of its operations a name of its own fills both the list of names and the recorder's texts.
void the_cause_of_the_end_is_kept_in_any_case() {
  for (const int names : {10, 1000, 70'000}) {
    const uint64_t bytes = EventRing::bytes_for(Observer::kRecorderCapacity) + (20u << 10);
    const auto memory = std::make_shared<std::vector<char>>(bytes);
    ObserverSettings settings;
    settings.recorder = true;
    Observer observer(settings, 0, 2, "host", std::shared_ptr<void>(memory, memory->data()), bytes);
    for (int i = 0; i < names; ++i) observer.name_of("a name of its own: " + std::to_string(i), true);
    const std::string cause = "the cause is " + std::string(300, 'x') + " the end";
    observer.aborted(cause);
    const std::string_view kept(memory->data(), memory->size());
    EXPECT(kept.find(cause) != kept.npos);
    Event last;
    EventRing ring(memory->data(), bytes, Observer::kRecorderCapacity);
    EXPECT(ring.read(ring.next() - 1, &last) == EventRing::Read::Taken);
    EXPECT(last.kind == EventKind::Aborted && last.name != 0);
  }
}

// An hour of a job with 5,000 events per second, in which names keep coming, and in which the stamps begin anew.
void a_ring_stays_at_its_bound_for_an_hour() {
  constexpr uint64_t kEvents = 3600 * 5000, kGuard = 4096;
  constexpr uint32_t kCapacity = Observer::kRecorderCapacity;
  const uint64_t bytes = EventRing::bytes_for(kCapacity) + (64u << 10);
  std::vector<char> memory(bytes + kGuard);
  std::memset(memory.data() + bytes, 0x5a, kGuard);
  EventRing ring(memory.data(), bytes, kCapacity);
  ring.claim(0, 2, "host", "job");
  const uint64_t first = (uint64_t{1} << 32) - kEvents / 2;
  ring.header().next.store(first);
  const size_t before = ::mallinfo2().uordblks;
  uint32_t texts = 0;
  for (uint64_t n = 0; n < kEvents; ++n) {
    if (n % 1000 == 0) texts += ring.add_text(static_cast<uint32_t>(n / 1000 + 1), "allreduce.a name of its own");
    ring.write({.time = static_cast<int64_t>(n), .kind = EventKind::Submitted, .name = 1, .a = n});
  }
  EXPECT(::mallinfo2().uordblks == before);
  EXPECT(texts > 100 && texts < kEvents / 1000);
  EXPECT(ring.header().texts_used <= ring.header().texts_bytes);
  EXPECT(std::string_view(memory.data() + bytes, kGuard) == std::string(kGuard, 0x5a));
  EXPECT(ring.next() == first + kEvents);
  Event event;
  // The place of the oldest one may be the next to be written.
  EXPECT(ring.read(ring.next() - kCapacity, &event) != EventRing::Read::NotYet);
  EXPECT(ring.read(ring.next() - kCapacity - 1, &event) == EventRing::Read::Lost);
  for (uint64_t n = kEvents - kCapacity + 1; n < kEvents; ++n)
    EXPECT(ring.read(first + n, &event) == EventRing::Read::Taken && event.a == n);
}

// clang-format off
const named_checks::List kChecks = {
    CHECK(batches_share_a_tensor_without_a_name),
    CHECK(a_batch_that_comes_again_ends),
    CHECK(operations_without_names_leave_nothing),
    CHECK(the_cause_of_the_end_is_kept_in_any_case),
    CHECK(a_ring_stays_at_its_bound_for_an_hour),
};
// clang-format on

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
