// Hands forged tables to the loader and prints, for each, "name: accepted" or "name: <the refusal>". Tables are on
// the heap and have exactly their claimed size, so that AddressSanitizer sees any access beyond it.
#include <cstring>
#include <memory>

#include "support.h"

namespace {

using hvd::plugins::Backend;

hvd_rc device_count(int32_t* n, hvd_error*) {
  *n = 1;
  return HVD_OK;
}
template <class... A>
hvd_rc nothing(A...) {
  return HVD_OK;
}

// A valid table of every kind. A forger changes or cuts parts of it.
struct Forged {
  hvd_device_api device;
  hvd_comm_api comm;
  hvd_backend_api backend;
  hvd_option option;
  Forged() {
    std::memset(static_cast<void*>(this), 0, sizeof(*this));
    device.hdr = {sizeof(device), 1, 0, nullptr};
    device.device_type = "cpu";
    device.count = device_count;
    device.open = nothing;
    device.close = nothing;
    device.props = nothing;
    device.copy = nothing;
    comm.hdr = {sizeof(comm), 1, 0, nullptr};
    comm.device_types = "";
    comm.caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
    comm.create = nothing;
    comm.destroy = nothing;
    comm.query = nothing;
    comm.collective = nothing;
    comm.req_test = nothing;
    comm.req_wait = nothing;
    comm.req_free = nothing;
    option.hdr = {sizeof(option), 1, 0, nullptr};
    option.name = "knob";
    backend.hdr = {sizeof(backend), 1, 0, nullptr};
    backend.name = "forged";
    backend.tag = "FORGED";
    backend.options = &option;
    backend.option_count = 1;
  }
};

// The answer of the entry function below.
const hvd_backend_api* answer = nullptr;
hvd_rc answer_rc = HVD_OK;

template <int N>  // a fresh function for each case, since the loader remembers entries it has accepted
hvd_rc entry(const hvd_host_api*, const hvd_backend_api** out, hvd_error* error) {
  *out = answer;
  if (answer_rc != HVD_OK) {
    std::strcpy(error->text, "no \xff luck");
    error->vendor_code = 17;
  }
  return answer_rc;
}

hvd_rc throwing(const hvd_host_api*, const hvd_backend_api**, hvd_error*) { throw std::runtime_error("oops"); }

void report(const char* name, hvd_backend_entry_fn fn) {
  const std::string error = test::thrown([&] { Backend::load_entry(fn, "forged", "the forge"); });
  std::printf("%s: %s\n", name, error.empty() ? "accepted" : error.c_str());
}

// A copy of a struct on the heap, cut or extended to `size` bytes, the extension dirty. It claims that size, unless
// the forger has made it claim another. It is never freed, like a library's tables.
template <class T>
T* cut(const T& from, size_t size) {
  static auto* kept = new std::vector<std::unique_ptr<unsigned char[]>>;
  kept->push_back(std::make_unique<unsigned char[]>(size));
  unsigned char* p = kept->back().get();
  std::memset(p, 0xCD, size);
  std::memcpy(p, &from, std::min(size, sizeof(T)));
  auto* table = reinterpret_cast<T*>(p);
  if (from.hdr.struct_size == sizeof(T)) table->hdr.struct_size = static_cast<uint32_t>(size);
  return table;
}

template <int N>
void forge(const char* name, const std::function<void(Forged&)>& change, size_t backend_size = sizeof(hvd_backend_api),
           size_t comm_size = sizeof(hvd_comm_api), size_t device_size = sizeof(hvd_device_api)) {
  Forged f;
  f.backend.comm = &f.comm;
  f.backend.device = &f.device;
  change(f);
  if (f.backend.comm) f.backend.comm = cut(f.comm, comm_size);
  if (f.backend.device) f.backend.device = cut(f.device, device_size);
  if (f.backend.options) f.backend.options = cut(f.option, sizeof(f.option));
  answer = cut(f.backend, backend_size);
  report(name, &entry<N>);
}

void fill(void* p, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    static_cast<unsigned char*>(p)[i] = static_cast<unsigned char>(seed >> 24);
  }
}

