// Texts that the ranks of a communicator exchange through the job's store before they are connected.
//
// One round: every rank gives a text to rank 0, which gives all texts to every rank. For the thread that creates the
// communicator.
#pragma once

#include <cstdint>
#include <hvd/backend.hpp>
#include <string>
#include <vector>

namespace hvd::gloo_backend {

class Exchange {
 public:
  explicit Exchange(const CommInit& init) : init_(init) {}

  // All ranks' texts, by rank; collective. Throws HVD_E_TIMEOUT at the deadline, or HVD_E_REMOTE with rank 0's reason
  // if rank 0 gave up.
  std::vector<std::string> round(const std::string& name, const std::string& mine);
  // Deletes the keys of the rounds from the store; on rank 0, once all ranks are known to have read them.
  void forget();

 private:
  std::vector<std::string> collect(const std::string& name, const std::string& mine);

  const CommInit& init_;
  std::vector<std::string> tables_;
};

}  // namespace hvd::gloo_backend
