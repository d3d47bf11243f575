// A backend whose communicators look into the store while they are created: a key that no rank sets is missing at once,
// and the rank's own key is there. It moves data between no ranks, so it is for jobs of one rank, and for init() of
// more.
#include <cstring>

#include "hvd/backend.hpp"

namespace {

class LookingComm : public hvd::Comm<LookingComm> {
 public:
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
  static constexpr hvd_option options[] = {
      hvd::make_option("library", "path", "", "", "The path that the probe has found."),
      hvd::make_option("depth", "size", "4KiB", "1..1MiB", "How deep it looks."),
  };

  explicit LookingComm(const hvd::CommInit& init) : Comm(init) {
    const std::string own = "rank " + std::to_string(init.rank);
    if (init.store.try_get("nothing")) throw hvd::Error(HVD_E_INTERNAL, "a key that no rank has set is there");
    init.store.set(own.c_str(), std::string(1000, 'x'));
    const auto value = init.store.try_get(own.c_str());
    if (!value || value->size() != 1000) throw hvd::Error(HVD_E_INTERNAL, "the key of this rank is missing");
    init.store.del(own.c_str());
    int turns = 0;
    if (!hvd::poll_until(0, [&] { return ++turns == 3; })) throw hvd::Error(HVD_E_INTERNAL, "three turns took 60 s");
    if (hvd::poll_until(1, [] { return false; }))
      throw hvd::Error(HVD_E_INTERNAL, "nothing came before a past deadline");
  }

  hvd::Work allgather(const hvd::Coll& c) {
    for (uint64_t i = 0; i < c.buffers(); ++i) std::memcpy(c.out(i), c.in(i), c.count(i) * c.element_bytes());
    return hvd::Work::done();
  }
  static std::string info(const std::string& key) { return key == "library" ? hvd::option("library", "") : ""; }
};

}  // namespace

HVD_BACKEND(looking, hvd::NoDevice, LookingComm)
