#include "ops_harness.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <list>
#include <stdexcept>

namespace flexlegion::testing {

Tensor Tensor::random(const Shape& shape, unsigned seed) {
  Tensor t(shape);
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  for (float& x : t.data) x = values(rng);
  return t;
}

TensorView Tensor::view(const Rect& tile) {
  std::array<std::int64_t, kMaxRegionRank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  TensorView v = dense_view(data.data(), whole(), extents);
  v.tile = tile;
  std::int64_t offset = 0;
  for (int d = 0; d < tile.rank; ++d) offset += tile.lo[d] * v.stride[d];
  v.data = data.data() + offset;
  return v;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  if (a.shape != b.shape) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a.data[i]) - b.data[i]) /
                              (1.0 + std::abs(static_cast<double>(b.data[i])));
    if (!(difference <= worst)) worst = difference;  // NaN stays
    if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

DeviceKind tested_kind() {
#ifdef FLEXLEGION_CUDA_TESTS
  return DeviceKind::gpu;
#else
  const char* name = std::getenv("FLEXLEGION_TEST_KERNELS");
  return name && std::string(name) == "gpu" ? DeviceKind::gpu : DeviceKind::cpu;
#endif
}

namespace {

class TestedKernel : public Kernel {
 public:
  explicit TestedKernel(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
  void forward(KernelTask& task) override {
    on_device([&] { kernel_->forward(task); });
  }
  void backward(KernelTask& task) override {
    on_device([&] { kernel_->backward(task); });
  }
  bool accumulates() const override { return kernel_->accumulates(); }
  bool takes(DataType type) const override { return kernel_->takes(type); }

 private:
  std::unique_ptr<Kernel> kernel_;
};

class TestedUpdateKernel : public UpdateKernel {
 public:
  explicit TestedUpdateKernel(std::unique_ptr<UpdateKernel> kernel) : kernel_(std::move(kernel)) {}
  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* only_if_finite) override {
    on_device([&] { kernel_->update(value, gradient, states, run, only_if_finite); });
  }
  bool lazy() const override { return kernel_->lazy(); }

 private:
  std::unique_ptr<UpdateKernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const std::string& type, const Attributes& attributes, Tested) {
  return std::make_unique<TestedKernel>(flexlegion::make_kernel(type, attributes, tested_kind()));
}
std::unique_ptr<UpdateKernel> make_update_kernel(const std::string& optimizer,
                                                 const Attributes& attributes, Tested) {
  return std::make_unique<TestedUpdateKernel>(
      flexlegion::make_update_kernel(optimizer, attributes, tested_kind()));
}

void GradientTiles::fill(float value) const {
  for (const TensorView& view : views) {
    zero_view(view);
    std::vector<float> values(static_cast<std::size_t>(view.volume()), value);
    add_view(view, dense_view(values.data(), view.tile, view.shape));
  }
}

void GradientTiles::add_to(std::vector<Tensor>& sums) const {
  for (std::size_t i = 0; i < views.size(); ++i) add_view(sums[i].view(views[i].tile), views[i]);
}

void check_adds(Kernel& kernel, KernelTask task, const GradientTiles& input_grads,
                const GradientTiles& weight_grads) {
  if (!kernel.accumulates()) return;
  GradientTiles inputs = input_grads, weights = weight_grads;
  for (GradientTiles* tiles : {&inputs, &weights}) {
    for (std::size_t i = 0; i < tiles->views.size(); ++i) {
      tiles->views[i] = tiles->tensors[i].view(tiles->views[i].tile);
    }
    tiles->fill(1);
  }
  task.input_grads = inputs.views;
  task.weight_grads = weights.views;
  task.adds_input_grad.assign(inputs.views.size(), true);
  task.adds_weight_grad.assign(weights.views.size(), true);
  kernel.backward(task);
  const auto compare = [](const GradientTiles& added, const GradientTiles& written) {
    for (std::size_t i = 0; i < added.views.size(); ++i) {
      Tensor sum(written.tensors[i].shape), expected(written.tensors[i].shape);
      GradientTiles ones({expected}, [&](int) { return added.views[i].tile; });
      ones.fill(1);
      const Rect& tile = added.views[i].tile;
      add_view(sum.view(tile), added.views[i]);
      add_view(expected.view(tile), ones.views[0]);
      add_view(expected.view(tile), written.views[i]);
      if (!(largest_difference(sum, expected) < kTolerance)) {
        throw std::logic_error("a gradient that is added differs from one that is written");
      }
    }
  };
  compare(inputs, input_grads);
  compare(weights, weight_grads);
}

namespace {

// Tiles of their own. Those that are narrow are of that type, or floats of the same values.
class Stored {
 public:
  Stored(const std::vector<TensorView>& views, const std::function<bool(int)>& narrow, DataType as,
         bool as_floats) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      const TensorView& from = views[i];
      const bool rounds = narrow(static_cast<int>(i));
      const DataType type = rounds && !as_floats ? as : from.type;
      buffers_.emplace_back(static_cast<std::size_t>(from.present() ? from.volume() : 0), 0.0f);
      TensorView to;
      to.shape = from.shape;
      if (from.present()) to = dense_view(buffers_.back().data(), from.tile, from.shape, type);
      if (from.present() && rounds) {
        std::vector<Narrow> rounded(buffers_.back().size());
        const TensorView half = dense_view(rounded.data(), from.tile, from.shape, as);
        copy_view(half, from);
        copy_view(to, half);
      } else if (from.present()) {
        copy_view(to, from);
      }
      this->views.push_back(to);
    }
  }
  std::vector<TensorView> views;

