// Cross-entropy of classes, as ops/losses.cc has it. A label that is no class gives no loss.
#include "ops/losses.h"

#include <limits>

#include "gpu/view.h"
#include "ops/row_softmax.h"

namespace flexlegion::gpu {
namespace {

constexpr std::int32_t kNoLabel = -1;  // instead of a true class's rank

struct Row {
  float* data;
  std::int64_t step;
  FL_DEVICE float& operator[](std::int64_t i) const { return data[i * step]; }
};

FL_DEVICE Row row_of(const Strided& tile, std::int64_t i) {
  return {tile.row(i), tile.stride[tile.rank - 1]};
}

// The first of the largest.
FL_DEVICE std::int64_t argmax(const Team& team, const Row& x, std::int64_t n) {
  float mine = -std::numeric_limits<float>::infinity();
  std::int64_t at = 0;
  for (std::int64_t i = team.rank; i < n; i += team.size) {
    if (!(x[i] > mine)) continue;
    mine = x[i];
    at = i;
  }
  const std::int64_t candidate = mine == team.maximum(mine) ? at : n;
  return static_cast<std::int64_t>(-team.maximum(-static_cast<double>(candidate)));
}

// As ops/row_softmax.h's row_log_sum().
FL_DEVICE RowLogSum log_sum_of(const Team& team, const Row& x, std::int64_t n, std::int64_t which) {
  const float bound = x[which];
  float maximum = std::numeric_limits<float>::lowest();
  double sum = 0, before = 0;  // sum: of exp(x - maximum)
  for (std::int64_t i = team.rank; i < n; i += team.size) {
    const float value = x[i];
    if (value > maximum) {
      sum *= expf(maximum - value);
      maximum = value;
    }
    sum += expf(value - maximum);
    before += value > bound || (value == bound && i < which) ? 1 : 0;
  }
  const float top = team.maximum(maximum);
  const double total = team.sum(sum * expf(maximum - top));
  const double rank = team.sum(before);
  RowLogSum result;
  result.log_sum = top + log(total);
  result.rank = bound != bound ? n : static_cast<std::int64_t>(rank);
  return result;
}

// sum of y (log_sum - x): the cross-entropy of a distribution y
FL_DEVICE float soft_loss(const Team& team, const Row& x, const Row& y, std::int64_t n,
                          float log_sum) {
  float loss = 0;
  for (std::int64_t i = team.rank; i < n; i += team.size) loss += y[i] * (log_sum - x[i]);
  return team.sum(loss);
}

// Labels by row of the logits.
struct Labels {
  Strided tile;
  bool sparse;
  float smoothing;

  // Below 0 if the label does not count.
  FL_DEVICE std::int64_t truth(const Team& team, std::int64_t row, std::int64_t classes) const {
    if (!sparse) return argmax(team, row_of(tile, row), classes);
    const std::int64_t label = tile.integer(row);
    return label < classes ? label : -1;
  }
};

// A tile's rows: one a sample, or a sample and step; samples that count come first.
struct Rows {
  std::int64_t count, valid, classes;

