// See mpi_api.h. One thread at a time until load_mpi() has returned, then any thread.
#include "mpi_api.h"

#include <hvd/backend_library.hpp>
#include <mutex>

#include "mpi_find.h"

namespace {

// MPI libraries write up to 8192 bytes of version (MPICH), and up to 512 of an error's text.
constexpr size_t kTextBytes = 8448;

MpiApi g_api;
std::string g_vendor_lib;

MpiApi fill(const FoundLibrary& found) {
  MpiApi api;
  static_cast<MpiConstants&>(api) = constants_of(found.family, found.handle);
  api.family = found.family;
  api.path = found.path;
#define MPI_FUNCTION(name, arguments)                                                                             \
  hvd::look_up(found.handle, "MPI_" #name, api.name);                                                             \
  if (api.name == nullptr) {                                                                                      \
    throw hvd::Error(HVD_E_UNAVAILABLE, "'" + found.path + "' has no function MPI_" #name "; MPI 3.1 is needed"); \
  }
#include "mpi_functions.inc"
  hvd::look_up(found.handle, "MPIX_Query_cuda_support", api.query_cuda);
  hvd::look_up(found.handle, "MPIX_Query_rocm_support", api.query_rocm);
  hvd::look_up(found.handle, "MPIX_GPU_query_support", api.query_gpu);
  return api;
}

// "Open MPI v5.0.11" of "Open MPI v5.0.11, package: ..."; "MPICH 4.3.2" of "MPICH Version:      4.3.2\n...".
std::string short_version(const std::string& text) {
  std::string line = text.substr(0, text.find_first_of(",\n"));
  const std::string label = " Version:";
  if (const size_t at = line.find(label); at != std::string::npos) line.erase(at, label.size());
  std::string tidy;
  for (char c : line) {
    if (c == '\t') c = ' ';
    if (c != ' ' || (!tidy.empty() && tidy.back() != ' ')) tidy += c;
  }
  while (!tidy.empty() && tidy.back() == ' ') tidy.pop_back();
  return tidy;
}

}  // namespace

const MpiApi& mpi() { return g_api; }
const char* mpi_vendor_lib() { return g_vendor_lib.c_str(); }

void load_mpi() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!g_vendor_lib.empty()) return;
  MpiApi api = fill(find_library());
  std::string text(kTextBytes, '\0');
  int n = 0;
  if (api.Get_library_version(text.data(), &n) == 0) api.version = short_version(text.c_str());
  if (api.version.empty()) api.version = family_name(api.family);
  g_vendor_lib = api.version + ", " + api.path;
  g_api = std::move(api);
}

void check_mpi(int result, const char* call) {
  if (result == 0) return;
  int error_class = 0, n = 0;
  std::string text(kTextBytes, '\0');
  g_api.Error_class(result, &error_class);
  g_api.Error_string(result, text.data(), &n);
  hvd_rc code = HVD_E_INTERNAL;
  if (error_class >= 1 && error_class <= g_api.last_usage_error) code = HVD_E_INVALID;
  if (error_class == g_api.error_truncate) code = HVD_E_INVALID;  // ranks differ in sizes
  if (error_class == g_api.error_no_mem) code = HVD_E_NOMEM;
  // By the texts, since the numbers of errors that were added after MPI 3 differ from version to version.
  for (const char* sign : {"PROC_FAILED", "PROC_ABORTED", "REVOKED", "rocess failure", "onnection closed"}) {
    if (std::string(text.c_str()).find(sign) != std::string::npos) code = HVD_E_REMOTE;
  }
  throw hvd::Error(code, std::string("MPI_") + call + ": " + text.c_str(), code == HVD_E_REMOTE ? HVD_EF_COMM_DEAD : 0,
                   result);
}
