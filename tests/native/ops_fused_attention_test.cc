// multi_head_attention over tiles of two bytes whose shapes a fused kernel takes, against the same
// kernel's results for floats of the same values.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct Attention {
  std::int64_t samples, queries, keys, heads, groups, channels;
  bool causal = false;
};

// Tensors, and the numbers of two bytes next to their elements, which also replace these.
struct Rounded {
  std::vector<Tensor> floats;
  std::vector<Array<Narrow>> narrow;
  DataType type;

  Rounded(std::vector<Tensor> tensors, DataType type) : floats(std::move(tensors)), type(type) {
    for (Tensor& t : floats) {
      Array<Narrow> bits(t.data.size());
      round_off(type, t.data.data(), bits.data(), static_cast<std::int64_t>(bits.size()));
      widen(type, bits.data(), t.data.data(), static_cast<std::int64_t>(bits.size()));
      narrow.push_back(std::move(bits));
    }
  }
  std::vector<TensorView> views(bool of_floats) {
    std::vector<TensorView> result;
    for (std::size_t i = 0; i < floats.size(); ++i) {
      TensorView view = floats[i].view(floats[i].whole());
      if (!of_floats) {
        view.data = narrow[i].data();
        view.type = type;
      }
      result.push_back(view);
    }
    return result;
  }
  void fill(float value) {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i].data.assign(floats[i].data.size(), value);
      narrow[i].assign(narrow[i].size(), rounded(type, value));
    }
  }
};

// Of the narrow results, by the norm of the others.
double relative_error(const Rounded& results, std::size_t i) {
  double difference = 0, size = 0;
  for (std::size_t k = 0; k < results.narrow[i].size(); ++k) {
    const double exact = results.floats[i].data[k];
    difference += std::pow(widened(results.type, results.narrow[i][k]) - exact, 2);
    size += exact * exact;
  }
  return std::sqrt(difference / size);
}

void check(const Attention& s, DataType type, unsigned seed) {
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(s.groups);
  CAPTURE(s.channels);
  CAPTURE(s.causal);
  const Shape queries{s.samples, s.queries, s.heads, s.channels};
  const Shape keys{s.samples, s.keys, s.groups, s.channels};
  Rounded inputs({Tensor::random(queries, seed), Tensor::random(keys, seed + 1),
                  Tensor::random(keys, seed + 2)},
                 type);
  Rounded gradient({Tensor::random(queries, seed + 3)}, type), output({Tensor(queries)}, type);
  Rounded grads({Tensor(queries), Tensor(keys), Tensor(keys)}, type);
  const auto kernel = make_kernel(
      "multi_head_attention",
      Attributes(Entries{
          {"causal", s.causal ? "1" : "0"}, {"scale", "0.5"}, {"dropout", "0"}, {"id", "5"}}),
      kTested);
  if (!kernel->takes(type)) return;
  for (const float before : {0.0f, 1.0f}) {  // gradients are written, or added to that
    output.fill(kNan);
    grads.fill(before == 0 ? kNan : before);
    for (const bool of_floats : {true, false}) {
      KernelTask task;
      task.inputs = inputs.views(of_floats);
      task.outputs = output.views(of_floats);
      kernel->forward(task);
      task.outputs.assign(1, TensorView());
      task.output_grads = gradient.views(of_floats);
      task.input_grads = grads.views(of_floats);
      task.adds_input_grad.assign(3, before != 0);
      kernel->backward(task);
    }
    CHECK(relative_error(output, 0) < 2e-2);
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(relative_error(grads, i) < 2e-2);
    }
  }
}

}  // namespace

TEST_CASE("multi_head_attention: narrow tiles that a fused kernel takes") {
  unsigned seed = 1;
  for (const DataType type : {DataType::bfloat16, DataType::float16}) {
    const bool by_onednn = !of_gpus();  // which refuses some products
    if (by_onednn && type == DataType::bfloat16 && !has_bfloat16()) continue;
    CAPTURE(type == DataType::float16);
    for (const bool causal : {false, true}) {
      check({2, 64, 64, 4, 4, 64, causal}, type, seed++);
      check({2, 100, 100, 4, 2, 64, causal}, type, seed++);
      check({2, 64, 100, 4, 4, 64, causal}, type, seed++);
      check({1, 100, 37, 4, 1, 128, causal}, type, seed++);
      check({1, 2, 5, 2, 2, 8, causal}, type, seed++);
    }
  }
}

}  // namespace flexlegion::testing
