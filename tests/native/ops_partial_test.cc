// Tiles of what an operator reduces: partial values, how they are combined, and whole gradients of
// each part's share.
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "ops/partial_values.h"
#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

const DeviceFunctions& device() { return *device_functions(kTested); }

// A case whose space has, after the output's dimensions, some that are reduced. Tiles are of the
// space; an operand of which a tile has an empty part is absent.
struct Reduced : Case {
  Shape reductions;
  bool takes_maximum = false;

  Rect space() const {
    Shape whole = output_shape;
    whole.insert(whole.end(), reductions.begin(), reductions.end());
    return Rect::of_shape(whole);
  }
  Rect output_tile(const Rect& tile) const {
    Rect r = Rect::of_shape(output_shape);
    std::copy_n(tile.lo.begin(), r.rank, r.lo.begin());
    std::copy_n(tile.hi.begin(), r.rank, r.hi.begin());
    return r;
  }
};

// Numbers parts of reductions in the order of their ranges.
std::map<Rect, std::int64_t> slots_of(const Reduced& c, const std::vector<Rect>& tiles) {
  std::map<Rect, std::int64_t> slots;
  for (Rect tile : tiles) {
    for (std::size_t d = 0; d < c.output_shape.size(); ++d) tile.lo[d] = tile.hi[d] = 0;
    slots.emplace(tile, 0);
  }
  std::int64_t next = 0;
  for (auto& [range, slot] : slots) slot = next++;
  return slots;
}

// All tasks forward, each into its slot; then all backward, as the runtime would run them.
Results run_parts(Reduced& c, const std::vector<Rect>& tiles, Tensor output_grad) {
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  const std::map<Rect, std::int64_t> slots = slots_of(c, tiles);
  const auto parts = static_cast<std::int64_t>(slots.size());
  Shape stacked = c.output_shape;
  stacked.insert(stacked.begin(), parts);
  Tensor stack(stacked, kNan);
  Results results{Tensor(c.output_shape, kNan), {}, {}};
  for (const Tensor& t : c.inputs) results.input_grads.emplace_back(t.shape);
  for (const Tensor& t : c.weights) results.weight_grads.emplace_back(t.shape);
  const auto views = [](std::vector<Tensor>& tensors, const auto& tile_of) {
    std::vector<TensorView> result;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Rect tile = tile_of(static_cast<int>(i));
      result.push_back(tile.empty() ? TensorView() : tensors[i].view(tile));
    }
    return result;
  };
  std::vector<KernelTask> tasks;
  std::vector<std::int64_t> slot_of_task;
  for (const Rect& tile : tiles) {
    Rect range = tile;
    for (std::size_t d = 0; d < c.output_shape.size(); ++d) range.lo[d] = range.hi[d] = 0;
    const std::int64_t slot = slots.at(range);
    KernelTask task;
    task.inputs = views(c.inputs, [&](int i) { return c.input_tile(tile, i); });
    task.weights = views(c.weights, [&](int i) { return c.weight_tile(tile, i); });
    task.outputs = {slot_of(stack.view(c.output_tile(tile).in_slots(slot, slot + 1)), slot)};
    kernel->forward(task);
    tasks.push_back(std::move(task));
    slot_of_task.push_back(slot);
  }
  on_device([&] {
    combine(stack.view(stack.whole()), c.takes_maximum ? device().max : device().add,
            results.output.view(results.output.whole()), device());
  });
  for (std::size_t k = 0; k < tiles.size(); ++k) {
    const Rect& tile = tiles[k];
    const Rect output = c.output_tile(tile);
    KernelTask& task = tasks[k];
    const auto input_tile = [&](int i) { return c.input_tile(tile, i); };
    const auto weight_tile = [&](int i) { return c.weight_tile(tile, i); };
    const GradientTiles input_grads(c.inputs, input_tile), weight_grads(c.weights, weight_tile);
    if (!c.reads_input) task.inputs.assign(c.inputs.size(), TensorView());
    task.outputs[0] = c.reads_output ? results.output.view(output) : TensorView();
    task.output_grads = {output_grad.view(output)};
    if (c.takes_maximum) {
      on_device([&] {
        task.output_grads[0] =
            gradient_of_first(task.output_grads[0], stack.view(output.in_slots(0, parts)),
                              slot_of_task[k], 2000, device());
      });
    }
    task.input_grads = input_grads.views;
    task.weight_grads = weight_grads.views;
    for (TensorView& view : task.weight_grads) {
      if (view.tile.empty()) view.data = nullptr;
    }
    kernel->backward(task);
    input_grads.add_to(results.input_grads);
    weight_grads.add_to(results.weight_grads);
  }
  return results;
}

