// Shape functions: the shapes of the operations' outputs, as far as they are known before the operations run.
#pragma once

#include "tf_api.h"

namespace hvd_tf::shapes {

void same(TF_ShapeInferenceContext* context, TF_Status* status);       // those of the inputs
void gathered(TF_ShapeInferenceContext* context, TF_Status* status);   // an unknown number of rows of each input
void exchanged(TF_ShapeInferenceContext* context, TF_Status* status);  // as gathered, and a vector
void scattered(TF_ShapeInferenceContext* context, TF_Status* status);  // as gathered; refuses scalars
void scattered_group(TF_ShapeInferenceContext* context, TF_Status* status);
void scalar(TF_ShapeInferenceContext* context, TF_Status* status);
void none(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvd_tf::shapes
