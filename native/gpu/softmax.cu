// softmax over the last dimension. A task sees whole rows of its input and may own a slice of their
// softmax; its contribution to the input's gradient covers the whole row.
#include "gpu/row_softmax.h"
#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class Softmax : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Strided x(task.inputs[0]), y(task.outputs[0]);
    const int last = x.rank - 1;
    const std::int64_t classes = x.extent[last], length = y.extent[last];
    const std::int64_t lo = task.outputs[0].tile.lo[last];
    for_each_team(task.outputs[0].volume() / length, classes,
                  [=] FL_BODY(const Team& team, std::int64_t r) {
                    const Reals from = x.row(r), to = y.row(r);
                    const RowSoftmax softmax = row_softmax(team, from, classes);
                    const float scale = 1.0f / softmax.sum;
                    for (std::int64_t j = team.rank; j < length; j += team.size) {
                      to[j] = expf(from[lo + j] - softmax.maximum) * scale;
                    }
                  });
  }

  // dx_j = y_j (dy_j - sum_k dy_k y_k), where dy is zero outside of the task's slice.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const bool adds = task.adds_to_input_grad(0);
    const Strided x(task.inputs[0]), dy(task.output_grads[0]), dx(task.input_grads[0]);
    const int last = x.rank - 1;
    const std::int64_t classes = x.extent[last], length = dy.extent[last];
    const std::int64_t lo = task.output_grads[0].tile.lo[last];
    for_each_team(task.input_grads[0].volume() / std::max<std::int64_t>(1, classes), classes,
                  [=] FL_BODY(const Team& team, std::int64_t r) {
                    const Reals from = x.row(r), grad = dy.row(r), to = dx.row(r);
                    const RowSoftmax softmax = row_softmax(team, from, classes);
                    const float scale = 1.0f / softmax.sum;
                    float mean = 0;
                    for (std::int64_t j = team.rank; j < length; j += team.size) {
                      mean += grad[j] * expf(from[lo + j] - softmax.maximum) * scale;
                    }
                    mean = team.sum(mean);
                    for (std::int64_t j = team.rank; j < classes; j += team.size) {
                      const float own = j >= lo && j < lo + length ? grad[j - lo] : 0.0f;
                      put(to[j], expf(from[j] - softmax.maximum) * scale * (own - mean), adds);
                    }
                  });
  }
};

const RegisterKernel registered(
    "softmax", [](const Attributes&) { return std::make_unique<Softmax>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
