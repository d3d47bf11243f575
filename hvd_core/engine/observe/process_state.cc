// See process_state.h.
#include "engine/observe/process_state.h"

#include <fstream>
#include <string_view>

namespace hvd::observe {

namespace {

// The kernel's letter; a blank if it cannot be read.
char letter(int32_t pid) {
  if (pid <= 0) return ' ';
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The state follows the program's name, which may contain anything.
  const size_t at = line.rfind(") ");
  return at == std::string::npos || at + 2 >= line.size() ? ' ' : line[at + 2];
}

}  // namespace

bool is_seen_to_stand(int32_t pid) { return std::string_view("TtDZX").find(letter(pid)) != std::string_view::npos; }

std::string process_state(int32_t pid) {
  switch (letter(pid)) {
    case ' ':
      return "";
    case 'T':
      return "its process is stopped, by SIGSTOP or Ctrl-Z (`kill -CONT " + std::to_string(pid) + "` lets it go on)";
    case 't':
      return "its process is stopped by a debugger";
    case 'D':
      return "its process waits in the kernel for a disk, a file system or a device";
    case 'Z':
    case 'X':
      return "its process has ended";
    default:
      return "its process is not stopped: a thread of it may be inside a call of a backend (its own log names that "
             "call)";
  }
}

}  // namespace hvd::observe
