// softmax over the last dimension, or its logarithm. A task sees whole rows of its input and may
// own a slice of their softmax; its contribution to the input's gradient covers the whole row.
//
// A team for each row, which reads it three times: for the maximum, for the sum of exponentials,
// and to write its slice. The first read fills the caches. The logarithm is (x - maximum) -
// log(sum), never the logarithm of a softmax, which may have become 0.
#include "gpu/row_softmax.h"
#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class Softmax : public Kernel {
 public:
  explicit Softmax(const Attributes& attributes) : log_(attributes.integer("log") != 0) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Strided x(task.inputs[0]), y(task.outputs[0]);
    const int last = x.rank - 1;
    const std::int64_t classes = x.extent[last], length = y.extent[last];
    const std::int64_t lo = task.outputs[0].tile.lo[last];
    for_each_team(task.outputs[0].volume() / length, classes,
                  [=, log = log_] FL_BODY(const Team& team, std::int64_t r) {
                    const Reals from = x.row(r), to = y.row(r);
                    const RowSoftmax softmax = row_softmax(team, from, classes);
                    const float scale = 1.0f / softmax.sum;
                    const float log_sum = logf(softmax.sum);
                    for (std::int64_t j = team.rank; j < length; j += team.size) {
                      const float below = from[lo + j] - softmax.maximum;
                      to[j] = log ? below - log_sum : expf(below) * scale;
                    }
                  });
  }

  // dx_j = y_j (dy_j - sum_k dy_k y_k), where dy is zero outside of the task's slice; of the
  // logarithm, dy_j - y_j sum_k dy_k.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const bool adds = task.adds_to_input_grad(0);
    const Strided x(task.inputs[0]), dy(task.output_grads[0]), dx(task.input_grads[0]);
    const int last = x.rank - 1;
    const std::int64_t classes = x.extent[last], length = dy.extent[last];
    const std::int64_t lo = task.output_grads[0].tile.lo[last];
    for_each_team(task.input_grads[0].volume() / std::max<std::int64_t>(1, classes), classes,
                  [=, log = log_] FL_BODY(const Team& team, std::int64_t r) {
                    const Reals from = x.row(r), grad = dy.row(r), to = dx.row(r);
                    const RowSoftmax softmax = row_softmax(team, from, classes);
                    const float scale = 1.0f / softmax.sum;
                    float mean = 0;
                    for (std::int64_t j = team.rank; j < length; j += team.size) {
                      const float each = expf(from[lo + j] - softmax.maximum) * scale;
                      mean += log ? static_cast<float>(grad[j]) : grad[j] * each;
                    }
                    mean = team.sum(mean);
                    for (std::int64_t j = team.rank; j < classes; j += team.size) {
                      const float own = j >= lo && j < lo + length ? grad[j - lo] : 0.0f;
                      const float each = expf(from[j] - softmax.maximum) * scale;
                      put(to[j], log ? own - each * mean : each * (own - mean), adds);
                    }
                  });
  }

 private:
  bool log_;
};

const RegisterKernel registered(
    "softmax", [](const Attributes& a) { return std::make_unique<Softmax>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
