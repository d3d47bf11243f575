// See mpi_device.h.
#include "mpi_device.h"

#include <cstring>
#include <mutex>
#include <sstream>
#include <vector>

#include "mpi_api.h"

namespace {

constexpr const char* kAsk = "auto";
constexpr const char* kKnown[] = {"cuda", "rocm"};
// MPICH's numbers of MPIX_GPU_query_support.
constexpr int kGpuCuda = 0, kGpuHip = 2;

std::string g_types;
std::mutex g_mutex;
std::string g_memory;  // under g_mutex

std::vector<std::string> listed() {
  std::vector<std::string> words;
  std::istringstream text(hvd::option("devices", kAsk));
  for (std::string word; std::getline(text, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool says_so(const std::string& type) {
  const MpiApi& m = mpi();
  const auto gpu = [&m](int kind) {
    int yes = 0;
    return m.query_gpu != nullptr && m.query_gpu(kind, &yes) == 0 && yes != 0;
  };
  if (type == "cuda") return (m.query_cuda != nullptr && m.query_cuda() == 1) || gpu(kGpuCuda);
  if (type == "rocm") return (m.query_rocm != nullptr && m.query_rocm() == 1) || gpu(kGpuHip);
  return false;
}

void check(hvd_rc rc, const hvd_error& error, const char* what) {
  if (rc == HVD_OK) return;
  throw hvd::Error(rc > HVD_INPROGRESS ? rc : HVD_E_DEVICE, std::string(what) + ": " + error.text, error.flags,
                   error.vendor_code);
}

hvd_error no_error() {
  hvd_error error;
  std::memset(&error, 0, sizeof(error));
  error.hdr = {sizeof(error), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  return error;
}

}  // namespace

void load_device_types() {
  g_types = "cpu";
  std::vector<std::string> types(std::begin(kKnown), std::end(kKnown));
  for (const std::string& word : listed()) {
    if (word != kAsk && word != "none" && !has(types, word)) types.push_back(word);
  }
  for (const std::string& type : types) g_types += "," + type;
}

const char* mpi_device_types() { return g_types.c_str(); }

bool mpi_reads(const std::string& type) {
  const std::vector<std::string> words = listed();
  return has(words, type) || (has(words, kAsk) && says_so(type));
}

void note_device_memory() {
  std::string all;
  std::istringstream types(g_types);
  for (std::string type; std::getline(types, type, ',');) {
    if (type != "cpu" && mpi_reads(type)) all += (all.empty() ? "" : ",") + type;
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  g_memory = all;
}

std::string mpi_device_memory() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_memory;
}

DeviceCopy::DeviceCopy(hvd_device device, const hvd_device_api* api) : api_(api) {
  if (!HVD_HAS(api, hvd_device_api, stream_create)) return;
  hvd_error error = no_error();
  check(api_->stream_create(device, 0, &stream_, &error), error, "stream_create");
}

DeviceCopy::~DeviceCopy() {
  hvd_error ignored = no_error();
  if (stream_ != nullptr) api_->stream_destroy(stream_, &ignored);
}

void DeviceCopy::run(const hvd_buf& to, const hvd_buf& from, uint64_t bytes, int64_t deadline_ns) {
  if (stream_ == nullptr) throw hvd::Error(HVD_E_UNSUPPORTED, "a device without streams: nothing can be copied on it");
  hvd_error error = no_error();
  check(api_->copy(stream_, to, from, bytes, &error), error, "copy");
  check(api_->stream_sync(stream_, deadline_ns, &error), error, "stream_sync");
}
