// Answers `hvd doctor --pid` and `hvd doctor --job`: a Unix socket on a thread of its own, which needs neither Python's
// lock nor the engine's driver, so that a process answers whichever of its threads is stuck.
//
// The socket has an abstract name, so nothing is left behind when the process ends in any way. Only processes of the
// same user, or root, are answered. A question is one line; the answer ends with the connection.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace hvd::observe {

class AskServer {
 public:
  // Returns the answer to a question. Is called on the server's thread; it may take some seconds.
  using Answer = std::function<std::string(const std::string& question)>;

  // `name`: of the socket, without the zero byte in front; at most 100 bytes. Throws std::system_error.
  AskServer(const std::string& name, Answer answer);
  // Waits for an answer that is being made.
  ~AskServer();
  AskServer(const AskServer&) = delete;

  // In a forked child: the parent's socket must not stay open when the parent has ended.
  void close_in_child() noexcept;

 private:
  void serve();
  void answer_one(int fd);

  const Answer answer_;
  std::atomic<int> listener_{-1};
  int stop_fd_ = -1;
  bool refused_ = false;  // another user, before
  std::thread thread_;
};

}  // namespace hvd::observe
