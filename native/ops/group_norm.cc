// group_norm: y = (x - mean) r gamma + beta, r = 1 / sqrt(variance + epsilon), with the moments of
// a sample's group of neighbouring channels at all positions.
//
// With h = (x - mean) r and g = dy gamma, over the n elements of a group: dx = r (g - sum(g) / n -
// h sum(g h) / n), dgamma = sum of dy h, dbeta = sum of dy. Sums are taken by channel first, row by
// row in single precision, and added up in double precision.
//
// A group's channels lie beside the other groups' in each pixel's row. Going through the memory
// group by group would read short pieces far apart, so each pass reads whole rows and keeps a sum
// for each channel; only then are a group's channels added. Forwards: three passes over a sample
// (mean, variance about it, output); backwards: two for the moments, one for the sums, one for dx.
// The moments are computed again instead of saved.
#include "ops/group_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void add_row(const float* x, double* to, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) to[c] += x[c];
}
FLEXLEGION_SIMD void add_squares(const float* x, const float* mean, double* to, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) {
    const float difference = x[c] - mean[c];
    to[c] += difference * difference;
  }
}
FLEXLEGION_SIMD void normalize(const float* x, const float* mean, const float* scale,
                               const float* offset, float* y, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) y[c] = (x[c] - mean[c]) * scale[c] + offset[c];
}
// Sums of dy, and of dy h.
FLEXLEGION_SIMD void add_products(const float* x, const float* dy, const float* mean,
                                  const float* r, double* sums, double* products, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) {
    sums[c] += dy[c];
    products[c] += dy[c] * ((x[c] - mean[c]) * r[c]);
  }
}
// What the gradient needs to know of each channel.
struct Slopes {
  const float *mean, *r, *gamma, *g_mean, *gh_mean;
};
FLEXLEGION_SIMD void differentiate(const float* x, const float* dy, const Slopes& s, float* dx,
                                   std::int64_t n, bool adds) {
  write_or_add(adds, dx, n, [=](std::int64_t c) FLEXLEGION_INLINE_LAMBDA {
    const float h = (x[c] - s.mean[c]) * s.r[c];
    return s.r[c] * (dy[c] * s.gamma[c] - s.g_mean[c] - h * s.gh_mean[c]);
  });
}

class GroupNorm : public Kernel {
 public:
  explicit GroupNorm(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    Channels c(*this, task, task.inputs[0]);
    std::vector<float> scale(static_cast<std::size_t>(c.n));
    for_each_sample(task.inputs[0], y, y,
                    [&](const TensorView& x, const TensorView&, const TensorView& out) {
                      c.find_moments(x);
                      for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = c.r[i] * c.gamma[i];
                      for_each_row<2>({&x, &out}, [&](const Offsets<2>& at) {
                        normalize(x.f32() + at[0], c.mean.data(), scale.data(), c.beta.data(),
                                  out.f32() + at[1], c.n);
                      });
                    });
  }

  void backward(KernelTask& task) override {
    const TensorView &x_tile = task.inputs[0], &dy_tile = task.output_grads[0];
    if (dy_tile.tile.empty()) return;
    const bool wanted = task.wants_input_grad(0), adds = task.adds_to_input_grad(0);
    Channels c(*this, task, x_tile);
    const auto size = static_cast<std::size_t>(c.n);
    // sums and products: of a sample. dbeta and dgamma: of all samples so far.
    std::vector<double> sums(size), products(size), dbeta(size), dgamma(size);
    std::vector<float> g_mean(size), gh_mean(size);
    for_each_sample(x_tile, dy_tile, wanted ? task.input_grads[0] : x_tile,
                    [&](const TensorView& x, const TensorView& dy, const TensorView& dx) {
                      c.find_moments(x);
                      std::fill(sums.begin(), sums.end(), 0.0);
                      std::fill(products.begin(), products.end(), 0.0);
                      for_each_row<2>({&x, &dy}, [&](const Offsets<2>& at) {
                        add_products(x.f32() + at[0], dy.f32() + at[1], c.mean.data(), c.r.data(),
                                     sums.data(), products.data(), c.n);
                      });
                      for (std::size_t i = 0; i < size; ++i) {
                        dbeta[i] += sums[i];
                        dgamma[i] += products[i];
                        // From here on, sums of g = dy gamma, and of g h.
                        sums[i] *= c.gamma[i];
                        products[i] *= c.gamma[i];
                      }
                      if (!wanted) return;
                      c.share(sums, g_mean);
                      c.share(products, gh_mean);
                      const Slopes slopes{c.mean.data(), c.r.data(), c.gamma.data(), g_mean.data(),
                                          gh_mean.data()};
                      for_each_row<3>({&x, &dy, &dx}, [&](const Offsets<3>& at) {
                        differentiate(x.f32() + at[0], dy.f32() + at[1], slopes, dx.f32() + at[2],
                                      c.n, adds);
                      });
                    });
    give(task, layer_.gamma, dgamma);
    give(task, layer_.beta, dbeta);
  }

