// The callback that an asynchronous kernel calls when its operation is done.
//
// TensorFlow passes a C kernel the address of a std::function<void()> that is destroyed when compute returns (in all
// versions from 2.9 to 2.21), so it is moved out first. The 32 bytes of that type have had this layout in libstdc++
// since GCC 4. They are moved by hand, so that this library may be compiled with any standard library.
// `done_is_movable` tells whether TensorFlow still uses the type: a function's mangled name contains the type's.
#pragma once

#include "tf_api.h"

namespace hvd_tf {

inline bool done_is_movable() {
  return tf::symbol(
             "_ZN10tensorflow16ThreadPoolDevice12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContext"
             "ESt8functionIFvvEE") != nullptr;
}

// Owns the callback. Empty for a synchronous kernel, which gets no callback.
class Done {
 public:
  explicit Done(TF_AsyncOpKernelDoneCallback* callback) {
    if (callback == nullptr) return;
    auto* source = reinterpret_cast<Function*>(callback);
    function_ = *source;
    source->manager = nullptr;
    source->invoke = nullptr;
  }
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  ~Done() {
    if (function_.manager != nullptr) function_.manager(&function_, &function_, kDestroy);
  }
  explicit operator bool() const { return function_.invoke != nullptr; }
  void operator()() const {
    if (function_.invoke != nullptr) function_.invoke(&function_);
  }

 private:
  static constexpr int kDestroy = 3;
  struct Function {
    void* functor[2];
    bool (*manager)(void*, const void*, int);
    void (*invoke)(const void*);
  };
  Function function_{};
};

}  // namespace hvd_tf
