// Turns the observer's events into the lines of a timeline: Chrome's trace format with the events of the original
// (docs/timeline.md). Each tensor is a process of the trace.
//
// A line is ",\n{...}". Times within one tensor never go back, and its spans nest, also where events of two of its
// rounds overlap. Used by the thread that writes the file.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/recorder/event.h"

namespace hvd::recorder {

class Texts;

class TimelineFormat {
 public:
  // Appends to *out. `start`: the time that is 0 in the file.
  TimelineFormat(Texts& texts, int64_t start, std::string* out) : texts_(texts), start_(start), out_(*out) {}

  void take(const Event& e);
  // Events were overwritten before they were read: all spans end here.
  void lost(uint64_t count, int64_t at);
  // Ends all open spans. With `reopen`, begin_again() will open them in the next file.
  void end_spans(int64_t at, bool reopen);
  void begin_again(int64_t at);

 private:
  struct Tick {
    uint64_t rank;
    int64_t at;
  };
  struct Tensor {
    uint16_t set = 0;
    uint32_t batches = 0;  // that have it under way: more than one where several tensors have no name of their own
    uint32_t pid = 0, name = 0;
    bool named = false;    // the file has its name
    std::string end_line;  // ,"pid":12
    uint64_t number = 0;
    uint32_t what = 0;
    uint8_t kind = 0;  // of operation
    int64_t last = 0;
    enum State { Idle, Negotiates, Runs } state = Idle;
    // The names of its open spans in quotation marks, the outermost first. The texts live as long as the format.
    std::vector<std::string_view> open;
    std::vector<uint64_t> ready;  // the ranks that are shown as ready in this round
    std::vector<Tick> early;      // of the next round, while this one runs
  };
  struct Batch {
    std::vector<Tensor*> tensors;
    int64_t entered = 0;
    std::string_view last_step;  // in quotation marks
  };
  struct Key {
    uint16_t set = 0;
    uint32_t name = 0;
    uint64_t number = 0;
    bool operator==(const Key&) const = default;
  };
  struct HashOfKey {
    size_t operator()(const Key& k) const {
      return (k.number * 0x9e3779b97f4a7c15u) ^ ((uint64_t{k.set} << 32 | k.name) * 0xc2b2ae3d27d4eb4fu);
    }
  };

  Tensor& tensor(uint16_t set, uint32_t name, uint64_t number);
  std::string full_name(const Tensor& t);
  const std::string& text(uint32_t id);
  std::string_view quoted_text(uint32_t id);
  std::string_view args(uint32_t what);
  template <typename Write>
  std::string_view kept(std::deque<std::string>& all, uint32_t id, Write&& write);
  void begin(Tensor& t, std::string_view quoted, int64_t at);
  void end(Tensor& t, int64_t at, bool with_args = false);
  void negotiate(Tensor& t, int64_t at);
  void tick(Tensor& t, const Tick& tick);
  void enter(Batch& b, Tensor& t, int64_t at);
  void span(Batch& b, bool begins, std::string_view quoted, int64_t at);
  void finish(Batch& b, int64_t at);
  void leave(Batch& b);
  void forget_if_numbered(const Tensor& t);
  void fail(Tensor& t, int64_t at);
  void wait(const Event& e);
  void instant(std::string_view name, int64_t at, std::string_view args);
  void meta(Tensor& t);
  void rest(int64_t at, const Tensor& t);  // of a line: "ts" and "pid"
  void rest(int64_t at);                   // likewise, of process 0
  int64_t micros(int64_t at) const { return at > start_ ? (at - start_) / 1000 : 0; }
  void number(int64_t n);
  void quoted(std::string_view s);

  Texts& texts_;
  const int64_t start_;
  std::string& out_;
  std::vector<std::string> names_;
  // By the text's number, made at the first use: a text in quotation marks, and the "args" of an operation's end.
  std::deque<std::string> quoted_names_, args_;
  std::unordered_map<Key, Tensor, HashOfKey> tensors_;
  std::vector<Tensor*> by_name_;  // of the global process set, with names of their own: most of them
  std::unordered_map<uint64_t, Batch> batches_;
  Batch* entering_ = nullptr;
  uint16_t entering_set_ = 0;
  uint8_t entering_kind_ = 0;
  int64_t entering_at_ = 0;
  std::vector<int64_t> wait_lanes_;
  uint32_t pids_ = 0;
};

}  // namespace hvd::recorder