 private:
  // What is known of the channels of a tile, and of a sample's groups: a group's numbers stand at
  // each of its channels.
  struct Channels {
    std::int64_t n, width;
    float epsilon;
    double elements;  // of a group
    std::vector<float> gamma, beta, mean, r;
    std::vector<double> sums;

    Channels(const GroupNorm& kernel, const KernelTask& task, const TensorView& x)
        : n(x.extent(x.rank() - 1)),
          width(kernel.layer_.width(x)),
          epsilon(kernel.layer_.epsilon),
          elements(static_cast<double>(width * x.volume() / (n * x.extent(0)))),
          gamma(parameter(task, kernel.layer_.gamma, 1.0f)),
          beta(parameter(task, kernel.layer_.beta, 0.0f)),
          mean(static_cast<std::size_t>(n)),
          r(mean.size()),
          sums(mean.size()) {}

    // Mean and variance of each group, in two passes: squares about the mean do not cancel.
    void find_moments(const TensorView& x) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for_each_row<1>({&x},
                      [&](const Offsets<1>& at) { add_row(x.f32() + at[0], sums.data(), n); });
      share(sums, mean);
      std::fill(sums.begin(), sums.end(), 0.0);
      for_each_row<1>({&x}, [&](const Offsets<1>& at) {
        add_squares(x.f32() + at[0], mean.data(), sums.data(), n);
      });
      share(sums, r);
      for (float& value : r) value = 1.0f / std::sqrt(value + epsilon);
    }

    // A group's sum over its elements' number.
    void share(const std::vector<double>& of, std::vector<float>& to) const {
      for (std::int64_t first = 0; first < n; first += width) {
        double sum = 0;
        for (std::int64_t c = first; c < first + width; ++c) sum += of[static_cast<std::size_t>(c)];
        std::fill_n(to.begin() + first, width, static_cast<float>(sum / elements));
      }
    }

    // Parameters may lie with a stride, so they are copied: a few numbers for a whole tile.
    std::vector<float> parameter(const KernelTask& task, int weight, float otherwise) const {
      std::vector<float> result(static_cast<std::size_t>(n), otherwise);
      if (weight < 0) return result;
      const TensorView& view = task.weights[static_cast<std::size_t>(weight)];
      if (!view.present()) return result;  // the backward pass needs no summand
      for (std::int64_t c = 0; c < n; ++c) {
        result[static_cast<std::size_t>(c)] = view.f32()[c * view.stride[0]];
      }
      return result;
    }
  };

  template <typename Body>
  static void for_each_sample(const TensorView& a, const TensorView& b, const TensorView& c,
                              Body&& body) {
    for (std::int64_t i = 0; i < a.extent(0); ++i)
      body(subview(a, i), subview(b, i), subview(c, i));
  }

  static void give(const KernelTask& task, int weight, const std::vector<double>& sums) {
    if (weight < 0 || !task.wants_weight_grad(static_cast<std::size_t>(weight))) return;
    const TensorView& to = task.weight_grads[static_cast<std::size_t>(weight)];
    const bool adds = task.adds_to_weight_grad(static_cast<std::size_t>(weight));
    for (std::size_t c = 0; c < sums.size(); ++c) {
      // Rounded to single precision once, after the sum over all samples.
      float& its = to.f32()[static_cast<std::int64_t>(c) * to.stride[0]];
      its = (adds ? its : 0.0f) + static_cast<float>(sums[c]);
    }
  }

  GroupNormLayer layer_;
};

const RegisterKernel registered("group_norm",
                                [](const Attributes& a) { return std::make_unique<GroupNorm>(a); });

}  // namespace
}  // namespace flexlegion
