// Small broadcasts: a binomial tree, so that the last rank hears after log2 n messages. One message per edge.
//
// With v the distance from the root, a rank's parent is v without its lowest set bit.
#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kWhole = 1;

class Tree final : public Schedule {
 public:
  void begin(const ScheduleParams& params, Collective& collective) override {
    clear(params);
    collective_ = &collective;
    const uint32_t root = static_cast<uint32_t>(collective.root), n = params.size;
    const uint32_t v = (params.rank + n - root) % n;
    is_root_ = v == 0;
    in_.open(collective.in[0]);
    out_.open(collective.out[0]);
    bytes_ = collective.extent;
    have_ = is_root_;
    children_.clear();
    uint32_t below = 1;  // subtrees of 1, 2, 4, ... ranks hang below this one
    while (below < n && (v & below) == 0) below *= 2;
    for (uint32_t d = below / 2; d > 0; d /= 2) {  // the deepest first
      if (v + d < n) children_.push_back({(params.rank + d) % n, false});
    }
    parent_ = is_root_ ? params.rank : (v - below + root) % n;
    if (!is_root_) expect(parent_, 1);
    for (const Child& child : children_) owe(child.rank, 1);
  }

  bool next(uint32_t peer, Message* m) override {
    if (!have_) return false;
    const auto child =
        std::find_if(children_.begin(), children_.end(), [&](const Child& c) { return c.rank == peer && !c.told; });
    if (child == children_.end()) return false;
    child->told = true;
    *m = {kWhole, 0, 0, bytes_, {is_root_ ? &in_ : &out_, 0, bytes_}};
    return true;
  }

  Verdict place(uint32_t peer, const Header& h, Payload* where) override {
    if (h.kind != kWhole || is_root_ || peer != parent_ || h.bytes != bytes_ || have_) return Verdict::kWrong;
    *where = {&out_, 0, bytes_};
    return Verdict::kTake;
  }

  void finish() override {
    if (is_root_ && collective_->own_copy) copy_extent(in_, 0, out_, 0, bytes_);
  }

 protected:
  void on_arrived(uint32_t, const Header&) override { have_ = true; }

 private:
  struct Child {
    uint32_t rank;
    bool told;
  };
  Collective* collective_ = nullptr;
  Extent in_, out_;
  uint64_t bytes_ = 0;
  bool is_root_ = false, have_ = false;
  uint32_t parent_ = 0;
  std::vector<Child> children_;
};

}  // namespace

std::unique_ptr<Schedule> make_tree() { return std::make_unique<Tree>(); }

}  // namespace hvd::tcp
