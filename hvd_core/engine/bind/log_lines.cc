// See log_lines.h.
#include "engine/bind/log_lines.h"

#include <optional>
#include <string>

#include "engine/bind/python_lock.h"
#include "engine/observe/log.h"
#include "engine/observe/printable.h"

namespace py = pybind11;

namespace hvd::bind {
namespace {

py::object take_line() {
  std::optional<observe::LogLine> line;
  {
    WithoutPythonLock unlocked;
    line = observe::take_line();
  }
  if (!line) return py::none();
  return py::make_tuple(static_cast<int32_t>(line->level), line->text);
}

}  // namespace

void bind_log_lines(py::module_& m) {
  m.def("keep_log_lines", &observe::keep_lines, py::arg("on"),
        "While it is on, lines of the engine's log are kept for take_log_line() and not written to stderr.");
  m.def("keep_log_lines_no_more", &observe::keep_lines_no_more, "For a forked child: keep_log_lines(False) at once.");
  m.def("take_log_line", &take_line,
        "(index of the level, text) of the oldest line that is kept; waits for one. None when keep_log_lines is off "
        "and no line is left.");
  m.def(
      "printable", [](const py::bytes& text) { return observe::printable(std::string(text)); }, py::arg("text"),
      "`text`, of which the sender is not trusted, as text that is safe to show; see engine/observe/printable.h.");
}

}  // namespace hvd::bind
