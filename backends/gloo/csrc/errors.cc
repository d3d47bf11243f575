// See errors.h.
//
// Gloo has one class of exceptions for everything that happens to a connection, so that its text has to tell a timeout
// from a peer that went away.
#include "errors.h"

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include <new>

namespace hvd::gloo_backend {
namespace {

// Without "[/where/it/was/built/pair.cc:123] ".
std::string plain(const std::string& text) {
  if (text.empty() || text[0] != '[') return text;
  const size_t end = text.find("] ");
  return end == std::string::npos || text.find(".cc:") > end ? text : text.substr(end + 2);
}

bool says(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

}  // namespace

Failure failure_of(std::exception_ptr problem, const std::string& during) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& e) {
    return {e.code, e.flags, e.text};
  } catch (const ::gloo::IoException& e) {
    const std::string text = plain(e.what());
    const bool late = says(text, "imed out waiting") || says(text, "timeout");
    return {late ? HVD_E_TIMEOUT : HVD_E_REMOTE, HVD_EF_COMM_DEAD, during + ": Gloo: " + text};
  } catch (const std::bad_alloc&) {
    return {HVD_E_NOMEM, HVD_EF_COMM_DEAD, during + ": out of memory"};
  } catch (const std::exception& e) {
    return {HVD_E_INTERNAL, HVD_EF_COMM_DEAD, during + ": Gloo: " + plain(e.what())};
  }
}

}  // namespace hvd::gloo_backend
