// See snapshot.h.
#include "engine/observe/snapshot.h"

#include <cstdio>

namespace hvd::observe {

std::string text_of(const Place& place) {
  std::string text = place.file;
  if (place.line > 0) text += ":" + std::to_string(place.line);
  if (!place.function.empty() && place.function != "<module>") text += " in " + place.function;
  return text;
}

std::string at(const Place& place) {
  if (!place.known()) return "";
  return " at " + text_of(place) + (place.caller.empty() ? "" : " (called at " + place.caller + ")") +
         (place.source.empty() ? "" : ": " + place.source);
}

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, s < 99.95 ? "%.1f s" : "%.0f s", s);
  return text;
}

}  // namespace hvd::observe
