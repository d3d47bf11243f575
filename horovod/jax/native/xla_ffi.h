// The part of XLA's foreign function interface that this library uses: the memory layout of its structures, declared
// here with names of our own. There is no header of jaxlib and no link, so that one binary works with all versions
// whose structures begin like these: jaxlib 0.6 to 0.10. XLA gives the size of each structure in its first field;
// check() compares it before a field is read. Each structure only grows at its end while the interface's major version
// is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hvd_jax::xla {

struct Error;             // owned by XLA once a handler has returned it
struct Future;            // completed once, by set_available or set_error
struct ExecutionContext;  // of one execution of one call; valid while the handler runs

enum class Code : int { kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9, kAborted = 10, kInternal = 13 };

enum class ElementType : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kF8E5M2 = 19,
  kF8E4M3FN = 20
};

// Begins each structure that crosses the interface.
struct Extension;
struct Head {
  size_t size;
  Extension* extension;
};

struct Extension {
  size_t size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  Head head;
  int major, minor;
};

// An argument or a result: a dense array, its elements in row-major order.
struct Buffer {
  Head head;
  ElementType type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Span {
  const char* data;
  size_t length;
};

struct Scalar {
  ElementType type;
  void* value;
};

enum class AttributeType : int { kScalar = 3, kString = 4 };

struct Buffers {
  Head head;
  int64_t count;
  int* types;  // 1: a Buffer
  void** values;
};

struct Attributes {
  Head head;
  int64_t count;
  AttributeType* types;
  Span** names;
  void** values;
};

struct CreateError {
  Head head;
  const char* message;
  Code code;
};
struct OfError {
  Head head;
  Error* error;
};
struct OfFuture {
  Head head;
  Future* future;
};
struct FailFuture {
  Head head;
  Future* future;
  Error* error;  // XLA's from then on
};
struct AskRun {
  Head head;
  ExecutionContext* context;
  int64_t run;
};
struct AskDevice {
  Head head;
  ExecutionContext* context;
  int32_t device;
};

// XLA's functions. Those that are not called have no type.
struct Api {
  Head head;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateError*);
  void* error_message;
  void (*destroy_error)(OfError*);
  void* other[14 - 4];
  Error* (*create_future)(OfFuture*);
  Error* (*set_available)(OfFuture*);
  Error* (*set_error)(FailFuture*);
  Error* (*run_of)(AskRun*);        // since jaxlib 0.5
  Error* (*device_of)(AskDevice*);  // since jaxlib 0.6
};

struct CallFrame {
  Head head;
  const Api* api;
  ExecutionContext* context;
  int stage;  // kExecute for a handler without other stages
  Buffers arguments, results;
  Attributes attributes;
  Future* future;  // out: the call is done when it is completed; null: when the handler returns
};
inline constexpr int kExecute = 3;

// What XLA asks of a handler when it is registered, in an extension of a call without arguments.
struct Metadata {
  size_t size;
  Version version;  // out
  uint32_t traits;  // out
  int64_t state_type;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

template <typename Struct>
Head head_of() {
  return {sizeof(Struct), nullptr};
}

#define HVD_JAX_HAS(object, field) \
  ((object).head.size >= offsetof(std::remove_cvref_t<decltype(object)>, field) + sizeof((object).field))

}  // namespace hvd_jax::xla
