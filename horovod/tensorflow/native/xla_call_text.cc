// Reads the text of a compiled call. See xla_call_text.h.
#include "xla_call_text.h"

#include <charconv>
#include <set>

#include "types.h"

namespace hvd_tf {
namespace {

constexpr std::string_view kMark = "hvd";

template <class Number>
bool read_number(std::string_view text, Number* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

// The part of `*text` up to `separator`, which is taken from `*text` together with the separator.
std::string_view take_until(std::string_view* text, char separator) {
  const size_t place = text->find(separator);
  const std::string_view part = text->substr(0, place);
  text->remove_prefix(place == std::string_view::npos ? text->size() : place + 1);
  return part;
}

bool read_shape(std::string_view text, std::vector<int64_t>* shape) {
  while (!text.empty())
    if (!read_number(take_until(&text, ','), &shape->emplace_back())) return false;
  return true;
}

bool read_tensors(std::string_view text, std::vector<XlaTensor>* tensors) {
  while (!text.empty()) {
    std::string_view one = take_until(&text, ';');
    XlaTensor& tensor = tensors->emplace_back();
    int dtype = 0;
    if (!read_number(take_until(&one, ':'), &dtype)) return false;
    const Type* type = type_of(dtype);
    if (type == nullptr) return false;
    tensor.dtype = type->hvd;
    if (!read_shape(take_until(&one, '>'), &tensor.shape) || !read_shape(one, &tensor.result_shape)) return false;
  }
  return !tensors->empty();
}

enum class Outcome { kRead, kBadValue, kUnknownKey };

Outcome read_value(std::string_view key, std::string_view value, XlaCall* call) {
  const auto outcome = [](bool is_read) { return is_read ? Outcome::kRead : Outcome::kBadValue; };
  if (key == "operation") return outcome(!(call->operation = value).empty());
  if (key == "process_set") return outcome(read_number(value, &call->process_set));
  if (key == "reduce_op") return outcome(read_number(value, &call->reduce_op));
  if (key == "root_rank") return outcome(read_number(value, &call->root_rank));
  if (key == "prescale_factor") return outcome(read_number(value, &call->prescale));
  if (key == "postscale_factor") return outcome(read_number(value, &call->postscale));
  if (key == "tensors") return outcome(read_tensors(value, &call->tensors));
  return Outcome::kUnknownKey;
}

std::string wrong_version(const std::string& found, bool library_is_older) {
  const std::string reads = "this libhvd_tf.so reads version " + std::to_string(kXlaCallVersion);
  return "horovod: the call in a function that XLA compiled has " + found + ", but " + reads + ". " +
         (library_is_older ? "libhvd_tf.so is older than the hvd-core that made the call. Install that hvd-core or a "
                             "newer one, with its libhvd_tf.so."
                           : "The call was made by an older hvd-core than libhvd_tf.so. Trace the function again with "
                             "the installed hvd-core; a SavedModel has to be saved again.");
}

// Takes the version from the beginning of `*text`. "" if this library reads it.
std::string check_version(std::string_view* text) {
  const std::string_view word = take_until(text, ' ');
  int version = 0;
  if (word.substr(0, kMark.size()) != kMark || !read_number(word.substr(kMark.size()), &version))
    return wrong_version("no version", false);
  if (version == kXlaCallVersion) return "";
  return wrong_version("version " + std::to_string(version), version > kXlaCallVersion);
}

}  // namespace

std::string read_xla_call(std::string_view text, bool is_collective, XlaCall* call) {
  const std::string whole(text);
  const std::string problem = check_version(&text);
  if (!problem.empty()) return problem;
  const auto unreadable = [&whole](const std::string& reason) {
    return "horovod: the call in a function that XLA compiled cannot be read: " + reason + ". The call: " + whole;
  };
  std::set<std::string, std::less<>> keys;
  while (!text.empty()) {
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) return unreadable("'" + std::string(text) + "' is not KEY=VALUE");
    const std::string key(take_until(&text, '='));
    if (!keys.insert(key).second) return unreadable("the key '" + key + "' is there twice");
    if (key == "name") {  // up to the end of the text
      call->name = text;
      text = {};
      continue;
    }
    const std::string value(take_until(&text, ' '));
    switch (read_value(key, value, call)) {
      case Outcome::kRead:
        break;
      case Outcome::kBadValue:
        return unreadable("the key '" + key + "' has the value '" + value + "'");
      case Outcome::kUnknownKey:
        return unreadable("version " + std::to_string(kXlaCallVersion) + " has no key '" + key + "'");
    }
  }
  for (const char* key : {"operation", "process_set", "tensors", "name"}) {
    const bool is_needed =
        is_collective || key == std::string_view("operation") || key == std::string_view("process_set");
    if (is_needed && !keys.contains(key)) return unreadable(std::string("the key '") + key + "' is missing");
  }
  return "";
}

}  // namespace hvd_tf
