// The exceptions of a backend's code, as hvd_error for the host; and access to structs that may be shorter or longer
// than in this header. Included by backend.hpp; a backend's code may also include it alone.
#ifndef HVD_BACKEND_ERRORS_HPP_
#define HVD_BACKEND_ERRORS_HPP_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "hvd/backend_abi.h"

#pragma GCC visibility push(hidden)
namespace hvd {

// A method throws it to fail with a code of the ABI; any other exception becomes HVD_E_INTERNAL.
struct Error : std::exception {
  Error(hvd_rc code, std::string text, int32_t flags = 0, int64_t vendor_code = 0)
      : code(code), flags(flags), vendor_code(vendor_code), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  hvd_rc code;
  int32_t flags;
  int64_t vendor_code;
  std::string text;
};

namespace detail {

// Where v1.0 of each struct ends. A host older than that does not exist.
template <class T>
inline constexpr size_t kFirstSize = sizeof(hvd_hdr);
template <>
inline constexpr size_t kFirstSize<hvd_host_api> = offsetof(hvd_host_api, notify) + sizeof(void*);
template <>
inline constexpr size_t kFirstSize<hvd_comm_args> = offsetof(hvd_comm_args, notify_token) + sizeof(void*);
template <>
inline constexpr size_t kFirstSize<hvd_coll_args> = offsetof(hvd_coll_args, seq) + sizeof(uint64_t);
template <>
inline constexpr size_t kFirstSize<hvd_window_args> = offsetof(hvd_window_args, deadline_ns) + sizeof(int64_t);
template <>
inline constexpr size_t kFirstSize<hvd_copy_item> = offsetof(hvd_copy_item, dst_dtype) + sizeof(int32_t);

inline bool all_zero(const unsigned char* p, size_t n) {
  return std::all_of(p, p + n, [](unsigned char c) { return c == 0; });
}

}  // namespace detail

// A complete copy of a struct from the host: fields that the host does not know yet are zero. A field that this header
// does not know must be zero; otherwise the call would ignore a part of the request, so it fails with UNSUPPORTED.
template <class T>
T complete(const T* given, const char* what) {
  if (given == nullptr || given->hdr.struct_size < detail::kFirstSize<T>) {
    throw Error(HVD_E_ABI, std::string(what) + " is NULL or shorter than ABI 1.0 has it");
  }
  const size_t size = given->hdr.struct_size;
  if (size > sizeof(T) &&
      !detail::all_zero(reinterpret_cast<const unsigned char*>(given) + sizeof(T), size - sizeof(T))) {
    throw Error(HVD_E_UNSUPPORTED, std::string(what) + " uses a field newer than this backend, which is built for " +
                                       "ABI " + std::to_string(HVD_ABI_MAJOR) + "." + std::to_string(HVD_ABI_MINOR));
  }
  T mine;
  std::memset(&mine, 0, sizeof(mine));
  std::memcpy(&mine, given, std::min(size, sizeof(T)));
  return mine;
}

// The same without a copy for a struct of the length that this header has; `storage` holds the copy of any other.
template <class T>
const T& complete_in(const T* given, const char* what, T& storage) {
  if (given != nullptr && given->hdr.struct_size == sizeof(T)) return *given;
  return storage = complete(given, what);
}

// Element i of an array of structs; the first element has the size of all.
template <class T>
const T* element(const T* first, uint64_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + i * first->hdr.struct_size);
}

// Fills the caller's out-struct up to the caller's size; its header stays.
template <class T>
void give(T* out, const T& mine) {
  if (out == nullptr || out->hdr.struct_size <= sizeof(hvd_hdr)) return;
  const size_t size = std::min<size_t>(out->hdr.struct_size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(hvd_hdr), reinterpret_cast<const char*>(&mine) + sizeof(hvd_hdr),
              size - sizeof(hvd_hdr));
}

inline hvd_rc fail(hvd_error* out, hvd_rc code, const char* text, int32_t flags = 0, int64_t vendor_code = 0) noexcept {
  hvd_error mine;
  std::memset(&mine, 0, sizeof(mine));
  mine.code = code;
  mine.flags = flags;
  mine.vendor_code = vendor_code;
  std::memcpy(mine.text, text, ::strnlen(text, sizeof(mine.text) - 1));
  give(out, mine);
  return code;
}

// A vendor's result codes as a table: one row for each code the library documents, 0 being success. Usually in a file
// of its own, <name>_errors.inc. A code without a row is HVD_E_INTERNAL; its number is kept in both cases.
struct ErrorRow {
  int64_t vendor_code;
  const char* name;
  hvd_rc code;
  int32_t flags;
};
class ErrorTable {
 public:
  // `library` is its name for messages; both outlive the table.
  template <size_t N>
  constexpr ErrorTable(const char* library, const ErrorRow (&rows)[N])
      : library_(library), begin_(rows), end_(rows + N) {}

  // Throws unless `result` is 0. `call` names the called function, `detail` is the library's text about it (may be
  // NULL).
  void check(int64_t result, const char* call, const char* detail = nullptr) const {
    if (result == 0) return;
    const ErrorRow* row = std::find_if(begin_, end_, [&](const ErrorRow& r) { return r.vendor_code == result; });
    const bool known = row != end_;
    std::string text = std::string(call) + ": " + library_ + " returned " + (known ? row->name : "an unknown code") +
                       " (" + std::to_string(result) + ")";
    if (detail != nullptr && *detail != '\0') text += std::string(": ") + detail;
    throw Error(known ? row->code : HVD_E_INTERNAL, std::move(text), known ? row->flags : 0, result);
  }

 private:
  const char* library_;
  const ErrorRow *begin_, *end_;
};

// Runs a thunk's body; no exception leaves it.
template <class F>
hvd_rc guarded(hvd_error* out, F&& body) noexcept {
  try {
    return body();
  } catch (const Error& e) {
    return fail(out, e.code > HVD_INPROGRESS ? e.code : HVD_E_INTERNAL, e.text.c_str(), e.flags, e.vendor_code);
  } catch (const std::bad_alloc&) {
    return fail(out, HVD_E_NOMEM, "out of memory");
  } catch (const std::exception& e) {
    return fail(out, HVD_E_INTERNAL, e.what());
  } catch (...) {
    return fail(out, HVD_E_INTERNAL, "the backend threw something that is no std::exception");
  }
}

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_ERRORS_HPP_
