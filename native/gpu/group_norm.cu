// group_norm: y = (x - mean) r gamma + beta, r = 1 / sqrt(variance + epsilon), with the moments of
// a sample's group of neighbouring channels at all positions. A team for each group of a sample.
//
// With h = (x - mean) r and g = dy gamma, over the n elements of a group: dx = r (g - sum(g) / n -
// h sum(g h) / n), dgamma = sum of dy h, dbeta = sum of dy.
//
// A team reads its group's elements two times for the moments and once to write y; backwards once
// more for the two sums and once to write dx. The moments are kept for the second launch, which
// sums dgamma and dbeta down the channels.
#include "ops/group_norm.h"

#include "gpu/column_sums.h"
#include "gpu/rows.h"

namespace flexlegion::gpu {
namespace {

struct Moments {
  float mean, r;
};

// The elements of a tile's groups: of group k, counted through the samples, element j.
struct Groups {
  std::int64_t groups = 0, width = 0, rows = 0;  // of a sample; rows: positions

  Groups(const TensorView& x, std::int64_t channels)
      : groups(x.extent(x.rank() - 1) / channels),
        width(channels),
        rows(x.volume() / (x.extent(0) * x.extent(x.rank() - 1))) {}
  FL_DEVICE std::int64_t elements() const { return rows * width; }
  FL_DEVICE std::int64_t row(std::int64_t k, std::int64_t j) const {
    return k / groups * rows + j / width;
  }
  FL_DEVICE std::int64_t channel(std::int64_t k, std::int64_t j) const {
    return k % groups * width + j % width;
  }
};

// The variance is about the mean, in a second pass over the group. Sums of squares of x itself
// would cancel where the mean is large.
FL_DEVICE inline Moments moments_of(const Team& team, const Rows& x, const Groups& groups,
                                    std::int64_t k, float epsilon) {
  const std::int64_t n = groups.elements();
  const float share = 1.0f / static_cast<float>(n);
  float sum = 0, squares = 0;
  for (std::int64_t j = team.rank; j < n; j += team.size) {
    sum += x(groups.row(k, j), groups.channel(k, j));
  }
  const float mean = share * team.sum(sum);
  for (std::int64_t j = team.rank; j < n; j += team.size) {
    const float difference = x(groups.row(k, j), groups.channel(k, j)) - mean;
    squares += difference * difference;
  }
  return {mean, 1.0f / sqrtf(share * team.sum(squares) + epsilon)};
}

// A weight of the channels, or what stands for one that there is not.
struct Parameter {
  const float* data = nullptr;
  float otherwise = 0;

  Parameter(const KernelTask& task, int weight, float otherwise) : otherwise(otherwise) {
    if (weight >= 0) data = task.weights[static_cast<std::size_t>(weight)].f32();
  }
  FL_DEVICE float operator()(std::int64_t c) const { return data != nullptr ? data[c] : otherwise; }
};

class GroupNorm : public Kernel {
 public:
  explicit GroupNorm(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  // The group's moments, then its elements again.
  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const Rows x(task.inputs[0]), y(output);
    const Groups groups(output, layer_.width(output));
    const Parameter gamma(task, layer_.gamma, 1.0f), beta(task, layer_.beta, 0.0f);
    for_each_team(output.extent(0) * groups.groups, groups.elements(),
                  [=, epsilon = layer_.epsilon] FL_BODY(const Team& team, std::int64_t k) {
                    const Moments m = moments_of(team, x, groups, k, epsilon);
                    for (std::int64_t j = team.rank; j < groups.elements(); j += team.size) {
                      const std::int64_t row = groups.row(k, j), c = groups.channel(k, j);
                      y(row, c) = (x(row, c) - m.mean) * m.r * gamma(c) + beta(c);
                    }
                  });
  }

  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const Rows x(task.inputs[0]), dy(output_grad),
        dx(task.wants_input_grad(0) ? task.input_grads[0] : TensorView());
    const Groups groups(output_grad, layer_.width(output_grad));
    const Parameter gamma(task, layer_.gamma, 1.0f);
    const std::int64_t teams = output_grad.extent(0) * groups.groups;
    float* const means = scratch(0, 2 * teams);
    float* const scales = means + teams;
    const bool adds = task.adds_to_input_grad(0);
    for_each_team(teams, groups.elements(),
                  [=, epsilon = layer_.epsilon] FL_BODY(const Team& team, std::int64_t k) {
                    const Moments m = moments_of(team, x, groups, k, epsilon);
                    if (team.rank == 0) {
                      means[k] = m.mean;
                      scales[k] = m.r;
                    }
                    if (!dx.present()) return;
                    const std::int64_t n = groups.elements();
                    float g_sum = 0, gh_sum = 0;
                    for (std::int64_t j = team.rank; j < n; j += team.size) {
                      const std::int64_t row = groups.row(k, j), c = groups.channel(k, j);
                      const float g = dy(row, c) * gamma(c);
                      g_sum += g;
                      gh_sum += g * (x(row, c) - m.mean) * m.r;
                    }
                    const float share = 1.0f / static_cast<float>(n);
                    const float g_mean = share * team.sum(g_sum),
                                gh_mean = share * team.sum(gh_sum);
                    for (std::int64_t j = team.rank; j < n; j += team.size) {
                      const std::int64_t row = groups.row(k, j), c = groups.channel(k, j);
                      const float h = (x(row, c) - m.mean) * m.r;
                      put(dx(row, c), m.r * (dy(row, c) * gamma(c) - g_mean - h * gh_mean), adds);
                    }
                  });
    // Weights of the channels are shared by all samples: a sum down the columns, in a launch of its
    // own.
    const WeightGradient dgamma(task, layer_.gamma), dbeta(task, layer_.beta);
    if (dgamma.data == nullptr && dbeta.data == nullptr) return;
    const std::int64_t rows = output_grad.extent(0) * groups.rows;
    sum_columns<2>(
        rows, groups.groups * groups.width, 1,
        [=] FL_BODY(std::int64_t row, std::int64_t c) {
          const std::int64_t k = row / groups.rows * groups.groups + c / groups.width;
          const float grad = dy(row, c);
          return Sums<2>{{grad * (x(row, c) - means[k]) * scales[k], grad}};
        },
        [=] FL_BODY(std::int64_t c, const Sums<2>& sums) {
          if (dgamma.data != nullptr) {
            put(dgamma.data[c], static_cast<float>(sums.of[0]), dgamma.adds);
          }
          if (dbeta.data != nullptr) {
            put(dbeta.data[c], static_cast<float>(sums.of[1]), dbeta.adds);
          }
        });
  }

 private:
  GroupNormLayer layer_;
};

const RegisterKernel registered(
    "group_norm", [](const Attributes& a) { return std::make_unique<GroupNorm>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
