// reduce: mean, sum or maximum over whole dimensions. A team for each result.
//
// The input is seen as a table: a column for each result, and a row for each element that goes into
// it (folded.h). Where neighbours in memory are summed, a team reads them side by side; where the
// last dimension stays, threads take neighbouring columns instead. Both read memory in order. The
// maximum's gradient is found again from x and y: `max` rewards the first element that has it,
// `amax` shares.
#include "ops/reduce.h"

#include "gpu/column_sums.h"
#include "gpu/folded.h"
#include "ops/merge_elements.h"

namespace flexlegion::gpu {
namespace {

// Sums are made in double precision, so that the order in which threads add hardly shows.
void sum(const TensorView& x, const TensorView& y, float factor) {
  const Folded folded(y, x);
  const Strided from(x);
  const Reals to(y.data, y.type);
  const std::int64_t last = x.rank() - 1;
  if (y.shape[last] == 1 && x.shape[last] != 1) {  // neighbours are summed
    for_each_team(folded.columns.volume, folded.rows.volume,
                  [=] FL_BODY(const Team& team, std::int64_t column) {
                    double mine = 0;
                    const std::int64_t first = folded.columns(column);
                    for (std::int64_t r = team.rank; r < folded.rows.volume; r += team.size) {
                      mine += from[first + folded.rows(r)];
                    }
                    const double total = team.sum(mine);
                    if (team.rank == 0) {
                      to[folded.kept(column)] = factor * static_cast<float>(total);
                    }
                  });
    return;
  }
  sum_columns<1>(
      folded.rows.volume, folded.columns.volume, 0,
      [=] FL_BODY(std::int64_t row, std::int64_t column) {
        return Sums<1>{{from[folded.rows(row) + folded.columns(column)]}};
      },
      [=] FL_BODY(std::int64_t column, const Sums<1>& sums) {
        to[folded.kept(column)] = factor * static_cast<float>(sums.of[0]);
      });
}

// A NaN wins and stays, as on CPUs: no number compares larger than it.
void maximum(const TensorView& x, const TensorView& y) {
  const Folded folded(y, x);
  const Strided from(x);
  const Reals to(y.data, y.type);
  for_each_team(folded.columns.volume, folded.rows.volume,
                [=] FL_BODY(const Team& team, std::int64_t column) {
                  float mine = -INFINITY;
                  const std::int64_t first = folded.columns(column);
                  for (std::int64_t r = team.rank; r < folded.rows.volume; r += team.size) {
                    const float value = from[first + folded.rows(r)];
                    mine = value > mine || value != value ? value : mine;
                  }
                  const float most = team.maximum(mine);
                  if (team.rank == 0) to[folded.kept(column)] = most;
                });
}

// The gradient of a sum or mean: every element has that of its result, times the factor.
void spread(const TensorView& dy, const TensorView& dx, float factor, bool adds) {
  const Spread places(dy, dx);
  const Strided to(dx);
  const Reals from(dy.data, dy.type);
  for_each(dx.volume(),
           [=] FL_BODY(std::int64_t i) { put(to[i], factor * from[places(i)], adds); });
}

// The first element that has the maximum takes its gradient: rows are numbered row-major.
void reward(const TensorView& x, const TensorView& y, const TensorView& dy, const TensorView& dx,
            bool adds) {
  const Folded folded(y, x), gradients(dy, x);
  const Strided from(x), to(dx);
  const Reals most(y.data, y.type), grad(dy.data, dy.type);
  for_each_team(folded.columns.volume, folded.rows.volume,
                [=] FL_BODY(const Team& team, std::int64_t column) {
                  const std::int64_t first = folded.columns(column), rows = folded.rows.volume;
                  const float maximum = most[folded.kept(column)];
                  std::int64_t mine = rows;
                  // From the last row to the first: what a thread finds last is its smallest row.
                  for (std::int64_t r = rows - 1 - team.rank; r >= 0; r -= team.size) {
                    if (same_number(from[first + folded.rows(r)], maximum)) mine = r;
                  }
                  // The largest negated number is the smallest row.
                  const auto winner =
                      -static_cast<std::int64_t>(team.maximum(-static_cast<double>(mine)));
                  for (std::int64_t r = team.rank; r < rows; r += team.size) {
                    const float value = r == winner ? grad[gradients.kept(column)] : 0.0f;
                    put(to[first + folded.rows(r)], value, adds);
                  }
                });
}

// All elements that have the maximum take an equal part of its gradient.
void share(const TensorView& x, const TensorView& y, const TensorView& dy, const TensorView& dx,
           bool adds) {
  const Folded folded(y, x), gradients(dy, x);
  const Strided from(x), to(dx);
  const Reals most(y.data, y.type), grad(dy.data, dy.type);
  for_each_team(folded.columns.volume, folded.rows.volume,
                [=] FL_BODY(const Team& team, std::int64_t column) {
                  const std::int64_t first = folded.columns(column), rows = folded.rows.volume;
                  const float maximum = most[folded.kept(column)];
                  double mine = 0;
                  for (std::int64_t r = team.rank; r < rows; r += team.size) {
                    mine += same_number(from[first + folded.rows(r)], maximum) ? 1 : 0;
                  }
                  // At least one has it, as the maximum is one of them.
                  const auto number = static_cast<float>(team.sum(mine));
                  const float each = grad[gradients.kept(column)] / number;
                  for (std::int64_t r = team.rank; r < rows; r += team.size) {
                    const std::int64_t at = first + folded.rows(r);
                    put(to[at], same_number(from[at], maximum) ? each : 0.0f, adds);
                  }
                });
}

// Sums and means spread their gradient; a maximum gives it to who has it.
class Reduce : public Kernel {
 public:
  explicit Reduce(const Attributes& attributes) : reduction_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& x = task.inputs[0];
    if (task.outputs[0].tile.empty()) return;
    // The output seen with the input's dimensions, extent 1 where it is reduced.
    const TensorView y = reduction_.beside(x, task.outputs[0]);
    if (reduction_.kind == Reduction::Kind::maximum) return maximum(x, y);
    sum(x, y, static_cast<float>(reduction_.factor(x)));
  }

  // An empty output has no gradient to give.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.output_grads[0].tile.empty()) return;
    const TensorView& dx = task.input_grads[0];
    const TensorView dy = reduction_.beside(dx, task.output_grads[0]);
    const bool adds = task.adds_to_input_grad(0);
    if (reduction_.kind != Reduction::Kind::maximum) {
      return spread(dy, dx, static_cast<float>(reduction_.factor(dx)), adds);
    }
    const TensorView y = reduction_.beside(dx, task.outputs[0]);
    (reduction_.shares ? share : reward)(task.inputs[0], y, dy, dx, adds);
  }

 private:
  Reduction reduction_;
};

const RegisterKernel registered(
    "reduce", [](const Attributes& a) { return std::make_unique<Reduce>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
