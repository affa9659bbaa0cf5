// How many rows each expert has decides which products there are: the host waits for these numbers,
// once a pass.
//
// The alternative, products of a fixed number of rows for each expert, would compute with rows that
// no gate chose. The wait costs a round trip to the device; such a task cannot be recorded either
// (Experts::repeats).
//
// Each function is one launch over the elements of a block of rows. The sum of p h, a gate's
// gradient, is a team's for each row.
#include "ops/experts.h"

#include "gpu/blas.h"

namespace flexlegion::gpu {
namespace {

using namespace experts;

// In device memory (experts, rows): the rows whose gate for the expert is not 0, as many as
// `counts` then tells. A thread for each expert goes through all rows.
const std::int32_t* chosen_rows(const float* gates, std::int64_t rows, std::int64_t experts,
                                std::vector<std::int32_t>& counts) {
  auto* const list = reinterpret_cast<std::int32_t*>(scratch(kChosen, experts * rows));
  auto* const sizes = reinterpret_cast<std::int32_t*>(scratch(kCounts, experts));
  for_each(experts, [=] FL_BODY(std::int64_t e) {
    std::int32_t count = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (gates[r * experts + e] != 0) list[e * rows + count++] = static_cast<std::int32_t>(r);
    }
    sizes[e] = count;
  });
  counts.resize(static_cast<std::size_t>(experts));
  // The host has to know the numbers of rows: they are extents of products that it launches.
  read_integers(sizes, experts, counts.data());
  return list;
}

struct Gpu {
  using Input = DenseInput;
  using Output = DenseOutput;
  using OutputMatrix = gpu::OutputMatrix;

  class Rows {
   public:
    Rows(const float* gates, std::int64_t rows, std::int64_t experts)
        : rows_(rows), list_(chosen_rows(gates, rows, experts, counts_)) {}
    std::int64_t count(std::int64_t e) const { return counts_[static_cast<std::size_t>(e)]; }
    const std::int32_t* of(std::int64_t e) const { return list_ + e * rows_; }

   private:
    std::int64_t rows_;
    std::vector<std::int32_t> counts_;
    const std::int32_t* list_;
  };

  static bool takes(DataType) { return true; }
  static void zero(float* data, std::int64_t n) {
    for_each(n, [=] FL_BODY(std::int64_t i) { data[i] = 0; });
  }
  static void zero_view(const TensorView& view) { gpu::zero_view(view); }
  // In scratch memory that suffices for any block: a slot that grows leaves its memory unused.
  static Matrix matrix(int slot, const Block& block, std::int64_t cols, DataType type) {
    return Matrix::row_major(scratch(slot, floats_for(block.most * cols, type)), block.count, cols,
                             cols, type);
  }
  // A thread an element: neighbours copy neighbours of one row.
  static void gather(const Matrix& from, const Block& block, const Matrix& to) {
    for_each(to.rows * to.cols,
             [numbers = block.rows, cols = to.cols, from = reals(from), to = reals(to)] FL_BODY(
                 std::int64_t i) { to[i] = from[numbers[i / cols] * cols + i % cols]; });
  }
  static void add(const Matrix& m, const Block& block, const float* by, std::int64_t by_stride,
                  float* to) {
    for_each(m.rows * m.cols, [=, numbers = block.rows] FL_BODY(std::int64_t i) {
      const std::int64_t row = numbers[i / m.cols];
      to[row * m.cols + i % m.cols] += (by == nullptr ? 1.0f : by[row * by_stride]) * m.f32()[i];
    });
  }
  static void activate(ExpertActivation f, const Hidden& its) {
    const float *const a = its.a.f32(), *const other = its.gated.f32();
    for_each(its.a.rows * its.a.cols, [=, h = reals(its.h)] FL_BODY(std::int64_t i) {
      h[i] = f.value(a[i]) * (other == nullptr ? 1.0f : other[i]);
    });
  }
  // A team a row of the block: the gate's gradient is a sum along the row, all else is
  // element-wise.
  static void differentiate(ExpertActivation f, const Operands& of, const Block& block,
                            const Hidden& hidden, const Matrix& p, const Hidden& grads,
                            float* dgates) {
    const float* const gates = of.gates + block.expert;
    for_each_team(
        block.count, of.units,
        [=, units = of.units, experts = of.experts, rows = block.rows, e = block.expert,
         p = p.f32(), a = hidden.a.f32(), other = hidden.gated.f32(), d_a = reals(grads.a),
         d_other = reals(grads.gated),
         weighted = reals(grads.h)] FL_BODY(const Team& team, std::int64_t i) {
          const std::int64_t row = rows[i];
          const float weight = gates[row * experts];
          float mine = 0;
          for (std::int64_t k = i * units + team.rank; k < (i + 1) * units; k += team.size) {
            const float gated = other == nullptr ? 1.0f : other[k];
            const float grad = weight * p[k], value = f.value(a[k]), slope = f.slope(a[k]);
            mine += p[k] * value * gated;
            weighted[k] = weight * value * gated;
            d_a[k] = grad * slope * gated;
            if (other != nullptr) d_other[k] = grad * value;
          }
          const float sum = team.sum(mine);
          if (team.rank == 0 && dgates != nullptr) dgates[row * experts + e] = sum;
        });
  }
  static void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false) {
    gpu::multiply(a, b, c, adds);
  }
};

const RegisterKernel registered(
    "experts", [](const Attributes& a) { return std::make_unique<Experts<Gpu>>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