 private:
  std::list<Array<float>> buffers_;
};

// A kernel that takes a narrow type computes with it what it computes with floats of the same
// values.
void check_narrow(DataType type, Kernel& kernel, const Case& c, const KernelTask& forward,
                  const KernelTask& backward) {
  if (!kernel.takes(type)) return;
  const auto output = [&c](int) { return c.narrow_output; };
  const auto none = [](int) { return false; };
  const auto all = [](int) { return true; };
  std::vector<std::vector<TensorView>> results[2];
  std::list<Stored> kept;
  const auto stored = [&kept, type](const auto& views, const auto& narrow, bool as_floats) {
    return kept.emplace_back(views, narrow, type, as_floats).views;
  };
  for (const bool as_floats : {true, false}) {
    KernelTask task = forward;
    task.inputs = stored(forward.inputs, c.narrow_input, as_floats);
    // Those that are factors are rounded in any case.
    task.weights = stored(forward.weights, all, true);
    task.outputs = stored(forward.outputs, output, as_floats);
    kernel.forward(task);
    results[as_floats ? 0 : 1].push_back(task.outputs);
    const auto saved = [](const auto& views, const auto& wanted) {
      std::vector<TensorView> present = views;
      for (std::size_t i = 0; i < present.size(); ++i) {
        if (!wanted[i].present()) present[i] = wanted[i];
      }
      return present;
    };
    KernelTask back = backward;
    back.inputs = saved(task.inputs, backward.inputs);
    back.weights = task.weights;
    // What the backward pass reads was rounded when it was stored. Both read the same: a ReLU's
    // result next to zero can be on either side.
    const std::vector<TensorView>& outputs = results[0].front();
    back.outputs = saved(stored(outputs, output, as_floats), backward.outputs);
    back.output_grads = stored(backward.output_grads, output, as_floats);
    back.input_grads = stored(backward.input_grads, c.narrow_input, as_floats);
    back.weight_grads = stored(backward.weight_grads, none, as_floats);
    kernel.backward(back);
    results[as_floats ? 0 : 1].push_back(back.input_grads);
    results[as_floats ? 0 : 1].push_back(back.weight_grads);
  }
  // By the norm of all outputs, or gradients, together: one that is a sum of terms that cancel is
  // off by what the terms are.
  const char* const what[] = {"outputs are", "gradients of inputs are", "gradients of weights are"};
  for (std::size_t list = 0; list < 3; ++list) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < results[0][list].size(); ++i) {
      const TensorView &floats = results[0][list][i], &rounded = results[1][list][i];
      if (!floats.present() || floats.tile.empty()) continue;
      const DenseInput a(floats, 900), b(rounded, 901);
      for (std::int64_t k = 0; k < floats.volume(); ++k) {
        if (std::isnan(a.data()[k]) && std::isnan(b.data()[k])) continue;  // which is alike
        difference += std::pow(static_cast<double>(a.data()[k]) - b.data()[k], 2);
        size += std::pow(static_cast<double>(a.data()[k]), 2);
      }
    }
    if (!(difference <= 4e-4 * size + 1e-12)) {
      throw std::logic_error(
          std::string(type == DataType::float16 ? "with float16, " : "with bfloat16, ") +
          what[list] + " off by " + std::to_string(std::sqrt(difference / size)));
    }
  }
}

