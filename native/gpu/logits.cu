// What the loss over classes asks of the logits, as ops/logits.cc has it. A label that is no class
// does not count.
//
// A team for each label goes over the tile's classes once: the sum of exponentials with a running
// maximum, and the rank (row_log_sum.h). Smoothing takes one more read. The backward pass is one
// more read of the logits, and one write. Rows of classes may begin at any address, for there may
// be any number of classes: those before the first aligned one are visited one by one (visit_row).
#include "gpu/row_log_sum.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

// Which of all classes the tile has, and which class a label is: -1 if it does not count.
struct Classes {
  CountedLabels counted;
  std::int64_t all, first, count;

  Classes(const CountedLabels& its_labels, const TensorView& logits)
      : counted(its_labels),
        all(logits.shape[logits.rank() - 1]),
        first(logits.tile.lo[logits.rank() - 1]),
        count(logits.extent(logits.rank() - 1)) {}

  FL_DEVICE std::int64_t of(const Strided& labels, std::int64_t row) const {
    return counted.class_of(labels.integer(row), all);
  }
};

class OwnLogit : public Kernel {
 public:
  explicit OwnLogit(const Attributes& attributes) : counted_(attributes) {}
  bool takes(DataType) const override { return true; }
  void forward(KernelTask& task) override {
    const LabelRows rows(task.outputs[0], task.run);
    const Classes classes(counted_, task.inputs[0]);
    const Strided x(task.inputs[0]), labels(task.inputs[1]), y(task.outputs[0]);
    for_each(rows.count, [=] FL_BODY(std::int64_t row) {
      const std::int64_t column = row < rows.valid ? classes.of(labels, row) - classes.first : -1;
      y[row] = column >= 0 && column < classes.count ? row_of(x, row)[column] : 0.0f;
    });
  }

  // logit_statistics gives the gradient of all logits, the own one included.
  void backward(KernelTask& /*task*/) override {}

 private:
  CountedLabels counted_;
};

class LogitStatistics : public Kernel {
 public:
  LogitStatistics(const Attributes& attributes, bool smoothed)
      : counted_(attributes),
        smoothed_(smoothed),
        mean_weight_(smoothed ? static_cast<float>(attributes.number("mean_weight")) : 1.0f) {}
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const LabelRows rows(task.outputs[0], task.run);
    const Classes classes(counted_, task.inputs[0]);
    const Strided x(task.inputs[0]), labels(task.inputs[1]), owns(task.inputs[2]);
    const Strided log_sums(task.outputs[0]), ranks(task.outputs[1]);
    const bool smoothed = smoothed_, weighted = task.inputs.size() > 3;
    const Strided weights = weighted ? Strided(task.inputs[3]) : Strided();
    const Strided means = smoothed ? Strided(task.outputs[2]) : Strided();
    for_each_team(rows.count, classes.count, [=] FL_BODY(const Team& team, std::int64_t row) {
      const std::int64_t label = row < rows.valid ? classes.of(labels, row) : -1;
      // Where no label counts, zero: the first part's, to which the others add nothing.
      RowLogSum found;
      if (classes.first > 0) found.log_sum = -std::numeric_limits<double>::infinity();
      double sum = 0, own = 0;  // sum: of x - own
      if (label >= 0) {
        own = owns[row];
        const Row logits = row_of(x, row);
        found = log_sum_of(team, logits, classes.count, owns[row], label - classes.first);
        for (std::int64_t i = team.rank; smoothed && i < classes.count; i += team.size) {
          sum += (logits[i] - own) * (weighted ? static_cast<float>(weights[i]) : 1.0f);
        }
        sum = team.sum(sum);
      }
      if (team.rank != 0) return;
      log_sums[row] = static_cast<float>(found.log_sum - own);
      ranks[row] = static_cast<float>(found.rank);
      if (smoothed) means[row] = static_cast<float>(sum / static_cast<double>(classes.all));
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const LabelRows rows(task.outputs[0], task.run);
    const Classes classes(counted_, task.inputs[0]);
    const Strided x(task.inputs[0]), labels(task.inputs[1]), owns(task.inputs[2]);
    const Strided log_sums(task.outputs[0]), dlog_sums(task.output_grads[0]);
    const Strided dx(task.input_grads[0]);
    const bool smoothed = smoothed_, weighted = task.inputs.size() > 3;
    const float mean_weight = mean_weight_;
    const Strided weights = weighted ? Strided(task.inputs[3]) : Strided();
    const Strided dmeans = smoothed ? Strided(task.output_grads[2]) : Strided();
    for_each_team(rows.count, classes.count, [=] FL_BODY(const Team& team, std::int64_t row) {
      const Row out = row_of(dx, row), logits = row_of(x, row);
      // Rows of both tensors are read 16 bytes at a time only if they are equally far from an
      // aligned address.
      const std::int64_t n = classes.count, head = head_of(out.data);
      const bool alike = out.step == 1 && logits.step == 1 && head == head_of(logits.data);
      const std::int64_t label = row < rows.valid ? classes.of(labels, row) : -1;
      const bool counts = label >= 0;
      // The statistics are kept relative to the own logit, which keeps their numbers small; here it
      // is added again.
      const float log_sum = counts ? owns[row] + log_sums[row] : 0.0f;
      const float whole = counts ? static_cast<float>(dlog_sums[row]) : 0.0f;
      const float dmean = smoothed && counts ? static_cast<float>(dmeans[row]) : 0.0f;
      const float even = dmean / static_cast<float>(classes.all);
      const std::int64_t own = label - classes.first;
      visit_row(team, n, alike ? head : -1, [&](auto width, std::int64_t i) {
        constexpr int W = decltype(width)::value;
        Lanes<W> values{};
        if (counts) values = logits.load(width, i);
        for (int k = 0; counts && k < W; ++k) {
          // softmax times the gradient of the log of the sum, and a share of the mean's. The own
          // class is subtracted once more: all logits were taken relative to it.
          const float of_mean = weighted ? even * static_cast<float>(weights[i + k]) : even;
          const float gradient = expf(values[k] - log_sum) * whole + of_mean;
          values[k] = i + k == own ? gradient - (whole + dmean * mean_weight) : gradient;
        }
        store(out.data, i * out.step, values);
      });
    });
  }

 private:
  CountedLabels counted_;
  bool smoothed_;
  float mean_weight_;
};

const RegisterKernel registered_own(
    "own_logit", [](const Attributes& a) { return std::make_unique<OwnLogit>(a); },
    DeviceKind::gpu);
const RegisterKernel registered(
    "logit_statistics",
    [](const Attributes& a) { return std::make_unique<LogitStatistics>(a, false); },
    DeviceKind::gpu);
const RegisterKernel registered_smoothed(
    "smoothed_logit_statistics",
    [](const Attributes& a) { return std::make_unique<LogitStatistics>(a, true); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
