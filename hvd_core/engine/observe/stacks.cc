// See stacks.h.
#include "engine/observe/stacks.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace hvd::observe {
namespace {

constexpr size_t kLongestLine = 160;
constexpr int32_t kMostLines = 200'000;

std::string cut(std::string_view text) {
  return text.size() <= kLongestLine ? std::string(text) : std::string(text.substr(0, kLongestLine - 3)) + "...";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// '  File "NAME", line N in FUNCTION'
bool parse_frame(std::string_view line, Place& place) {
  constexpr std::string_view kHead = "  File \"", kLine = "\", line ", kIn = " in ";
  if (!line.starts_with(kHead)) return false;
  line.remove_prefix(kHead.size());
  const size_t end = line.rfind(kLine);
  if (end == std::string_view::npos) return false;
  place.file = line.substr(0, end);
  line.remove_prefix(end + kLine.size());
  place.line = std::atoi(std::string(line.substr(0, 12)).c_str());
  if (const size_t in = line.find(kIn); in != std::string_view::npos)
    place.function = cut(line.substr(in + kIn.size()));
  return true;
}

// "Thread 0x00007f... [name] (most recent call first):"
bool parse_head(std::string_view line, std::string& id, std::string& name, bool& is_writer) {
  is_writer = line.starts_with("Current thread ");
  if (!is_writer && !line.starts_with("Thread ")) return false;
  line.remove_prefix(line.find("hread ") + 6);
  id = line.substr(0, line.find(' '));
  const size_t open = line.find('['), close = line.rfind(']');
  name = open != std::string_view::npos && close != std::string_view::npos && open < close
             ? cut(line.substr(open + 1, close - open - 1))
             : "";
  return true;
}

}  // namespace

std::string shortened(const std::string& path) {
  char here[PATH_MAX];
  if (!::getcwd(here, sizeof here)) return path;
  const std::string folder = std::string(here) + "/";
  return folder.size() > 1 && path.starts_with(folder) ? path.substr(folder.size()) : path;
}

std::vector<Thread> parse_stacks(std::string_view text, const Program& program, size_t most_threads,
                                 size_t most_frames) {
  std::vector<Thread> threads;
  const std::string main_id = program.main_thread();
  bool keep = false, is_writer = false;
  const auto add_frame = [&](Place place) {
    Thread& t = threads.back();
    const bool user = !program.is_own(place.file) && !program.is_library(place.file);
    if (t.frames.empty() && program.is_own(place.file)) {
      t.in_engine = true;
      return;
    }
    place.file = shortened(place.file);
    if (user && t.site >= 0) {
      Place& called = t.frames[static_cast<size_t>(t.site)];
      if (called.caller.empty()) called.caller = text_of(place);
    }
    if (t.frames.size() >= most_frames) {
      // The user's innermost frame stays, however deep a library's own frames are.
      if (t.site >= 0 || !user) return;
      t.frames.pop_back();
    }
    if (user && t.site < 0) t.site = static_cast<int32_t>(t.frames.size());
    t.frames.push_back(std::move(place));
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    std::string id, name;
    Place place;
    if (parse_head(line, id, name, is_writer)) {
      const bool is_main = id == main_id;
      keep = !is_writer || is_main;
      if (keep) threads.push_back({name, is_main, {}, -1, false});
    } else if (keep && parse_frame(line, place)) {
      add_frame(std::move(place));
    }
  }
  // Threads of the engine and of other extensions have no frame of Python.
  std::erase_if(threads, [](const Thread& t) { return t.frames.empty() && !t.is_main; });
  std::stable_partition(threads.begin(), threads.end(), [](const Thread& t) { return t.is_main; });
  if (threads.size() > most_threads) threads.resize(most_threads);
  return threads;
}

void add_source(Place& place) {
  if (place.line <= 0 || place.line > kMostLines) return;
  std::ifstream file(place.file);
  std::string line;
  for (int32_t i = 0; i < place.line; ++i)
    if (!std::getline(file, line)) return;
  place.source = cut(trimmed(line));
}

}  // namespace hvd::observe