void forge_headers() {
  constexpr size_t kB = sizeof(hvd_backend_api), kC = sizeof(hvd_comm_api), kD = sizeof(hvd_device_api);
  forge<0>("good", [](Forged&) {});
  forge<1>("long_with_dirty_tails", [](Forged&) {}, kB + 64, kC + 8, kD + 1024);
  forge<2>("newer_minor", [](Forged& f) { f.backend.hdr.minor = f.comm.hdr.minor = 7; });
  forge<3>("short_backend", [](Forged&) {}, kB - 8);
  forge<4>("short_comm", [](Forged&) {}, kB, offsetof(hvd_comm_api, window_create) - 8);
  forge<5>("short_device", [](Forged&) {}, kB, kC, kD - 8);
  forge<6>("only_a_header", [](Forged&) {}, sizeof(hvd_hdr));
  forge<7>("size_zero", [](Forged& f) { f.backend.hdr.struct_size = 0; });
  forge<8>("size_absurd", [](Forged& f) { f.backend.hdr.struct_size = 0x7fffffff; });
  forge<9>("comm_size_absurd", [](Forged& f) { f.comm.hdr.struct_size = 0xffffffff; });
  forge<10>("major_2", [](Forged& f) { f.backend.hdr.major = 2; });
  forge<11>("comm_major_0", [](Forged& f) { f.comm.hdr.major = 0; });
  forge<12>("same_byte_everywhere", [](Forged& f) { std::memset(&f.backend, 0xAB, sizeof(f.backend)); });
  forge<13>("random_bytes", [](Forged& f) { fill(&f.backend, sizeof(f.backend), 42); });
  alignas(8) static char odd[sizeof(hvd_backend_api) + 8];
  answer = reinterpret_cast<hvd_backend_api*>(odd + 1);
  report("misaligned", &entry<14>);
  answer = nullptr;
  report("null_table", &entry<15>);
  report("null_entry", nullptr);
  report("throws", &throwing);
  answer_rc = HVD_E_UNAVAILABLE;
  report("refuses", &entry<16>);
  answer_rc = 99;
  report("unknown_code", &entry<17>);
  answer_rc = HVD_INPROGRESS;
  report("inprogress", &entry<18>);
  answer_rc = HVD_OK;
}

void forge_contents() {
  forge<20>("null_name", [](Forged& f) { f.backend.name = nullptr; });
  forge<21>("empty_name", [](Forged& f) { f.backend.name = ""; });
  forge<22>("bad_name", [](Forged& f) { f.backend.name = "for ged"; });
  forge<23>("endless_name", [](Forged& f) { f.backend.name = "forgedforgedforgedforgedforgedforgedforged"; });
  forge<24>("other_name", [](Forged& f) { f.backend.name = "gold"; });
  forge<25>("null_tag", [](Forged& f) { f.backend.tag = nullptr; });
  forge<26>("no_tables", [](Forged& f) {
    f.backend.comm = nullptr;
    f.backend.device = nullptr;
  });
  forge<27>("only_device", [](Forged& f) { f.backend.comm = nullptr; });
  forge<28>("only_comm", [](Forged& f) { f.backend.device = nullptr; });
  forge<29>("missing_create", [](Forged& f) { f.comm.create = nullptr; });
  forge<30>("missing_two", [](Forged& f) {
    f.comm.collective = nullptr;
    f.comm.query = nullptr;
  });
  forge<31>("missing_open", [](Forged& f) { f.device.open = nullptr; });
  forge<32>("half_req", [](Forged& f) { f.comm.req_wait = nullptr; });
  forge<33>("half_group", [](Forged& f) { f.comm.group_begin = nothing; });
  forge<34>("half_mem", [](Forged& f) { f.device.mem_alloc = nothing; });
  forge<35>("request_without_slots", [](Forged& f) {
    f.comm.req_test = nullptr;
    f.comm.req_wait = nullptr;
    f.comm.req_free = nullptr;
  });
  forge<36>("both_modes", [](Forged& f) { f.comm.caps |= HVD_CAP_STREAM; });
  forge<37>("neither_mode", [](Forged& f) { f.comm.caps = HVD_CAP_MEM_HOST; });
  forge<38>("abort_without_slot", [](Forged& f) { f.comm.caps |= HVD_CAP_ABORT; });
  forge<39>("group_without_slots", [](Forged& f) { f.comm.caps |= HVD_CAP_GROUP_MIXED; });
  forge<40>("no_memory", [](Forged& f) { f.comm.caps = HVD_CAP_REQUEST; });
  forge<41>("device_memory_of_what", [](Forged& f) { f.comm.caps |= HVD_CAP_MEM_DEVICE; });
  forge<42>("null_device_type", [](Forged& f) { f.device.device_type = nullptr; });
  forge<43>("options_null", [](Forged& f) { f.backend.options = nullptr; });
  forge<44>("options_absurd", [](Forged& f) { f.backend.option_count = uint64_t{1} << 60; });
  forge<45>("options_short", [](Forged& f) { f.option.hdr.struct_size = 24; });
  forge<46>("option_without_name", [](Forged& f) { f.option.name = nullptr; });
}

}  // namespace

int main() {
  forge_headers();
  forge_contents();
  return 0;
}
