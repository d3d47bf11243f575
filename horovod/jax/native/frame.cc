// See frame.h.
#include "frame.h"

#include <hvd/backend_abi.h>

#include <cstring>

namespace hvd_jax {
namespace {

struct Type {
  xla::ElementType xla;
  int32_t hvd;
  size_t size;
};

constexpr Type kTypes[] = {
    {xla::ElementType::kF32, HVD_FLOAT32, 4},
    {xla::ElementType::kBF16, HVD_BFLOAT16, 2},
    {xla::ElementType::kF16, HVD_FLOAT16, 2},
    {xla::ElementType::kF64, HVD_FLOAT64, 8},
    {xla::ElementType::kS32, HVD_INT32, 4},
    {xla::ElementType::kS64, HVD_INT64, 8},
    {xla::ElementType::kS8, HVD_INT8, 1},
    {xla::ElementType::kS16, HVD_INT16, 2},
    {xla::ElementType::kU8, HVD_UINT8, 1},
    {xla::ElementType::kU16, HVD_UINT16, 2},
    {xla::ElementType::kU32, HVD_UINT32, 4},
    {xla::ElementType::kU64, HVD_UINT64, 8},
    {xla::ElementType::kPred, HVD_BOOL, 1},
    {xla::ElementType::kF8E5M2, HVD_FLOAT8_E5M2, 1},
    {xla::ElementType::kF8E4M3FN, HVD_FLOAT8_E4M3FN, 1},
};

const Type* find(xla::ElementType type) {
  for (const Type& known : kTypes)
    if (known.xla == type) return &known;
  return nullptr;
}

void destroy(const xla::Api* api, xla::Error* error) {
  if (error == nullptr) return;
  xla::OfError args{xla::head_of<xla::OfError>(), error};
  api->destroy_error(&args);
}

// The value of a scalar attribute, if `name` is it.
template <typename T>
bool take(const xla::Attributes& all, int64_t i, std::string_view name, xla::ElementType type, T* out) {
  if (std::string_view(all.names[i]->data, all.names[i]->length) != name) return false;
  if (all.types[i] != xla::AttributeType::kScalar) return false;
  const auto* scalar = static_cast<const xla::Scalar*>(all.values[i]);
  if (scalar->type != type) return false;
  std::memcpy(out, scalar->value, sizeof *out);
  return true;
}

}  // namespace

std::string why_unreadable(const xla::CallFrame& frame) {
  if (!HVD_JAX_HAS(frame, attributes)) return "XLA's structure of a call is smaller than this library expects";
  const xla::Api& api = *frame.api;
  if (!HVD_JAX_HAS(api, version) || api.version.major != 0) return "XLA's interface has another major version than 0";
  if (!HVD_JAX_HAS(api, set_error)) return "this version of XLA does not let a handler finish later";
  return "";
}

bool answer_metadata(const xla::CallFrame& frame) {
  xla::Extension* extension = frame.head.extension;
  if (extension == nullptr || extension->type != xla::kMetadataExtension) return false;
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(extension)->metadata;
  // XLA refuses handlers of versions that it does not know. The structures above are the same in all that there are,
  // and their sizes are compared in each call, so the version of this XLA is the right answer. Up to jaxlib 0.7 this
  // call comes without the functions; the version is 0.1 there.
  metadata.version.head = xla::head_of<xla::Version>();
  metadata.version.major = frame.api == nullptr ? 0 : frame.api->version.major;
  metadata.version.minor = frame.api == nullptr ? 1 : frame.api->version.minor;
  metadata.traits = 0;
  if (metadata.size >= offsetof(xla::Metadata, state_type) + sizeof(int64_t)) metadata.state_type = 0;
  return true;
}

std::string read(const xla::Attributes& all, Attributes* out) {
  constexpr int kExpected = 7;
  int found = 0;
  for (int64_t i = 0; i < all.count; ++i) {
    if (all.types[i] == xla::AttributeType::kString) {
      if (std::string_view(all.names[i]->data, all.names[i]->length) != "name") continue;
      const auto* text = static_cast<const xla::Span*>(all.values[i]);
      out->name.assign(text->data, text->length);
      ++found;
      continue;
    }
    found += take(all, i, "op", xla::ElementType::kS32, &out->op) ||
             take(all, i, "process_set", xla::ElementType::kS32, &out->process_set) ||
             take(all, i, "reduce_op", xla::ElementType::kS32, &out->reduce_op) ||
             take(all, i, "root_rank", xla::ElementType::kS32, &out->root_rank) ||
             take(all, i, "prescale", xla::ElementType::kF64, &out->prescale) ||
             take(all, i, "postscale", xla::ElementType::kF64, &out->postscale);
  }
  if (found == kExpected) return "";
  return "the call has " + std::to_string(found) + " of " + std::to_string(kExpected) + " attributes";
}

int32_t engine_type(xla::ElementType type) {
  const Type* known = find(type);
  return known == nullptr ? -1 : known->hvd;
}

size_t size_of(xla::ElementType type) {
  const Type* known = find(type);
  return known == nullptr ? 0 : known->size;
}

bool view(const xla::Buffer& buffer, hvd_fe_tensor* out) {
  *out = {};
  out->data = buffer.data;
  out->shape = buffer.dims;
  out->ndim = static_cast<int32_t>(buffer.rank);
  out->dtype = engine_type(buffer.type);
  return out->dtype >= 0;
}

xla::Code code_of(int32_t status) {
  switch (status) {
    case HVD_FE_INVALID_ARGUMENT:
      return xla::Code::kInvalidArgument;
    case HVD_FE_FAILED_PRECONDITION:
      return xla::Code::kFailedPrecondition;
    case HVD_FE_ABORTED:
      return xla::Code::kAborted;
    default:
      return xla::Code::kUnknown;
  }
}

xla::Error* make_error(const xla::Api* api, xla::Code code, const std::string& text) {
  xla::CreateError args{xla::head_of<xla::CreateError>(), text.c_str(), code};
  return api->create_error(&args);
}

int64_t run_of(const xla::CallFrame& frame) {
  if (!HVD_JAX_HAS(*frame.api, run_of)) return -1;
  xla::AskRun args{xla::head_of<xla::AskRun>(), frame.context, -1};
  xla::Error* error = frame.api->run_of(&args);
  destroy(frame.api, error);
  return error == nullptr ? args.run : -1;
}

int32_t device_of(const xla::CallFrame& frame) {
  if (!HVD_JAX_HAS(*frame.api, device_of)) return -1;
  xla::AskDevice args{xla::head_of<xla::AskDevice>(), frame.context, -1};
  xla::Error* error = frame.api->device_of(&args);
  destroy(frame.api, error);
  return error == nullptr ? args.device : -1;
}

}  // namespace hvd_jax