  Rows(const TensorView& losses, const TensorView& logits, const RunState& run)
      : count(losses.volume()),
        valid(count == 0 ? 0 : valid_samples(losses, run) * (count / losses.extent(0))),
        classes(logits.extent(logits.rank() - 1)) {}
};

void cross_entropy(const Rows& rows, const Strided& x, const Labels& labels, const Strided& y,
                   const Strided& log_sums, std::int32_t* ranks) {
  for_each_team(rows.count, rows.classes, [=] FL_BODY(const Team& team, std::int64_t row) {
    const std::int64_t truth = row < rows.valid ? labels.truth(team, row, rows.classes) : -1;
    RowLogSum found;
    float loss = 0;
    if (truth >= 0) {
      const Row logits = row_of(x, row);
      found = log_sum_of(team, logits, rows.classes, truth);
      loss = labels.sparse ? static_cast<float>(found.log_sum - logits[truth])
                           : soft_loss(team, logits, row_of(labels.tile, row), rows.classes,
                                       static_cast<float>(found.log_sum));
      if (labels.smoothing > 0) {
        double sum = 0;
        for (std::int64_t i = team.rank; i < rows.classes; i += team.size) sum += logits[i];
        const double even = found.log_sum - team.sum(sum) / static_cast<double>(rows.classes);
        loss += labels.smoothing * (static_cast<float>(even) - loss);
      }
    }
    if (team.rank != 0) return;
    y[row] = loss;
    log_sums[row] = static_cast<float>(found.log_sum);
    ranks[row] = truth >= 0 ? static_cast<std::int32_t>(found.rank) : kNoLabel;
  });
}

// By one team, so that the metrics, which may be far away, are written once.
void add_cross_entropy(Metrics* metrics, const Rows& rows, std::int64_t samples, const Strided& y,
                       const std::int32_t* ranks) {
  for_each_team(1, rows.valid, [=] FL_BODY(const Team& team, std::int64_t) {
    double loss = 0, correct = 0, correct_top5 = 0, labels = 0;
    for (std::int64_t row = team.rank; row < rows.valid; row += team.size) {
      const std::int32_t rank = ranks[row];
      if (rank == kNoLabel) continue;
      loss += y[row];
      correct += rank == 0 ? 1 : 0;
      correct_top5 += rank < 5 ? 1 : 0;
      labels += 1;
    }
    loss = team.sum(loss);
    correct = team.sum(correct);
    correct_top5 = team.sum(correct_top5);
    labels = team.sum(labels);
    if (team.rank != 0) return;
    add_atomically(&metrics->loss, loss);
    add_atomically(&metrics->correct, correct);
    add_atomically(&metrics->correct_top5, correct_top5);
    add_atomically(&metrics->labels, static_cast<std::int64_t>(labels));
    add_atomically(&metrics->samples, samples);
  });
}

// (softmax(x) * sum(y) - y) * share
void cross_entropy_gradient(const Rows& rows, const Strided& x, const Labels& labels,
                            const Strided& log_sums, float share, const Strided& dx) {
  for_each_team(rows.count, rows.classes, [=] FL_BODY(const Team& team, std::int64_t row) {
    const Row out = row_of(dx, row), logits = row_of(x, row), y = row_of(labels.tile, row);
    const std::int64_t n = rows.classes;
    const std::int64_t truth = labels.sparse ? labels.truth(team, row, n) : 0;
    if (row >= rows.valid || truth < 0) {
      for (std::int64_t i = team.rank; i < n; i += team.size) out[i] = 0.0f;
      return;
    }
    float total = 1;
    if (!labels.sparse) {
      float mine = 0;
      for (std::int64_t i = team.rank; i < n; i += team.size) mine += y[i];
      total = team.sum(mine);
    }
    const float log_sum = log_sums[row], kept = 1.0f - labels.smoothing;
    const float even = labels.smoothing / static_cast<float>(n);
    for (std::int64_t i = team.rank; i < n; i += team.size) {
      const float target = !labels.sparse ? y[i] : i == truth ? 1.0f : 0.0f;
      const float all = total * kept + labels.smoothing;
      out[i] = (expf(logits[i] - log_sum) * all - (target * kept + even)) * share;
    }
  });
}

class SoftmaxCrossEntropy : public Kernel {
 public:
  explicit SoftmaxCrossEntropy(const Attributes& attributes)
      : sparse_(sparse_labels(attributes)), smoothing_(smoothing_of(attributes)) {}

  void forward(KernelTask& task) override {
    const TensorView& losses = task.outputs[0];
    const Rows rows(losses, task.inputs[0], task.run);
    if (rows.count == 0) return;
    const Strided y(losses);
    auto* const ranks = reinterpret_cast<std::int32_t*>(scratch(0, rows.count));
    cross_entropy(rows, Strided(task.inputs[0]), {Strided(task.inputs[1]), sparse_, smoothing_}, y,
                  Strided(task.outputs[1]), ranks);
    if (task.metrics == nullptr) return;
    const bool first_step = losses.rank() == 1 || losses.tile.lo[1] == 0;
    add_cross_entropy(task.metrics, rows, first_step ? valid_samples(losses, task.run) : 0, y,
                      ranks);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const Rows rows(task.outputs[1], task.inputs[0], task.run);
    cross_entropy_gradient(rows, Strided(task.inputs[0]),
                           {Strided(task.inputs[1]), sparse_, smoothing_}, Strided(task.outputs[1]),
                           static_cast<float>(task.run.label_share), Strided(task.input_grads[0]));
  }

 private:
  bool sparse_;
  float smoothing_;
};

const RegisterKernel cross_entropy_kernel(
    "softmax_cross_entropy",
    [](const Attributes& a) { return std::make_unique<SoftmaxCrossEntropy>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
