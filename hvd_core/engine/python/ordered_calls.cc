// See ordered_calls.h.
#include "engine/python/ordered_calls.h"

#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/python/engine.h"
#include "engine/python/tensor_view.h"

namespace py = pybind11;

namespace hvd::python {

py::object OrderedCalls::allreduce(py::handle tensor, int reduce_op, double seconds) {
  std::optional<calls::Tensor> plain = plain_tensor(tensor);
  if (!plain || !base::is_reducible(plain->dtype) || !base::is_reducible(plain->dtype, reduce_op)) return py::none();
  plain->shape = {static_cast<int64_t>(plain->count())};
  const int64_t deadline_ns = base::now_ns() + static_cast<int64_t>(seconds * 1e9);
  frontend::Call c{.kind = base::OpKind::Allreduce, .name = next_name(), .process_set = process_set_};
  c.reduce_op = reduce_op;
  c.in.push_back(std::move(*plain));
  c.out = c.in;
  c.once = c.waits = true;
  return py::int_(engine_.wait_at_once(std::move(c), {tensor, tensor}, deadline_ns));
}

void bind_ordered_calls(py::module_& m) {
  py::class_<OrderedCalls>(m, "OrderedCalls",
                           "The calls of one group of ranks, made in one order: see py_ordered_calls.h.")
      .def(py::init<PyEngine&, int, std::string>(), py::arg("engine"), py::arg("process_set"), py::arg("prefix"),
           py::keep_alive<1, 2>())
      .def("next_name", &OrderedCalls::next_name)
      .def("count", &OrderedCalls::count)
      .def("allreduce", &OrderedCalls::allreduce, py::arg("tensor"), py::arg("reduce_op"), py::arg("seconds"));
}

}  // namespace hvd::python
