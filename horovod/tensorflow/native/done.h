// The callback by which an asynchronous kernel says that it is done.
//
// TensorFlow hands a C kernel the address of a std::function<void()> that dies when compute returns (all versions from
// 2.9 to 2.21), so it is moved out first. That type's 32 bytes have had this layout in libstdc++ since GCC 4; they are
// moved by hand, so that it does not matter what this library is compiled with. `done_is_movable` tells whether
// TensorFlow still uses the type: its mangled name is part of a function's.
#pragma once

#include "tf_api.h"

namespace hvd_tf {

inline bool done_is_movable() {
  return tf::symbol(
             "_ZN10tensorflow16ThreadPoolDevice12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContext"
             "ESt8functionIFvvEE") != nullptr;
}

// Owns the callback, or nothing where the kernel is a synchronous one.
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