// The inputs up to the last one that has a gradient: the others come behind them.
std::vector<Tensor> with_gradients(const Case& c) {
  std::size_t count = c.inputs.size();
  while (count > 0 && !c.wants_input_grad(static_cast<int>(count - 1))) --count;
  return {c.inputs.begin(), c.inputs.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

Results run_tiles(Case& c, const std::vector<Rect>& tiles, Tensor output_grad) {
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  Results results{Tensor(c.output_shape, kNan), {}, {}};
  for (const Tensor& t : c.inputs) results.input_grads.emplace_back(t.shape);
  for (const Tensor& t : c.weights) results.weight_grads.emplace_back(t.shape);
  for (const Rect& tile : tiles) {
    const auto views = [&](std::vector<Tensor>& tensors, const auto& tile_of) {
      std::vector<TensorView> result;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        result.push_back(tensors[i].view(tile_of(tile, static_cast<int>(i))));
      }
      return result;
    };
    KernelTask forward;
    forward.run = c.run;
    forward.inputs = views(c.inputs, c.input_tile);
    forward.weights = views(c.weights, c.weight_tile);
    forward.outputs = {results.output.view(tile)};
    kernel->forward(forward);

    const auto input_tile = [&](int i) { return c.input_tile(tile, i); };
    const auto weight_tile = [&](int i) { return c.weight_tile(tile, i); };
    const GradientTiles input_grads(with_gradients(c), input_tile),
        weight_grads(c.trains_weights ? c.weights : std::vector<Tensor>(), weight_tile);
    KernelTask backward = forward;
    if (!c.reads_input) backward.inputs.assign(c.inputs.size(), TensorView());
    if (!c.reads_output) backward.outputs.assign(1, TensorView());
    backward.output_grads = {output_grad.view(tile)};
    backward.input_grads = input_grads.views;
    backward.weight_grads = weight_grads.views;
    kernel->backward(backward);
    check_adds(*kernel, backward, input_grads, weight_grads);
    for (const DataType type : {DataType::bfloat16, DataType::float16}) {
      if (type == DataType::bfloat16 && !has_bfloat16()) continue;  // oneDNN refuses its products
      check_narrow(type, *kernel, c, forward, backward);
    }
    input_grads.add_to(results.input_grads);
    weight_grads.add_to(results.weight_grads);
  }
  return results;
}

std::vector<std::pair<std::int64_t, std::int64_t>> random_pieces(std::int64_t extent, int parts,
                                                                 std::mt19937& rng) {
  std::vector<std::int64_t> cuts{0, extent};
  for (int i = 1; i < parts; ++i) {
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, extent)(rng));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] > cuts[i - 1]) pieces.emplace_back(cuts[i - 1], cuts[i]);
  }
  return pieces;
}

std::vector<Rect> random_tiles(const Shape& shape, const std::vector<int>& parts, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<Rect> tiles{Rect::of_shape(shape)};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<Rect> finer;
    for (const auto& [lo, hi] : random_pieces(shape[d], parts[d], rng)) {
      for (Rect tile : tiles) {
        tile.lo[d] = lo;
        tile.hi[d] = hi;
        finer.push_back(tile);
      }
    }
    tiles = finer;
  }
  return tiles;
}

}  // namespace flexlegion::testing
