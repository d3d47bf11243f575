// See timeline_format.h.
#include "engine/recorder/timeline_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "engine/base/operations.h"
#include "engine/recorder/observer.h"

namespace hvd::recorder {
namespace {

// The labels of the operations in quotation marks, behind a prefix.
class Labels {
 public:
  explicit Labels(const std::string& prefix) : other_('"' + prefix + "OPERATION\"") {
    for (size_t kind = 0; kind < base::kOpKinds; ++kind)
      labels_[kind] = '"' + prefix + base::op_label(static_cast<base::OpKind>(kind)) + '"';
  }
  std::string_view of(uint8_t kind) const { return kind < base::kOpKinds ? labels_[kind] : other_; }

 private:
  std::array<std::string, base::kOpKinds> labels_;
  std::string other_;
};

std::string_view label(uint8_t kind) {
  static const Labels kLabels("");
  return kLabels.of(kind);
}

std::string_view negotiation(uint8_t kind) {
  static const Labels kLabels("NEGOTIATE_");
  return kLabels.of(kind);
}

constexpr size_t kMostByName = 1u << 16;
constexpr std::string_view kQueue = "\"QUEUE\"";

}  // namespace

void TimelineFormat::number(int64_t n) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, n).ptr;
  out_.append(text, static_cast<size_t>(end - text));
}

