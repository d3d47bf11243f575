// The algorithms: between each pair of ranks there is a connection, so that every collective is one or two exchanges of
// all ranks with all ranks. Sums are made slice by slice, each by one rank, in rank order.
#include <algorithm>
#include <cstring>

#include "exchange.h"
#include "operation.h"

namespace sim {
namespace {

constexpr size_t kSmall = 8192;       // bytes: every rank sums all of it, which saves an exchange
constexpr uint32_t kScaledSum = 100;  // in headers: the numbers of scaled sums are each rank's own

class Collective {
 public:
  Collective(Comm& comm, const Operation& op)
      : comm_(comm), op_(op), rank_(comm.rank()), size_(comm.size()), width_(width_of(op.type)) {
    mine_ = {static_cast<uint32_t>(op.kind),
             static_cast<uint32_t>(op.type),
             op.how.scaled ? kScaledSum : static_cast<uint32_t>(op.how.op),
             op.root,
             op.count,
             1.0};
    if (op.how.scaled) {
      mine_.factor = op.scalar.source.data != nullptr ? scalar_of(op.type, op.scalar.source.data) : op.scalar.value;
    }
    theirs_.resize(static_cast<size_t>(size_), mine_);
  }

  void run() {
    using Kind = Operation::Kind;
    switch (op_.kind) {
      case Kind::kAllReduce:
        return op_.count * width_ <= kSmall ? all_reduce_small() : all_reduce();
      case Kind::kReduce:
        return reduce_to_root();
      case Kind::kReduceScatter:
        return reduce_scatter();
      case Kind::kBroadcast:
        return broadcast();
      case Kind::kAllGather:
        return all_gather();
      case Kind::kGather:
        return gather();
      case Kind::kScatter:
        return scatter();
      case Kind::kMessage:
        return;
    }
  }

 private:
  struct Range {
    size_t begin, bytes;
  };

  // The part of the elements that rank `r` sums, in bytes. Multiples of 16 elements keep loops aligned.
  Range slice(int r) const {
    const auto n = static_cast<size_t>(size_);
    const size_t step = ((op_.count + n - 1) / n + 15) / 16 * 16;
    const size_t begin = std::min(op_.count, step * static_cast<size_t>(r));
    const size_t end = std::min(op_.count, begin + step);
    return {begin * width_, (end - begin) * width_};
  }

  // The r-th of equal blocks.
  Range block(int r) const { return {op_.count * width_ * static_cast<size_t>(r), op_.count * width_}; }

  Chunk out_chunk(char* base, Range range) const { return {base + range.begin, range.bytes}; }

  // One leg for each peer. The first exchange of a collective carries headers, and with them every rank's factor.
  std::vector<Leg> legs(bool headers) {
    std::vector<Leg> made;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      made.push_back({r, {}, {}});
      if (!headers) continue;
      made.back().out.push_back({reinterpret_cast<char*>(&mine_), sizeof mine_});
      made.back().in.push_back({reinterpret_cast<char*>(&theirs_[static_cast<size_t>(r)]), sizeof(Header), &mine_});
    }
    return made;
  }

  // Sums `bytes` of all ranks: this rank's at `own`, rank r's at scratch + r * bytes.
  void sum(char* own, size_t bytes, char* scratch, char* out) {
    std::vector<Source> sources;
    for (int r = 0; r < size_; ++r) {
      const auto index = static_cast<size_t>(r);
      sources.push_back(
          {r == rank_ ? own : scratch + index * bytes, r == rank_ ? mine_.factor : theirs_[index].factor});
    }
    reduce(op_.type, op_.how, sources, out, bytes / width_);
  }

  void all_reduce_small() {
    const size_t bytes = op_.count * width_;
    char* scratch = comm_.scratch(bytes * static_cast<size_t>(size_));
    auto all = legs(true);
    for (Leg& leg : all) {
      leg.out.push_back({op_.send.data, bytes});
      leg.in.push_back({scratch + static_cast<size_t>(leg.peer) * bytes, bytes});
    }
    transfer(comm_, all);
    sum(op_.send.data, bytes, scratch, op_.recv.data);
  }

  // All ranks' parts of this rank's slice, summed to `out`; null: into the scratch memory, which is returned.
  char* sum_slice(Range mine, Range (Collective::*part)(int) const, char* out) {
    char* scratch = comm_.scratch(mine.bytes * static_cast<size_t>(size_));
    auto all = legs(true);
    for (Leg& leg : all) {
      leg.out.push_back(out_chunk(op_.send.data, (this->*part)(leg.peer)));
      leg.in.push_back({scratch + static_cast<size_t>(leg.peer) * mine.bytes, mine.bytes});
    }
    transfer(comm_, all);
    if (out == nullptr) out = scratch + static_cast<size_t>(rank_) * mine.bytes;
    sum(op_.send.data + mine.begin, mine.bytes, scratch, out);
    return out;
  }

  void all_reduce() {
    const Range mine = slice(rank_);
    sum_slice(mine, &Collective::slice, op_.recv.data + mine.begin);
    auto all = legs(false);
    for (Leg& leg : all) {
      leg.out.push_back(out_chunk(op_.recv.data, mine));
      leg.in.push_back(out_chunk(op_.recv.data, slice(leg.peer)));
    }
    transfer(comm_, all);
  }

