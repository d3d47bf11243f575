// A backend of jobs of one process that reports facts of its "library" from the environment: TELL_<KEY>.
#include <cstdlib>
#include <hvd/backend.hpp>

namespace {

struct Telling : hvd::Comm<Telling> {
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
  static constexpr const char* version = "1.5";
  explicit Telling(const hvd::CommInit& init) : Comm(init) {}

  static std::string info(const std::string& key) {
    const char* told = std::getenv(("TELL_" + key).c_str());
    return told ? told : "";
  }

  hvd::Work allreduce(const hvd::Coll&) { return hvd::Work::done(); }
  hvd::Work allgather(const hvd::Coll&) { return hvd::Work::done(); }
  hvd::Work broadcast(const hvd::Coll&) { return hvd::Work::done(); }
};

}  // namespace

HVD_BACKEND(NAME, hvd::NoDevice, Telling)
