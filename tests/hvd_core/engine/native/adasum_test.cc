// Adasum between threads of one process, over real communicators of the shm backend. Inputs and outputs
// are files, so that the comparison uses no code of the engine.
//
//   adasum_test libhvd_backend_shm.so FOLDER
//
// Each line of stdin is a case: RANKS DTYPE PRESCALE POSTSCALE LOCAL_BYTES apart|inplace COUNT...
// Case i reads FOLDER/i.in.0, i.in.1, ... (each rank's tensors, one behind the other) and writes FOLDER/i.out.0, ...
// An error ends the program with status 1 and the error's text on stdout.
#include "engine/dataplane/adasum.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/dataplane/direct.h"

namespace {

using namespace hvd;

// The rendezvous of threads.
class MapStore final : public plugins::Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, int64_t) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_.contains(key); });
    return values_[key];
  }
  int64_t add(const std::string& key, int64_t delta) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += delta;
  }
  void del(const std::string& key) override {
    std::lock_guard lock(mutex_);
    values_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

struct Job {
  std::shared_ptr<plugins::Backend> backend;
  MapStore store;
  std::string files;  // what the names of its files begin with
  int32_t ranks = 0, dtype = 0;
  double prescale = 1, postscale = 1;
  uint64_t local_bytes = 0;
  bool inplace = false;
  std::vector<uint64_t> counts;
  std::mutex mutex;
  std::string error;
};

std::string file_of(const Job& job, const char* what, int32_t rank) {
  return job.files + what + "." + std::to_string(rank);
}

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void run_rank(Job& job, int32_t rank) try {
  std::vector<int32_t> ranks, hosts(static_cast<size_t>(job.ranks), 0);
  for (int32_t r = 0; r < job.ranks; ++r) ranks.push_back(r);
  const auto comm = job.backend->create_comm("adasum", job.store, ranks, hosts, rank, 0);
  dataplane::DirectLowering lowering(*comm);
  const dataplane::HostMath math(job.backend);

  std::vector<char> in = read(file_of(job, "in", rank)), out(job.inplace ? 0 : in.size());
  plugins::Collective c;
  c.coll = HVD_ALLREDUCE;
  c.dtype = job.dtype;
  c.prescale = job.prescale;
  c.postscale = job.postscale;
  c.counts = job.counts;
  uint64_t at = 0;
  for (uint64_t n : job.counts) {
    const uint64_t bytes = n * base::dtype_bytes(job.dtype);
    c.in.push_back({in.data() + at, 0, bytes});
    // The base of a buffer is not always where it begins.
    c.out.push_back({job.inplace ? in.data() : out.data(), at, bytes});
    at += bytes;
  }
  if (at != in.size()) throw std::runtime_error("the input file does not have the size of the tensors");

  dataplane::Schedule schedule;
  for (int round = 0; round < (job.inplace ? 1 : 2); ++round) {  // a schedule that is used again does the same again
    dataplane::AdasumLowering(lowering, math, job.local_bytes).write_steps(schedule, c);
    while (!schedule.advance())
      if (schedule.in_flight()) schedule.wait(HVD_NO_DEADLINE);
    schedule.clear();
  }
  const auto& result = job.inplace ? in : out;
  std::ofstream(file_of(job, "out", rank), std::ios::binary)
      .write(result.data(), static_cast<std::streamsize>(result.size()));
} catch (const std::exception& e) {
  std::lock_guard lock(job.mutex);
  job.error = e.what();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::shared_ptr<plugins::Backend> backend = plugins::Backend::load_library(argv[1], "shm");
  std::string line;
  for (int number = 0; std::getline(std::cin, line); ++number) {
    Job job;
    job.backend = backend;
    job.files = std::string(argv[2]) + "/" + std::to_string(number) + ".";
    std::istringstream words(line);
    std::string how;
    words >> job.ranks >> job.dtype >> job.prescale >> job.postscale >> job.local_bytes >> how;
    if (!words) return 2;
    job.inplace = how == "inplace";
    for (uint64_t count; words >> count;) job.counts.push_back(count);
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < job.ranks; ++r) threads.emplace_back([&job, r] { run_rank(job, r); });
    for (auto& t : threads) t.join();
    if (!job.error.empty()) {
      std::puts(job.error.c_str());
      return 1;
    }
  }
  return 0;
}