// However it is cut, the same output and gradients.
void check(Reduced& c, const std::vector<int>& degrees) {
  const Tensor dy = Tensor::random(c.output_shape, 7);
  const Results whole = run_parts(c, {c.space()}, dy);
  Shape space = c.output_shape;
  space.insert(space.end(), c.reductions.begin(), c.reductions.end());
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Results results = run_parts(c, random_tiles(space, degrees, seed), dy);
    CHECK(largest_difference(results.output, whole.output) < kTolerance);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      CHECK(largest_difference(results.input_grads[i], whole.input_grads[i]) < kTolerance);
    }
    for (std::size_t i = 0; i < c.weights.size(); ++i) {
      CHECK(largest_difference(results.weight_grads[i], whole.weight_grads[i]) < kTolerance);
    }
  }
}

// The range of dimension `from` of a tile, as dimension `to` of an operand's.
void take(Rect& operand, int to, const Rect& tile, int from) {
  operand.lo[static_cast<std::size_t>(to)] = tile.lo[static_cast<std::size_t>(from)];
  operand.hi[static_cast<std::size_t>(to)] = tile.hi[static_cast<std::size_t>(from)];
}

// A bias is added to the first partial value only.
void take_bias(Rect& bias, const Rect& tile, int channel, int reduced) {
  take(bias, 0, tile, channel);
  if (tile.lo[static_cast<std::size_t>(reduced)] > 0) bias.hi[0] = bias.lo[0];
}

// What a tile reads of a kernel of that shape (first a channel of the output, last what is
// reduced), and of the bias; `channel` and `reduced` are dimensions of the space.
std::function<Rect(const Rect&, int)> kernel_and_bias(const Shape& kernel, int channel,
                                                      int reduced) {
  return [=](const Rect& tile, int i) {
    Rect r = Rect::of_shape(i == 0 ? kernel : Shape{kernel.front()});
    if (i == 1) {
      take_bias(r, tile, channel, reduced);
      return r;
    }
    take(r, 0, tile, channel);
    take(r, r.rank - 1, tile, reduced);
    return r;
  };
}

}  // namespace

TEST_CASE("partial values: a dense layer by its inputs") {
  for (bool use_bias : {true, false}) {
    Reduced c;
    c.type = "dense";
    c.attributes = {{"activation", "none"}, {"use_bias", use_bias ? "1" : "0"}};
    c.inputs = {Tensor::random({5, 4, 13}, 1)};
    c.weights = {Tensor::random({7, 13}, 2)};
    if (use_bias) c.weights.push_back(Tensor::random({7}, 3));
    c.output_shape = {5, 4, 7};
    c.reductions = {13};
    c.reads_input = true;
    c.input_tile = [](const Rect& tile, int) {
      Rect r = Rect::of_shape({5, 4, 13});
      for (int d : {0, 1}) take(r, d, tile, d);
      take(r, 2, tile, 3);
      return r;
    };
    c.weight_tile = kernel_and_bias({7, 13}, 2, 3);
    check(c, {1, 1, 1, 3});
    check(c, {2, 2, 2, 4});
  }
}

TEST_CASE("partial values: a convolution by its input channels") {
  for (bool use_bias : {true, false}) {
    Reduced c;
    c.type = "conv2d";
    c.attributes = {{"filters", "6"},      {"kernel_h", "3"}, {"kernel_w", "3"},
                    {"stride_h", "1"},     {"stride_w", "1"}, {"padding_h", "1"},
                    {"padding_w", "1"},    {"groups", "1"},   {"use_bias", use_bias ? "1" : "0"},
                    {"activation", "none"}};
    c.inputs = {Tensor::random({3, 8, 7, 9}, 1)};
    c.weights = {Tensor::random({6, 3, 3, 9}, 2)};
    if (use_bias) c.weights.push_back(Tensor::random({6}, 3));
    c.output_shape = {3, 8, 7, 6};
    c.reductions = {9};
    c.reads_input = true;
    c.input_tile = [](const Rect& tile, int) {
      Rect r = Rect::of_shape({3, 8, 7, 9});
      take(r, 0, tile, 0);
      for (int d : {1, 2}) {
        const auto at = static_cast<std::size_t>(d);
        r.lo[at] = std::max<std::int64_t>(0, tile.lo[at] - 1);
        r.hi[at] = std::min(r.hi[at], tile.hi[at] + 1);
      }
      take(r, 3, tile, 4);
      return r;
    };
    c.weight_tile = kernel_and_bias({6, 3, 3, 9}, 3, 4);
    check(c, {1, 1, 1, 1, 3});
    check(c, {2, 2, 1, 2, 3});
  }
}

