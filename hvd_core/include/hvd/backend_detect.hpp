// Detects which methods a class has. Included by the other headers of this layer only.
//
// A method with the right name that cannot be called as the layer calls it is an error at compile time. Otherwise it
// would silently become a NULL slot.
#ifndef HVD_BACKEND_DETECT_HPP_
#define HVD_BACKEND_DETECT_HPP_

#include <type_traits>
#include <utility>

#pragma GCC visibility push(hidden)
namespace hvd {

class Coll;
class CopyItems;
class Work;
struct CommInit;
struct WindowInit;

namespace detail {

struct Nothing {};
struct WorkOrVoid {};

template <class Wanted, class Given>
inline constexpr bool kReturns =
    std::is_void_v<Wanted> || (!std::is_void_v<Given> && std::is_convertible_v<Given, Wanted>);
template <class Given>
inline constexpr bool kReturns<WorkOrVoid, Given> = std::is_void_v<Given> || std::is_same_v<Given, Work>;

template <class T>
using Derivable = std::conditional_t<std::is_final_v<T>, Nothing, T>;

// Defines has_<name><T>(). The last argument calls the method on `std::declval<T&>()`, or statically. Two bases with
// one name make the name ambiguous, which detects a name of any type.
#define HVD_METHOD(name, returned, signature, ...)                                                        \
  struct named_##name {                                                                                   \
    int name;                                                                                             \
  };                                                                                                      \
  template <class T>                                                                                      \
  struct both_##name : Derivable<T>, named_##name {};                                                     \
  template <class T, class = void>                                                                        \
  struct taken_##name : std::true_type {};                                                                \
  template <class T>                                                                                      \
  struct taken_##name<T, std::void_t<decltype(&both_##name<T>::name)>> : std::false_type {};              \
  template <class T, class = void>                                                                        \
  struct fits_##name : std::false_type {};                                                                \
  template <class T>                                                                                      \
  struct fits_##name<T, std::enable_if_t<kReturns<returned, decltype(__VA_ARGS__)>>> : std::true_type {}; \
  template <class T>                                                                                      \
  constexpr bool has_##name() {                                                                           \
    static_assert(fits_##name<T>::value || !taken_##name<T>::value,                                       \
                  "the class has a public or private '" #name "' that cannot be called as: " signature);  \
    return fits_##name<T>::value;                                                                         \
  }

// Constants, which have no signature to check.
#define HVD_CONSTANT(Name, expression) \
  template <class T, class = void>     \
  struct Name : std::false_type {};    \
  template <class T>                   \
  struct Name<T, std::void_t<decltype(expression)>> : std::true_type {};

HVD_CONSTANT(HasDtypes, T::dtypes)
HVD_CONSTANT(HasReductions, T::reductions)
HVD_CONSTANT(HasDeviceTypes, T::device_types)
HVD_CONSTANT(HasReportsAbort, T::reports_abort)
HVD_CONSTANT(HasChecksSizes, T::checks_sizes)
HVD_CONSTANT(HasDeviceType, T::device_type)
HVD_CONSTANT(HasTag, T::tag)
HVD_CONSTANT(HasVersion, T::version)
HVD_CONSTANT(HasVendorLib, T::vendor_lib())
HVD_CONSTANT(HasOptions, T::options[0])
HVD_CONSTANT(HasTable, T::table())
HVD_CONSTANT(HasLoad, T::load())
HVD_CONSTANT(HasStream, std::declval<typename T::Stream>())
HVD_CONSTANT(HasEvent, std::declval<typename T::Event>())
#undef HVD_CONSTANT

HVD_METHOD(make_current, void, "auto make_current() const", std::declval<const T&>().make_current())

// Makes the device current on this thread if its class has make_current(). The object that make_current() returns lives
// as long as the call, so that it may restore the previous device.
template <class D>
auto enter([[maybe_unused]] const D& device) {
  if constexpr (has_make_current<D>()) {
    if constexpr (!std::is_void_v<decltype(device.make_current())>) {
      return device.make_current();
    } else {
      device.make_current();
      return Nothing{};
    }
  } else {
    return Nothing{};
  }
}

}  // namespace detail
}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_DETECT_HPP_
