// Shape functions. See shapes.h.
#include "shapes.h"

namespace hvd_tf::shapes {
namespace {

class Handle {
 public:
  Handle() : handle_(tf::NewShapeHandle()) {}
  explicit Handle(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Handle() { tf::DeleteShapeHandle(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

bool ok(TF_Status* status) { return tf::GetCode(status) == tf::kOk; }

constexpr size_t kUnknown = static_cast<size_t>(-1);

// Gives output `index` the shape of input `index`, with an unknown number of rows.
void rows_like(TF_ShapeInferenceContext* context, int index, const char* refuse_scalars, TF_Status* status) {
  Handle input;
  tf::ShapeInferenceContextGetInput(context, index, input, status);
  if (!ok(status) || !tf::ShapeInferenceContextRankKnown(context, input)) return;
  if (tf::ShapeInferenceContextRank(context, input) == 0) {
    // For operations other than reducescatter the ranks report it together, when the operation runs.
    if (refuse_scalars != nullptr) tf::SetStatus(status, tf::kInvalidArgument, refuse_scalars);
    return;
  }
  Handle rows(tf::ShapeInferenceContextVectorFromSize(context, kUnknown));
  Handle tail, all;
  tf::ShapeInferenceContextSubshape(context, input, 1, INT64_MAX, tail, status);
  if (ok(status)) tf::ShapeInferenceContextConcatenateShapes(context, rows, tail, all, status);
  if (ok(status)) tf::ShapeInferenceContextSetOutput(context, index, all, status);
}

void all_rows_like(TF_ShapeInferenceContext* context, const char* refuse_scalars, TF_Status* status) {
  const auto n = static_cast<int>(tf::ShapeInferenceContextNumInputs(context));
  tf::ShapeInferenceContextSetUnknownShape(context, status);
  for (int i = 0; i < n && ok(status); ++i) rows_like(context, i, refuse_scalars, status);
}

}  // namespace

void same(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto n = static_cast<int>(tf::ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < n && ok(status); ++i) {
    Handle input;
    tf::ShapeInferenceContextGetInput(context, i, input, status);
    if (ok(status)) tf::ShapeInferenceContextSetOutput(context, i, input, status);
  }
}

void gathered(TF_ShapeInferenceContext* context, TF_Status* status) { all_rows_like(context, nullptr, status); }

void exchanged(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf::ShapeInferenceContextSetUnknownShape(context, status);
  if (ok(status)) rows_like(context, 0, nullptr, status);
  Handle vector(tf::ShapeInferenceContextVectorFromSize(context, kUnknown));
  if (ok(status)) tf::ShapeInferenceContextSetOutput(context, 1, vector, status);
}

void scattered(TF_ShapeInferenceContext* context, TF_Status* status) {
  all_rows_like(context, "HorovodReducescatter does not support scalar inputs.", status);
}

void scattered_group(TF_ShapeInferenceContext* context, TF_Status* status) {
  all_rows_like(context, "HorovodGroupedReducescatter does not support scalar inputs.", status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  Handle shape(tf::ShapeInferenceContextScalar(context));
  tf::ShapeInferenceContextSetOutput(context, 0, shape, status);
}

void none(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace hvd_tf::shapes
