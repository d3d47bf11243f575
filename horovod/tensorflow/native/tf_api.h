// The part of TensorFlow's C API that this library uses: declared here, found at load time in the
// libtensorflow_framework of the process. There is no TensorFlow header and no link, so that one binary works with all
// versions that export these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {
struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
}

namespace hvd_tf::tf {

using Bool = unsigned char;
struct StringView {
  const char* data;
  size_t size;
};
using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void*, TF_OpKernelContext*);
using ComputeAsyncFunction = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DeleteFunction = void (*)(void*);
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

enum Code {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13
};

// X(result, name without TF_, arguments)
#define HVD_TF_API(X)                                                                                                 \
  X(TF_Status*, NewStatus, (void))                                                                                    \
  X(void, DeleteStatus, (TF_Status*))                                                                                 \
  X(void, SetStatus, (TF_Status*, int, const char*))                                                                  \
  X(int, GetCode, (const TF_Status*))                                                                                 \
  X(const char*, Message, (const TF_Status*))                                                                         \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                   \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                                \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                         \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                        \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                       \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                          \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction))                     \
  X(TF_ShapeHandle*, NewShapeHandle, (void))                                                                          \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                       \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                             \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))               \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))              \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                        \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))                        \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                              \
  X(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                \
  X(int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                 \
  X(void, ShapeInferenceContextSubshape,                                                                              \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t, TF_ShapeHandle*, TF_Status*))                      \
  X(void, ShapeInferenceContextConcatenateShapes,                                                                     \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                       \
  X(TF_KernelBuilder*, NewKernelBuilder, (const char*, const char*, CreateFunction, ComputeFunction, DeleteFunction)) \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                                         \
    (const char*, const char*, CreateFunction, ComputeAsyncFunction, DeleteFunction))                                 \
  X(void, KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                                                 \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                        \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                            \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                              \
  X(int64_t, GetIterId, (TF_OpKernelContext*))                                                                        \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                       \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                 \
  X(void, OpKernelConstruction_GetAttrSize, (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))  \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))           \
  X(void, OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, Bool*, TF_Status*))               \
  X(void, OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))     \
  X(TF_Tensor*, AllocateOutput, (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))             \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                         \
    (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))                               \
  X(void, DeleteTensor, (TF_Tensor*))                                                                                 \
  X(int, TensorType, (const TF_Tensor*))                                                                              \
  X(int, NumDims, (const TF_Tensor*))                                                                                 \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                                            \
  X(void*, TensorData, (const TF_Tensor*))                                                                            \
  X(void*, GetStream, (TF_OpKernelContext*, TF_Status*))

#define X(result, name, arguments) extern result(*name) arguments;
HVD_TF_API(X)
#undef X

// Finds all functions. Returns the names of missing functions, "" if no function is missing.
std::string resolve();

// An exported C++ function of the framework's library by its mangled name, or null.
void* symbol(const char* name);

// A symbol of another library of TensorFlow in this process ("libtensorflow_cc.so"). Null if the library or the symbol
// is missing.
void* symbol_of(const char* library, const char* name);

class Status {
 public:
  Status() : status_(NewStatus()) {}
  ~Status() { DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool ok() const { return GetCode(status_) == kOk; }

 private:
  TF_Status* status_;
};

}  // namespace hvd_tf::tf
