// Makes the backend's table and the one exported symbol from a device class and a communicator class. Included by
// backend.hpp only.
#ifndef HVD_BACKEND_ENTRY_HPP_
#define HVD_BACKEND_ENTRY_HPP_

#include "hvd/backend_device.hpp"
#include "hvd/backend_tables.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {
namespace detail {

HVD_METHOD(info, std::string, "static std::string info(const std::string&)",
           T::info(std::declval<const std::string&>()))

template <class C>
hvd_rc info(const char* key, char* text, uint64_t* n, hvd_error* error) noexcept {
  return guarded(error, [&]() -> hvd_rc {
    if (key == nullptr || n == nullptr || (text == nullptr && *n != 0)) {
      throw Error(HVD_E_INVALID, "info needs a key and a size, and a text when that is not 0");
    }
    const std::string fact = C::info(key);
    if (fact.empty()) throw Error(HVD_E_UNAVAILABLE, std::string("there is nothing to tell of '") + key + "'");
    const uint64_t capacity = std::exchange(*n, fact.size() + 1);
    if (capacity < *n) throw Error(HVD_E_INVALID, "the text needs " + std::to_string(*n) + " bytes");
    std::memcpy(text, fact.c_str(), *n);
    return HVD_OK;
  });
}

// Each of tag, version, vendor_lib, options and info may stand in the communicator class or in the device class.
template <class C>
void describe(hvd_backend_api& t) {
  if constexpr (HasTag<C>::value) t.tag = C::tag;
  if constexpr (HasVersion<C>::value) t.version = C::version;
  if constexpr (HasVendorLib<C>::value) t.vendor_lib = C::vendor_lib();
  if constexpr (HasOptions<C>::value) {
    t.options = C::options;
    t.option_count = sizeof(C::options) / sizeof(C::options[0]);
  }
  if constexpr (has_info<C>()) t.info = &info<C>;
}

// A device class may also have a table that was written by hand.
template <class D>
const hvd_device_api* device_table() {
  if constexpr (HasTable<D>::value) {
    return D::table();
  } else if constexpr (!std::is_same_v<D, NoDevice>) {
    return DeviceTable<D>::table();
  } else {
    return nullptr;
  }
}

}  // namespace detail

template <class D, class T>
const hvd_backend_api* backend_table(const char* name) {
  static std::string tag;
  static const hvd_backend_api api = [&] {
    hvd_backend_api t;
    std::memset(&t, 0, sizeof(t));
    t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    tag.clear();
    for (const char* p = name; *p; ++p) tag += *p >= 'a' && *p <= 'z' ? static_cast<char>(*p - 'a' + 'A') : *p;
    t.name = name;
    t.tag = tag.c_str();
    t.version = "";
    t.vendor_lib = "";
    detail::describe<D>(t);
    detail::describe<T>(t);
    t.device = detail::device_table<D>();
    if constexpr (!std::is_same_v<T, NoComm>) t.comm = CommTable<T>::table();
    return t;
  }();
  return &api;
}

template <class C>
void load_library() {
  if constexpr (detail::HasLoad<C>::value) C::load();
}

}  // namespace hvd
#pragma GCC visibility pop

#define HVD_TEXT(x) HVD_TEXT_OF(x)
#define HVD_TEXT_OF(x) #x

// Defines the one exported symbol. NAME without quotes; DEVICE an hvd::Device or hvd::NoDevice; COMM an hvd::Comm or
// hvd::NoComm.
#define HVD_BACKEND(NAME, DEVICE, COMM)                                                                 \
  extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(                        \
      const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {                        \
    return hvd::guarded(error, [&]() -> hvd_rc {                                                        \
      if (out == nullptr) throw hvd::Error(HVD_E_INVALID, "the place for the backend's table is NULL"); \
      if (host == nullptr || host->hdr.struct_size < hvd::detail::kFirstSize<hvd_host_api>) {           \
        throw hvd::Error(HVD_E_ABI, "the host's table is NULL or shorter than ABI 1.0 has it");         \
      }                                                                                                 \
      hvd::host = host;                                                                                 \
      hvd::load_library<DEVICE>();                                                                      \
      hvd::load_library<COMM>();                                                                        \
      *out = hvd::backend_table<DEVICE, COMM>(HVD_TEXT(NAME));                                          \
      return HVD_OK;                                                                                    \
    });                                                                                                 \
  }

#endif  // HVD_BACKEND_ENTRY_HPP_
