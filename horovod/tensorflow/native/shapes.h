// What is known of the operations' results before they run.
#pragma once

#include "tf_api.h"

namespace hvd_tf::shapes {

void same(TF_ShapeInferenceContext* context, TF_Status* status);       // as the inputs
void gathered(TF_ShapeInferenceContext* context, TF_Status* status);   // any number of rows like each input's
void exchanged(TF_ShapeInferenceContext* context, TF_Status* status);  // the same, and a vector
void scattered(TF_ShapeInferenceContext* context, TF_Status* status);  // as gathered, no scalars
void scattered_group(TF_ShapeInferenceContext* context, TF_Status* status);
void scalar(TF_ShapeInferenceContext* context, TF_Status* status);
void none(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvd_tf::shapes
