#include "ops/experts.h"

#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion::experts {
namespace {

constexpr std::int64_t kRounded = 16;  // products are prepared for multiples of that many rows

FLEXLEGION_SIMD void activate(ExpertActivation f, const float* a, const float* gated,
                              std::int64_t n, float* h) {
  for (std::int64_t i = 0; i < n; ++i) h[i] = f.value(a[i]);
  if (gated == nullptr) return;
  for (std::int64_t i = 0; i < n; ++i) h[i] *= gated[i];
}

// One row of a block: from p to the gradients before the activation, in place of a and `gated`; h
// becomes weight * h. Returns the gate's gradient.
FLEXLEGION_SIMD float differentiate(ExpertActivation f, float weight, const float* p,
                                    std::int64_t n, float* a, float* gated, float* h) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += p[i] * h[i];
  for (std::int64_t i = 0; i < n; ++i) h[i] *= weight;
  if (gated == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) a[i] = weight * p[i] * f.slope(a[i]);
    return sum;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const float grad = weight * p[i], value = f.value(a[i]);
    a[i] = grad * gated[i] * f.slope(a[i]);
    gated[i] = grad * value;
  }
  return sum;
}

FLEXLEGION_SIMD void add_scaled(const float* x, float by, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += by * x[i];
}

class Cpu {
 public:
  using Input = DenseInput;
  using Output = DenseOutput;
  using OutputMatrix = flexlegion::OutputMatrix;

  class Rows {
   public:
    Rows(const float* gates, std::int64_t rows, std::int64_t experts) : chosen_(experts) {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t e = 0; e < experts; ++e) {
          if (gates[r * experts + e] != 0) chosen_[e].push_back(static_cast<std::int32_t>(r));
        }
      }
    }
    std::int64_t count(std::int64_t e) const {
      return static_cast<std::int64_t>(chosen_[e].size());
    }
    const std::int32_t* of(std::int64_t e) const { return chosen_[e].data(); }

   private:
    std::vector<std::vector<std::int32_t>> chosen_;
  };

  static void zero(float* data, std::int64_t n) { std::fill_n(data, n, 0.0f); }
  static void zero_view(const TensorView& view) { flexlegion::zero_view(view); }
  static Matrix matrix(int slot, const Block& block, std::int64_t cols) {
    const std::int64_t rows = (block.count + kRounded - 1) / kRounded * kRounded;
    return Matrix::row_major(scratch(slot, rows * cols), rows, cols, cols);
  }
  // Rows that round up their number are 0.
  static void gather(const float* from, const Block& block, const Matrix& to) {
    for (std::int64_t i = 0; i < block.count; ++i) {
      std::copy_n(from + block.rows[i] * to.cols, to.cols, to.f32() + i * to.cols);
    }
    std::fill(to.f32() + block.count * to.cols, to.f32() + to.rows * to.cols, 0.0f);
  }
  static void add(const Matrix& m, const Block& block, const float* by, std::int64_t by_stride,
                  float* to) {
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t row = block.rows[i];
      add_scaled(m.f32() + i * m.cols, by == nullptr ? 1.0f : by[row * by_stride], m.cols,
                 to + row * m.cols);
    }
  }
  static void activate(ExpertActivation f, const Hidden& its) {
    experts::activate(f, its.a.f32(), its.gated.f32(), its.a.rows * its.a.cols, its.h.f32());
  }
  static void before_activation(ExpertActivation f, const Operands& of, const Block& block,
                                const Hidden& hidden, const Matrix& p, float* dgates) {
    for (std::int64_t i = 0; i < p.rows; ++i) {
      const std::int64_t at = i * of.units;
      const std::int64_t gate_at = i < block.count ? block.rows[i] * of.experts + block.expert : -1;
      float* const gated = of.gated() ? hidden.gated.f32() + at : nullptr;
      const float sum = differentiate(f, gate_at < 0 ? 0.0f : of.gates[gate_at], p.f32() + at,
                                      of.units, hidden.a.f32() + at, gated, hidden.h.f32() + at);
      if (gate_at >= 0 && dgates != nullptr) dgates[gate_at] = sum;
    }
  }
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false) {
    products_.multiply(a, b, c, adding(adds));
  }

 private:
  Products products_;
};

const RegisterKernel registered("experts", [](const Attributes& a) {
  return std::make_unique<Experts<Cpu>>(a);
});

}  // namespace
}  // namespace flexlegion::experts