  void reduce_to_root() {
    const Range mine = slice(rank_);
    const bool root = rank_ == op_.root;
    char* summed = sum_slice(mine, &Collective::slice, root ? op_.recv.data + mine.begin : nullptr);
    auto all = legs(false);
    for (Leg& leg : all) {
      if (root) leg.in.push_back(out_chunk(op_.recv.data, slice(leg.peer)));
      if (leg.peer == op_.root) leg.out.push_back({summed, mine.bytes});
    }
    transfer(comm_, all);
  }

  void reduce_scatter() { sum_slice(block(rank_), &Collective::block, op_.recv.data); }

  void broadcast() {
    const size_t bytes = op_.count * width_;
    auto all = legs(true);
    for (Leg& leg : all) {
      if (rank_ == op_.root) leg.out.push_back({op_.send.data, bytes});
      if (leg.peer == op_.root) leg.in.push_back({op_.recv.data, bytes});
    }
    transfer(comm_, all);
    if (rank_ == op_.root) move(op_.recv.data, op_.send.data, bytes);
  }

  void all_gather() {
    auto all = legs(true);
    for (Leg& leg : all) {
      leg.out.push_back({op_.send.data, op_.count * width_});
      leg.in.push_back(out_chunk(op_.recv.data, block(leg.peer)));
    }
    transfer(comm_, all);
    move(op_.recv.data + block(rank_).begin, op_.send.data, op_.count * width_);
  }

  void gather() {
    auto all = legs(true);
    for (Leg& leg : all) {
      if (leg.peer == op_.root) leg.out.push_back({op_.send.data, op_.count * width_});
      if (rank_ == op_.root) leg.in.push_back(out_chunk(op_.recv.data, block(leg.peer)));
    }
    transfer(comm_, all);
    if (rank_ == op_.root) move(op_.recv.data + block(rank_).begin, op_.send.data, op_.count * width_);
  }

  void scatter() {
    auto all = legs(true);
    for (Leg& leg : all) {
      if (rank_ == op_.root) leg.out.push_back(out_chunk(op_.send.data, block(leg.peer)));
      if (leg.peer == op_.root) leg.in.push_back({op_.recv.data, op_.count * width_});
    }
    transfer(comm_, all);
    if (rank_ == op_.root) move(op_.recv.data, op_.send.data + block(rank_).begin, op_.count * width_);
  }

  static void move(char* to, const char* from, size_t bytes) {
    if (bytes > 0 && to != from) memmove(to, from, bytes);
  }

  Comm& comm_;
  const Operation& op_;
  const int rank_, size_;
  const size_t width_;
  Header mine_{};
  std::vector<Header> theirs_;
};

// Sends and receives of one launch: those to and from each peer in the order in which they were asked for.
void exchange_messages(Comm& comm, const std::vector<Operation>& batch) {
  std::vector<Header> sent(batch.size()), got(batch.size());
  std::vector<Leg> by_peer(static_cast<size_t>(comm.size()));
  std::vector<const Operation*> from_self, to_self;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Operation& op = batch[i];
    const Span& span = op.outgoing ? op.send : op.recv;
    if (op.root == comm.rank()) {
      (op.outgoing ? from_self : to_self).push_back(&op);
      continue;
    }
    Leg& leg = by_peer[static_cast<size_t>(op.root)];
    sent[i] = {static_cast<uint32_t>(op.kind), static_cast<uint32_t>(op.type), 0, -1, op.count, 1.0};
    auto& direction = op.outgoing ? leg.out : leg.in;
    if (op.outgoing) {
      direction.push_back({reinterpret_cast<char*>(&sent[i]), sizeof(Header)});
    } else {
      direction.push_back({reinterpret_cast<char*>(&got[i]), sizeof(Header), &sent[i]});
    }
    direction.push_back({span.data, op.count * width_of(op.type)});
  }
  std::vector<Leg> legs;
  for (int r = 0; r < comm.size(); ++r) {
    Leg& leg = by_peer[static_cast<size_t>(r)];
    leg.peer = r;
    if (!leg.out.empty() || !leg.in.empty()) legs.push_back(std::move(leg));
  }
  transfer(comm, legs);
  if (from_self.size() != to_self.size()) throw Failure{ecclInvalidUsage, "a message to the own rank has no other end"};
  for (size_t i = 0; i < to_self.size(); ++i) {
    const Operation &out = *from_self[i], &in = *to_self[i];
    if (out.count != in.count || out.type != in.type) {
      throw Failure{ecclInvalidUsage, "a message to the own rank is not what is received"};
    }
    if (in.count > 0) memmove(in.recv.data, out.send.data, in.count * width_of(in.type));
  }
}

}  // namespace

const char* describe(Operation::Kind kind) {
  static const char* const names[] = {"AllReduce",     "Broadcast", "Reduce",  "AllGather",
                                      "ReduceScatter", "Gather",    "Scatter", "Send/Recv"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(names) ? names[index] : "something unknown";
}

void perform(Comm& comm, const std::vector<Operation>& batch) {
  std::vector<Operation> messages;
  for (const Operation& op : batch) {
    if (op.kind == Operation::Kind::kMessage) {
      messages.push_back(op);
    } else {
      Collective(comm, op).run();
    }
  }
  if (!messages.empty()) exchange_messages(comm, messages);
}

}  // namespace sim
