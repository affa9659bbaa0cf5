// The CPU's side of ops/experts.h: rows are gathered by copying, products are ops/products.h's, and
// what lies between the layers is computed row by row.
//
// The rows of each expert are listed by one pass over the gates, which are zero for all but a few
// experts of a row. A product's number of rows differs from batch to batch. It is rounded up to a
// multiple of 16, with rows of zeros: oneDNN's primitives are prepared for each shape, and without
// rounding there would be one for each number.
#include "ops/experts.h"

#include <cstring>

#include "ops/products.h"
#include "ops/simd.h"
#include "ops/written_row.h"

namespace flexlegion::experts {
namespace {

constexpr std::int64_t kRounded = 16;  // products are prepared for multiples of that many rows

// h = f(a), times the gate's half where the layer has one.
FLEXLEGION_SIMD void activate(ExpertActivation f, const float* a, const float* gated,
                              std::int64_t n, float* h) {
  for (std::int64_t i = 0; i < n; ++i) h[i] = f.value(a[i]);
  if (gated == nullptr) return;
  for (std::int64_t i = 0; i < n; ++i) h[i] *= gated[i];
}

// One row of a block: what is between the layers, and where its gradients go, with weight * h.
// Without a gate, `gated` and `d_gated` are null.
struct HiddenRow {
  const float *p, *a, *gated;
  float *d_a, *d_gated, *weighted;
};

// The gradients of what lies between the two layers, of one row: p is dy times the second layer's
// kernel. Returns the gradient of the row's gate, p h.
FLEXLEGION_SIMD float differentiate(ExpertActivation f, float weight, const HiddenRow& row,
                                    std::int64_t n) {
  float sum = 0;
  if (row.gated == nullptr) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < n; ++i) {
      const float h = f.value(row.a[i]);
      sum += row.p[i] * h;
      row.weighted[i] = weight * h;
      row.d_a[i] = weight * row.p[i] * f.slope(row.a[i]);
    }
    return sum;
  }
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const float grad = weight * row.p[i], value = f.value(row.a[i]);
    sum += row.p[i] * value * row.gated[i];
    row.weighted[i] = weight * value * row.gated[i];
    row.d_a[i] = grad * row.gated[i] * f.slope(row.a[i]);
    row.d_gated[i] = grad * value;
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

  // For each expert, the rows that chose it.
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

  static bool takes(DataType type) { return type == DataType::bfloat16; }
  static void zero(float* data, std::int64_t n) { std::fill_n(data, n, 0.0f); }
  static void zero_view(const TensorView& view) { flexlegion::zero_view(view); }
  // So many rows that the number is a multiple of kRounded.
  static Matrix matrix(int slot, const Block& block, std::int64_t cols, DataType type) {
    const std::int64_t rows = (block.count + kRounded - 1) / kRounded * kRounded;
    return Matrix::row_major(scratch(slot, floats_for(rows * cols, type)), rows, cols, cols, type);
  }
  // Rows that round up their number are 0.
  static void gather(const Matrix& from, const Block& block, const Matrix& to) {
    const auto bytes = static_cast<std::size_t>(to.cols * element_bytes(to.type));
    for (std::int64_t i = 0; i < block.count; ++i) {
      std::memcpy(to.at(i * to.cols), from.at(block.rows[i] * to.cols), bytes);
    }
    std::memset(to.at(block.count * to.cols), 0,
                static_cast<std::size_t>(to.rows - block.count) * bytes);
  }
  // Rows of the block go back to where they came from, each times its gate if there is one.
  static void add(const Matrix& m, const Block& block, const float* by, std::int64_t by_stride,
                  float* to) {
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t row = block.rows[i];
      add_scaled(m.f32() + i * m.cols, by == nullptr ? 1.0f : by[row * by_stride], m.cols,
                 to + row * m.cols);
    }
  }
  static void activate(ExpertActivation f, const Hidden& its) {
    const std::int64_t units = its.a.cols;
    for (std::int64_t i = 0; i < its.a.rows; ++i) {
      const WrittenRow h = written(its.h, i, kRow);
      experts::activate(f, floats(its.a, i), floats(its.gated, i), units, h.floats());
      h.commit();
    }
  }
  static void differentiate(ExpertActivation f, const Operands& of, const Block& block,
                            const Hidden& hidden, const Matrix& p, const Hidden& grads,
                            float* dgates) {
    for (std::int64_t i = 0; i < p.rows; ++i) {
      const std::int64_t gate_at = i < block.count ? block.rows[i] * of.experts + block.expert : -1;
      const WrittenRow d_a = written(grads.a, i, kRow), d_gated = written(grads.gated, i, kRow + 1),
                       weighted = written(grads.h, i, kRow + 2);
      const HiddenRow row{floats(p, i), floats(hidden.a, i), floats(hidden.gated, i),
                          d_a.floats(), d_gated.floats(),    weighted.floats()};
      const float sum =
          experts::differentiate(f, gate_at < 0 ? 0.0f : of.gates[gate_at], row, of.units);
      for (const WrittenRow* its : {&d_a, &d_gated, &weighted}) its->commit();
      // A row that only rounds up the number takes part with a gate of 0: its gradients are zero,
      // and its sum belongs to no gate.
      if (gate_at >= 0 && dgates != nullptr) dgates[gate_at] = sum;
    }
  }
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false) {
    products_.multiply(a, b, c, adding(adds));
  }

 private:
  // Row i of a dense matrix, or nothing of a missing one.
  static void* row_of(const Matrix& m, std::int64_t i) {
    return m.data == nullptr ? nullptr : m.at(i * m.cols);
  }
  static float* floats(const Matrix& m, std::int64_t i) {
    return static_cast<float*>(row_of(m, i));
  }
  static WrittenRow written(const Matrix& m, std::int64_t i, int slot) {
    return {row_of(m, i), m.type, m.cols, slot};
  }

  Products products_;
};

const RegisterKernel registered("experts", [](const Attributes& a) {
  return std::make_unique<Experts<Cpu>>(a);
});

}  // namespace
}  // namespace flexlegion::experts