void TimelineFormat::quoted(std::string_view s) {
  out_ += '"';
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out_ += "\\u00";
      out_ += kHex[c >> 4 & 15];
      out_ += kHex[c & 15];
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

const std::string& TimelineFormat::text(uint32_t id) {
  static const std::string kUnknown = "(unknown)";
  if (id > names_.size()) texts_.copy_new(&names_);
  return id == 0 || id > names_.size() ? kUnknown : names_[id - 1];
}

// The text that write() appends to out_, kept for the next time. A deque does not move its strings.
template <typename Write>
std::string_view TimelineFormat::kept(std::deque<std::string>& all, uint32_t id, Write&& write) {
  if (all.size() <= id) all.resize(size_t{id} + 1);
  std::string& made = all[id];
  if (made.empty()) {
    const size_t begin = out_.size();
    write();
    made = out_.substr(begin);
    out_.resize(begin);
  }
  return made;
}

std::string_view TimelineFormat::quoted_text(uint32_t id) {
  if (id < quoted_names_.size() && !quoted_names_[id].empty()) return quoted_names_[id];
  const std::string& known = text(id);
  if (id == 0 || id > names_.size()) return "\"(unknown)\"";
  return kept(quoted_names_, id, [&] { quoted(known); });
}

std::string_view TimelineFormat::args(uint32_t what) {
  if (what < args_.size() && !args_[what].empty()) return args_[what];
  const std::string known = text(what);  // types, '|', shapes
  return kept(args_, what, [&] {
    const size_t bar = known.find('|');
    out_ += ",\"args\":{\"dtype\":";
    quoted(std::string_view(known).substr(0, bar));
    out_ += ",\"shape\":";
    quoted(bar == std::string::npos ? std::string_view() : std::string_view(known).substr(bar + 1));
    out_ += '}';
  });
}

void TimelineFormat::rest(int64_t at, const Tensor& t) {
  out_ += ",\"ts\":";
  number(micros(at));
  out_ += t.end_line;
}

void TimelineFormat::rest(int64_t at) {
  out_ += ",\"ts\":";
  number(micros(at));
  out_ += ",\"pid\":0";
}

TimelineFormat::Tensor& TimelineFormat::tensor(uint16_t set, uint32_t name, uint64_t number) {
  const bool common = set == 0 && number == 0 && name < kMostByName;
  if (common && name < by_name_.size() && by_name_[name]) return *by_name_[name];
  Tensor& t = tensors_[{set, name, number}];
  if (t.pid == 0) {
    t.set = set;
    t.name = name;
    t.number = number;
    t.pid = ++pids_;
    t.end_line = ",\"pid\":" + std::to_string(t.pid);
  }
  if (common) {
    if (by_name_.size() <= name) by_name_.resize(size_t{name} + 1);
    by_name_[name] = &t;
  }
  return t;
}

std::string TimelineFormat::full_name(const Tensor& t) {
  std::string name = text(t.name);
  if (t.number != 0) name += "." + std::to_string(t.number);
  return name;
}

void TimelineFormat::meta(Tensor& t) {
  t.named = true;
  const std::string name = full_name(t);
  out_ += ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":";
  number(t.pid);
  out_ += ",\"args\":{\"name\":";
  quoted(name);
  out_ += "}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":";
  number(t.pid);
  out_ += ",\"args\":{\"sort_index\":";
  number(t.pid);
  out_ += "}}";
}

void TimelineFormat::begin(Tensor& t, std::string_view quoted, int64_t at) {
  if (!t.named) meta(t);
  t.last = std::max(t.last, at);
  out_ += ",\n{\"name\":";
  out_ += quoted;
  out_ += ",\"ph\":\"B\"";
  rest(t.last, t);
  out_ += '}';
  t.open.push_back(quoted);
}

void TimelineFormat::end(Tensor& t, int64_t at, bool with_args) {
  t.last = std::max(t.last, at);
  t.open.pop_back();
  out_ += ",\n{\"ph\":\"E\"";
  rest(t.last, t);
  if (with_args && t.what != 0) out_ += args(t.what);
  out_ += '}';
}

void TimelineFormat::negotiate(Tensor& t, int64_t at) {
  t.state = Tensor::Negotiates;
  t.ready.clear();
  begin(t, negotiation(t.kind), at);
  for (const Tick& early : t.early) tick(t, early);
  t.early.clear();
}

void TimelineFormat::tick(Tensor& t, const Tick& tick) {
  // A rank that had arrived at a known batch is counted again when the batch is dissolved.
  if (std::find(t.ready.begin(), t.ready.end(), tick.rank) != t.ready.end()) return;
  t.ready.push_back(tick.rank);
  t.last = std::max(t.last, tick.at);
  out_ += ",\n{\"name\":\"";
  number(static_cast<int64_t>(tick.rank));
  out_ += "\",\"ph\":\"X\"";
  rest(t.last, t);
  out_ += ",\"dur\":0}";
}

// The log has decided: the operation begins.
void TimelineFormat::enter(Batch& b, Tensor& t, int64_t at) {
  t.kind = entering_kind_;
  while (!t.open.empty()) end(t, at);
  t.state = Tensor::Runs;
  // A join or a barrier has no activities; a barrier's span is its negotiation, as in the original.
  if (static_cast<base::OpKind>(t.kind) != base::OpKind::Barrier) begin(t, label(t.kind), at);
  b.tensors.push_back(&t);
  ++t.batches;
}

// The batch ends, or is not known any more.
void TimelineFormat::leave(Batch& b) {
  for (Tensor* t : std::exchange(b.tensors, {}))
    if (--t->batches == 0) forget_if_numbered(*t);
}

// Numbers of operations without names do not come again. `t` may be gone then.
void TimelineFormat::forget_if_numbered(const Tensor& t) {
  if (t.number != 0 && t.batches == 0 && t.open.empty()) tensors_.erase({t.set, t.name, t.number});
}

void TimelineFormat::span(Batch& b, bool begins, std::string_view quoted, int64_t at) {
  for (Tensor* t : b.tensors) {
    if (begins && !t->open.empty())
      begin(*t, quoted, at);
    else if (!begins && t->open.size() > 1)
      end(*t, at);
  }
  if (begins) b.last_step = quoted;
}

void TimelineFormat::finish(Batch& b, int64_t at) {
  for (Tensor* t : b.tensors) {
    while (t->open.size() > 1) end(*t, at);
    if (!t->open.empty()) end(*t, at, true);
    t->state = Tensor::Idle;
    if (t->number != 0) t->early.clear();  // there is no next round
    if (!t->early.empty()) negotiate(*t, at);
  }
}

void TimelineFormat::fail(Tensor& t, int64_t at) {
  while (!t.open.empty()) end(t, at);
  begin(t, "\"ERROR\"", at);
  end(t, at, true);
  t.state = Tensor::Idle;
  forget_if_numbered(t);
}

// Callers that wait at the same time are in lanes of their own, so that the spans of a lane do not overlap.
void TimelineFormat::wait(const Event& e) {
  const auto since = static_cast<int64_t>(e.a);
  if (since < start_) return;
  size_t lane = 0;
  while (lane < wait_lanes_.size() && wait_lanes_[lane] > since) ++lane;
  if (lane == wait_lanes_.size()) wait_lanes_.push_back(0);
  wait_lanes_[lane] = e.time;
  out_ += ",\n{\"name\":\"WAIT\",\"ph\":\"X\"";
  rest(since);
  out_ += ",\"tid\":";
  number(static_cast<int64_t>(lane));
  out_ += ",\"dur\":";
  number(micros(e.time) - micros(since));
  out_ += ",\"args\":{\"tensor\":";
  if (e.b != 0)
    quoted(text(e.name) + "." + std::to_string(e.b));
  else
    out_ += quoted_text(e.name);
  out_ += "}}";
}

void TimelineFormat::instant(std::string_view name, int64_t at, std::string_view args) {
  out_ += ",\n{\"ph\":\"i\",\"name\":";
  quoted(name);
  rest(at);
  out_ += ",\"s\":\"g\"";
  out_ += args;
  out_ += '}';
}

void TimelineFormat::take(const Event& e) {
  switch (e.kind) {
    case EventKind::Submitted: {
      Tensor& t = tensor(e.set, e.name, e.b);
      t.kind = e.detail;
      t.what = e.what;
      if (t.state == Tensor::Idle) negotiate(t, e.time);
      return;
    }
    case EventKind::Ready: {
      Tensor& t = tensor(e.set, e.name, e.b);
      if (t.state == Tensor::Runs) {
        t.early.push_back({e.a, e.time});
        return;
      }
      if (t.state == Tensor::Idle) {
        t.kind = e.detail;
        negotiate(t, e.time);
      }
      return tick(t, {e.a, e.time});
    }
    case EventKind::Entry:
      entering_ = &batches_[e.a];
      leave(*entering_);  // its end was not seen
      *entering_ = {};
      entering_->entered = entering_at_ = e.time;
      entering_set_ = e.set;
      entering_kind_ = e.detail;
      return enter(*entering_, tensor(e.set, e.name, e.b), e.time);
    case EventKind::Members:
      for (const uint64_t id :
           {uint64_t{e.name}, uint64_t{e.what}, e.a & 0xffffffff, e.a >> 32, e.b & 0xffffffff, e.b >> 32})
        if (id != 0 && entering_) enter(*entering_, tensor(entering_set_, static_cast<uint32_t>(id), 0), entering_at_);
      return;
    case EventKind::Member:
      if (entering_) enter(*entering_, tensor(entering_set_, e.name, e.b), entering_at_);
      return;
    case EventKind::Cycle:
      return instant("CYCLE_START", e.time, "");
    case EventKind::Waited:
      return wait(e);
    case EventKind::Failed:
      return fail(tensor(e.set, e.name, e.b), e.time);
    case EventKind::Aborted: {
      const std::string_view cause = quoted_text(e.name);
      instant("ABORTED", e.time, ",\"args\":{\"cause\":" + std::string(cause) + "}");
      return;
    }
    default:
      break;
  }
  const auto it = batches_.find(e.a);
  if (it == batches_.end()) return;
  Batch& b = it->second;
  switch (e.kind) {
    case EventKind::Begin:
      if (micros(e.time) > micros(b.entered)) {
        span(b, true, kQueue, b.entered);
        span(b, false, kQueue, e.time);
      }
      return;
    case EventKind::Step:
    case EventKind::Phase:
      return span(b, e.detail == 1, quoted_text(e.name), e.time);
    case EventKind::Enqueued:
      // The device works on; the last collective stands for it.
      for (Tensor* t : b.tensors)
        while (t->open.size() > 1) end(*t, e.time);
      return span(b, true, b.last_step.empty() ? kQueue : b.last_step, e.time);
    case EventKind::Done: {
      finish(b, e.time);
      leave(b);
      if (entering_ == &b) entering_ = nullptr;
      batches_.erase(it);
      return;
    }
    default:
      return;
  }
}

void TimelineFormat::lost(uint64_t count, int64_t at) {
  end_spans(at, false);
  instant("EVENTS_LOST", at, ",\"args\":{\"count\":" + std::to_string(count) + "}");
}

void TimelineFormat::end_spans(int64_t at, bool reopen) {
  for (auto& [key, t] : tensors_) {
    const auto open = t.open;
    while (!t.open.empty()) end(t, at);
    if (reopen) {
      t.open = open;
    } else {
      t.state = Tensor::Idle;
      t.early.clear();
    }
  }
  if (reopen) return;
  batches_.clear();
  entering_ = nullptr;
  for (auto& [key, t] : tensors_) t.batches = 0;
  std::erase_if(tensors_, [](const auto& x) { return x.second.number != 0; });
}

void TimelineFormat::begin_again(int64_t at) {
  for (auto& [key, t] : tensors_) {
    t.named = false;
    const auto open = std::move(t.open);
    t.open.clear();
    for (const std::string_view quoted : open) begin(t, quoted, at);
  }
}

}  // namespace hvd::recorder
