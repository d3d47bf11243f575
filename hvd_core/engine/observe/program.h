// What the engine asks the binding about the program that runs: the engine itself knows no Python.
#pragma once

#include <optional>
#include <string>

#include "engine/observe/snapshot.h"
#include "engine/types/call_site.h"

namespace hvd::observe {

class Program {
 public:
  virtual ~Program() = default;
  // The line of a call site. Any thread; waits for no lock of the program.
  virtual Place place_of(types::CallSite site) const = 0;
  // What all threads run, as text in the format of Python's faulthandler. Waits for the program's lock, possibly for
  // long. Empty when the program ends.
  virtual std::string stacks() const = 0;
  // The same without the lock, from a copy of the process (process_copy.h), for code of an extension that does not give
  // the lock up. Nothing if that fails, and where the interpreter has no function for it.
  virtual std::optional<std::string> stacks_without_lock() const = 0;
  // The main thread, as the text of stacks() writes it: "0x00007f...".
  virtual std::string main_thread() const = 0;
  // Whether a file belongs to the engine's own packages, or to a library. The rest is the user's program.
  virtual bool is_own(const std::string& file) const = 0;
  virtual bool is_library(const std::string& file) const = 0;
};

}  // namespace hvd::observe