TEST_CASE("partial values: a product of matrices by its inner dimension") {
  Reduced c;
  c.type = "matmul";
  c.inputs = {Tensor::random({3, 2, 5, 11}, 1), Tensor::random({3, 2, 11, 4}, 2)};
  c.output_shape = {3, 2, 5, 4};
  c.reductions = {11};
  c.reads_input = true;
  c.input_tile = [](const Rect& tile, int i) {
    Rect r = i == 0 ? Rect::of_shape({3, 2, 5, 11}) : Rect::of_shape({3, 2, 11, 4});
    for (int d : {0, 1}) take(r, d, tile, d);
    take(r, 2, tile, i == 0 ? 2 : 4);
    take(r, 3, tile, i == 0 ? 4 : 3);
    return r;
  };
  check(c, {1, 1, 1, 1, 3});
  check(c, {2, 2, 2, 2, 3});
}

TEST_CASE("partial values: sums, means and maxima") {
  // Over dimensions 1 and 3 of (3, 4, 5, 6). A maximum can be split along the first of them alone;
  // few different values, so that maxima are not alone.
  for (const char* kind : {"sum", "mean", "max"}) {
    for (bool keeps_dims : {false, true}) {
      const bool maximum = std::string(kind) == "max";
      Reduced c;
      c.type = "reduce";
      c.attributes = {{"kind", kind}, {"axes", "1,3"}, {"keepdims", keeps_dims ? "1" : "0"}};
      c.inputs = {Tensor::random({3, 4, 5, 6}, 1)};
      if (maximum) {
        for (float& v : c.inputs[0].data) v = std::floor(v * 3);
      }
      c.output_shape = keeps_dims ? Shape{3, 1, 5, 1} : Shape{3, 5};
      c.reductions = {4, 6};
      c.takes_maximum = c.reads_input = c.reads_output = maximum;
      c.input_tile = [keeps_dims](const Rect& tile, int) {
        Rect r = Rect::of_shape({3, 4, 5, 6});
        const int first = keeps_dims ? 4 : 2;
        take(r, 0, tile, 0);
        take(r, 1, tile, first);
        take(r, 2, tile, keeps_dims ? 2 : 1);
        take(r, 3, tile, first + 1);
        return r;
      };
      std::vector<int> degrees(c.output_shape.size(), 2);
      degrees.push_back(4);
      degrees.push_back(maximum ? 1 : 2);
      check(c, degrees);
    }
  }
}

TEST_CASE("partial values: maxima and logarithms of sums of exponentials") {
  const float infinity = std::numeric_limits<float>::infinity();
  Tensor a({2, 4}), b({2, 4});
  a.data = {1, -infinity, -infinity, 80, 0, 3, kNan, -2};
  b.data = {1, 2, -infinity, -80, 100, infinity, 1, -3};
  Tensor most = a, sum = a, kept({2, 4}, 1.0f);
  on_device([&] {
    device().max(most.view(most.whole()), b.view(b.whole()));
    device().log_add_exp(sum.view(sum.whole()), b.view(b.whole()));
    device().zero_where_equal(kept.view(kept.whole()), a.view(a.whole()), b.view(b.whole()));
  });
  for (std::size_t i = 0; i < 8; ++i) {
    const float x = a.data[i], y = b.data[i];
    if (std::isnan(x)) {
      CHECK(std::isnan(most.data[i]));
      CHECK(std::isnan(sum.data[i]));
      continue;
    }
    CHECK(most.data[i] == std::max(x, y));
    const double exact = std::isinf(x) || std::isinf(y)
                             ? std::max(x, y)
                             : std::max(x, y) + std::log1p(std::exp(-std::abs(x - y)));
    CHECK((sum.data[i] == exact || std::abs(sum.data[i] - exact) < 1e-5));
    CHECK(kept.data[i] == (x == y ? 0.0f : 1.0f));
  }
}

}  // namespace flexlegion::testing
