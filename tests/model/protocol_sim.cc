// N control nodes in one process, joined by queues, on a clock that the caller moves: the engine's protocol code under
// a scheduler that can try any interleaving. A Python module for the tests of the protocol. Called with the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/agreement/node.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/request.h"

namespace py = pybind11;

namespace hvd::agreement {
namespace {

// One direction of a link. Bytes are delivered when the test says so.
struct Pipe {
  std::deque<std::string> in_flight;  // sent, not delivered
  std::string delivered;
  uint64_t frames = 0, bytes = 0;  // sent so far
};

class PipeChannel final : public Channel {
 public:
  PipeChannel(Pipe& out, Pipe& in) : out_(out), in_(in) {}
  size_t send(std::string_view bytes) override {
    out_.in_flight.emplace_back(bytes);
    ++out_.frames;
    out_.bytes += bytes.size();
    return bytes.size();
  }
  size_t recv(char* into, size_t room) override {
    size_t n = std::min(room, in_.delivered.size());
    in_.delivered.copy(into, n);
    in_.delivered.erase(0, n);
    return n;
  }
  void wake_peer() override {}

 private:
  Pipe& out_;
  Pipe& in_;
};

// Spoiled messages may have names that are not valid text.
py::str text_of(const std::string& s) {
  PyObject* text = PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace");
  if (!text) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

// The test's number of a request; 0: the rank has none.
RequestRef make_request(uint64_t number) {
  auto request = std::make_shared<calls::Request>();
  request->handle = number;
  return request;
}
uint64_t number_of(const RequestRef& request) { return request ? request->handle : 0; }

// The events of a rank, in order: (kind, details...).
struct Recorder final : Node::Host {
  py::list events;
  bool counts_only = false;  // for Sim::settle(): executed items are counted, and no event is made of them
  uint64_t executed = 0;
  void execute(SetId set, std::vector<BatchItem> items) override {
    executed += items.size();
    if (counts_only) return;
    py::list names, tokens;
    for (const auto& x : items) {
      names.append(text_of(*x.item.name));
      tokens.append(number_of(x.request));
    }
    events.append(py::make_tuple("execute", set, names, tokens));
  }
  void fail(const RequestRef& request, base::Failure, const std::string& text) override {
    events.append(py::make_tuple("fail", number_of(request), text_of(text)));
  }
  void joined(Rank last) override { events.append(py::make_tuple("joined", last)); }
  void closed(Rank by, const std::string& text) override { events.append(py::make_tuple("closed", by, text_of(text))); }
  void set_added(SetId set, const std::vector<Rank>& members, RequestRef request, const NameRef&) override {
    events.append(py::make_tuple("set_added", set, py::cast(members), number_of(request)));
  }
  void set_removed(SetId set, RequestRef request) override {
    events.append(py::make_tuple("set_removed", set, number_of(request)));
  }
  void aborted(const std::string& cause) override { events.append(py::make_tuple("aborted", text_of(cause))); }
  void link_lost(Rank, const std::string&) override {}
};

Hurry hurry_if(bool urgent) { return urgent ? Hurry::Waits : Hurry::None; }

// A tree of nodes: parents[r] is the parent of rank r; rank 0 is the root.
class Sim {
 public:
  Sim(std::vector<int32_t> parents, uint32_t cache_capacity, uint64_t fusion_threshold, uint32_t repeats,
      int64_t dissolve_after_ns, int64_t merge_ns, std::optional<int64_t> coalesce_ns, const std::string& key,
      bool encrypted)
      : hosts_(parents.size()) {
    const auto n = static_cast<Rank>(parents.size());
    up_.resize(parents.size());
    down_.resize(parents.size());
    for (auto& p : up_) p = std::make_unique<Pipe>();
    for (auto& p : down_) p = std::make_unique<Pipe>();
    for (Rank r = 0; r < n; ++r) {
      NodeConfig c;
      c.rank = r;
      c.world = n;
      c.cache_capacity = cache_capacity;
      c.fusion = {fusion_threshold, coalesce_ns.value_or(dissolve_after_ns)};
      c.repeats_before_known = repeats;
      c.dissolve_after_ns = dissolve_after_ns;
      c.merge_ns = merge_ns;
      std::unique_ptr<Link> parent;
      if (r > 0)
        parent = std::make_unique<Link>(std::make_unique<PipeChannel>(*up_[at(r)], *down_[at(r)]), parents[at(r)],
                                        std::vector<int32_t>{}, seals(key, true, encrypted));
      std::vector<std::unique_ptr<Link>> children;
      for (Rank k = 1; k < n; ++k)
        if (parents[at(k)] == r)
          children.push_back(std::make_unique<Link>(std::make_unique<PipeChannel>(*down_[at(k)], *up_[at(k)]), k,
                                                    subtree(parents, k), seals(key, false, encrypted)));
      nodes_.push_back(std::make_unique<Node>(c, std::move(parent), std::move(children), hosts_[at(r)]));
    }
  }

  // `sig` is any number: requests of one name agree when it is equal on all ranks.
  bool submit(Rank r, const std::string& name, int64_t sig, uint64_t token, bool repeats, bool urgent, SetId set) {
    SignatureFields f;
    f.repeats = repeats;
    f.tensors.push_back({7, {sig}});
    Item item{std::make_shared<const std::string>(name), std::make_shared<const Signature>(std::move(f))};
    return node(r).submit(set, std::move(item), make_request(token), hurry_if(urgent), now_);
  }
  bool add_set(Rank r, const std::vector<int32_t>& ranks, uint64_t token) {
    SignatureFields f;
    f.kind = base::OpKind::AddProcessSet;
    f.ranks = ranks;
    return change_sets(r, std::move(f), token);
  }
  bool remove_set(Rank r, SetId set, uint64_t token) {
    SignatureFields f;
    f.kind = base::OpKind::RemoveProcessSet;
    f.root = static_cast<int32_t>(set);
    return change_sets(r, std::move(f), token);
  }
  // R15: a set of its members, under a label.
  bool add_members_set(Rank r, const std::vector<int32_t>& ranks, const std::string& label, uint64_t token) {
    SignatureFields f;
    f.kind = base::OpKind::AddProcessSet;
    f.ranks = ranks;
    return change_sets(r, std::move(f), token, members_set_name(ranks, label));
  }
  bool remove_members_set(Rank r, const std::vector<int32_t>& ranks, const std::string& label, SetId set,
                          uint64_t token) {
    SignatureFields f;
    f.kind = base::OpKind::RemoveProcessSet;
    f.root = static_cast<int32_t>(set);
    return change_sets(r, std::move(f), token, members_set_name(ranks, label));
  }
  void poison(Rank r, const std::string& name, const std::string& text, SetId set) { node(r).poison(set, name, text); }
  void wanted(Rank r, const std::string& name, SetId set) { node(r).wanted(set, name); }
  // Messages that rank `r` has sent towards the root so far, and entries of the log that it has replayed.
  std::pair<uint64_t, uint64_t> traffic(Rank r) { return {node(r).messages_up(), node(r).entries()}; }
  void join(Rank r) { node(r).join(); }
  void leave(Rank r, const std::string& text) { node(r).leave(text); }
  void abort(Rank r, const std::string& text) { node(r).abort(text); }
  bool step(Rank r) { return node(r).step(now_); }
  void advance(int64_t ns) { now_ += ns; }

  // Submits `names` on every rank, the last one as a call that waits. For benchmarks/control_plane.py.
  void submit_everywhere(const std::vector<std::string>& names, int64_t sig) {
    SignatureFields f;
    f.tensors.push_back({7, {sig}});
    const auto signature = std::make_shared<const Signature>(std::move(f));
    std::vector<std::shared_ptr<const std::string>> keys;
    for (const auto& name : names) keys.push_back(std::make_shared<const std::string>(name));
    busy_ns_.resize(nodes_.size());
    for (Rank r = 0; r < static_cast<Rank>(nodes_.size()); ++r) {
      const int64_t begin = base::now_ns();
      for (size_t i = 0; i < keys.size(); ++i)
        if (!node(r).submit(0, Item{keys[i], signature}, nullptr, hurry_if(i + 1 == keys.size()), now_))
          throw py::value_error("'" + names[i] + "' is in flight already");
      busy_ns_[at(r)] += base::now_ns() - begin;
    }
  }
  // Delivers and steps until `items` more items of each rank have been executed; time passes only when nothing else
  // happens. Returns the rounds of deliveries, and the virtual nanoseconds that passed. The nodes' work is timed.
  std::pair<int, int64_t> settle(uint64_t items) {
    busy_ns_.resize(nodes_.size());
    std::vector<uint64_t> goal;
    for (auto& host : hosts_) {
      host.counts_only = true;
      goal.push_back(host.executed + items);
    }
    const int64_t begin = now_;
    for (int rounds = 0;;) {
      bool worked = false, done = true;
      for (Rank r = 0; r < static_cast<Rank>(nodes_.size()); ++r) {
        const int64_t start = base::now_ns();
        const bool did = node(r).step(now_);
        const int64_t end = base::now_ns();
        if (did) busy_ns_[at(r)] += end - start;  // a real node sleeps while nothing has come
        worked |= did;
        done &= hosts_[at(r)].executed >= goal[at(r)];
      }
      bool delivered = false;
      for (auto* pipes : {&up_, &down_})
        for (auto& pipe : *pipes)
          for (; !pipe->in_flight.empty(); pipe->in_flight.pop_front()) {
            pipe->delivered += pipe->in_flight.front();
            delivered = true;
          }
      rounds += delivered;
      if (delivered || worked) continue;
      if (done) return {rounds, now_ - begin};
      int64_t next = kNever;
      for (const auto& n : nodes_) next = std::min(next, n->next_deadline());
      if (next == kNever) throw py::value_error("the nodes wait for something that does not come");
      now_ = std::max(next, now_ + 1);
    }
  }
  // What each rank has done so far: (frames up, bytes up, frames down to each of its children, bytes of these, ns).
  py::list accounts(const std::vector<int32_t>& parents) const {
    std::vector<std::pair<uint64_t, uint64_t>> down(nodes_.size());
    for (size_t r = 1; r < nodes_.size(); ++r) {
      down[at(parents[r])].first += down_[r]->frames;
      down[at(parents[r])].second += down_[r]->bytes;
    }
    py::list all;
    for (size_t r = 0; r < nodes_.size(); ++r)
      all.append(py::make_tuple(up_[r]->frames, up_[r]->bytes, down[r].first, down[r].second,
                                r < busy_ns_.size() ? busy_ns_[r] : 0));
    return all;
  }

  // Directions in which bytes are under way: (rank, upwards).
  std::vector<std::pair<Rank, bool>> in_flight() const {
    std::vector<std::pair<Rank, bool>> found;
    for (size_t r = 1; r < up_.size(); ++r) {
      if (!up_[r]->in_flight.empty()) found.emplace_back(r, true);
      if (!down_[r]->in_flight.empty()) found.emplace_back(r, false);
    }
    return found;
  }
  // Delivers the oldest bytes on the link above `r`.
  void deliver(Rank r, bool upwards) {
    Pipe& p = *(upwards ? up_ : down_)[at(r)];
    if (p.in_flight.empty()) throw py::value_error("nothing is under way there");
    p.delivered += p.in_flight.front();
    p.in_flight.pop_front();
  }
  // Takes the oldest bytes off the link above `r`, for a test that spoils them.
  py::bytes intercept(Rank r, bool upwards) {
    Pipe& p = *(upwards ? up_ : down_)[at(r)];
    if (p.in_flight.empty()) throw py::value_error("nothing is under way there");
    py::bytes piece(p.in_flight.front());
    p.in_flight.pop_front();
    return piece;
  }
  void inject(Rank r, bool upwards, const std::string& bytes) { (upwards ? up_ : down_)[at(r)]->delivered += bytes; }
  py::list take_events(Rank r) {
    py::list events = hosts_[at(r)].events;
    hosts_[at(r)].events = py::list();
    return events;
  }
  py::object next_deadline(Rank r) {
    int64_t t = node(r).next_deadline();
    return t == kNever ? py::object(py::none()) : py::object(py::int_(t - now_));
  }

 private:
  static size_t at(Rank r) { return static_cast<size_t>(r); }
  static std::unique_ptr<rendezvous::Seals> seals(const std::string& key, bool to_parent, bool encrypted) {
    if (key.empty()) return nullptr;
    const auto kind = encrypted ? rendezvous::FrameSeal::Kind::kEncrypted : rendezvous::FrameSeal::Kind::kSigned;
    const char *const out = to_parent ? "up" : "down", *const in = to_parent ? "down" : "up";
    return std::make_unique<rendezvous::Seals>(
        rendezvous::Seals{rendezvous::FrameSeal(key, out, kind), rendezvous::FrameSeal(key, in, kind)});
  }
  static std::vector<int32_t> subtree(const std::vector<int32_t>& parents, Rank top) {
    std::vector<int32_t> found{top};
    for (size_t i = 0; i < found.size(); ++i)
      for (Rank k = 1; k < static_cast<Rank>(parents.size()); ++k)
        if (parents[at(k)] == found[i]) found.push_back(k);
    return found;
  }
  bool change_sets(Rank r, SignatureFields f, uint64_t token, std::string name = kSetsName) {
    f.repeats = false;
    Item item{std::make_shared<const std::string>(std::move(name)), std::make_shared<const Signature>(std::move(f))};
    return node(r).submit(0, std::move(item), make_request(token), Hurry::Waits, now_);
  }
  Node& node(Rank r) { return *nodes_.at(at(r)); }

  int64_t now_ = 0;
  std::vector<int64_t> busy_ns_;  // of each node, in submit_everywhere() and settle()
  std::vector<Recorder> hosts_;
  std::vector<std::unique_ptr<Pipe>> up_, down_;  // by the lower end's rank
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace
}  // namespace hvd::agreement

PYBIND11_MODULE(protocol_sim, m) {
  using hvd::agreement::Sim;
  py::class_<Sim>(m, "ProtocolSim", "Control nodes of N ranks in one process, for tests of the protocol.")
      .def(py::init<std::vector<int32_t>, uint32_t, uint64_t, uint32_t, int64_t, int64_t, std::optional<int64_t>,
                    const std::string&, bool>(),
           py::arg("parents"), py::arg("cache_capacity") = 1024, py::arg("fusion_threshold") = uint64_t{128} << 20,
           py::arg("repeats") = 1, py::arg("dissolve_after_ns") = 1000000, py::arg("merge_ns") = 5000000,
           py::arg("coalesce_ns") = py::none(), py::arg("key") = "", py::arg("encrypted") = false)
      .def("submit", &Sim::submit, py::arg("rank"), py::arg("name"), py::arg("sig"), py::arg("token"),
           py::arg("repeats") = true, py::arg("urgent") = false, py::arg("set") = 0)
      .def("add_set", &Sim::add_set, py::arg("rank"), py::arg("ranks"), py::arg("token"))
      .def("remove_set", &Sim::remove_set, py::arg("rank"), py::arg("set"), py::arg("token"))
      .def("add_members_set", &Sim::add_members_set, py::arg("rank"), py::arg("ranks"), py::arg("label"),
           py::arg("token"))
      .def("remove_members_set", &Sim::remove_members_set, py::arg("rank"), py::arg("ranks"), py::arg("label"),
           py::arg("set"), py::arg("token"))
      .def("poison", &Sim::poison, py::arg("rank"), py::arg("name"), py::arg("text"), py::arg("set") = 0)
      .def("wanted", &Sim::wanted, py::arg("rank"), py::arg("name"), py::arg("set") = 0)
      .def("traffic", &Sim::traffic)
      .def("join", &Sim::join)
      .def("leave", &Sim::leave)
      .def("abort", &Sim::abort)
      .def("step", &Sim::step)
      .def("advance", &Sim::advance)
      .def("in_flight", &Sim::in_flight)
      .def("deliver", &Sim::deliver)
      .def("intercept", &Sim::intercept)
      .def("inject", &Sim::inject)
      .def("take_events", &Sim::take_events)
      .def("next_deadline", &Sim::next_deadline)
      .def("submit_everywhere", &Sim::submit_everywhere, py::arg("names"), py::arg("sig"))
      .def("settle", &Sim::settle, py::arg("items"))
      .def("accounts", &Sim::accounts, py::arg("parents"));
}
