// Runs a kernel over a tensor cut into tiles, as the runtime would, and gives back the whole output
// and the sums of the gradient contributions, to be compared with a reference over whole tensors.
// The functions are in ops_harness.cc: twenty tests use them, and each would compile them again.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "ops/device_functions.h"
#include "ops/kernel.h"

namespace flexlegion::testing {

using Shape = std::vector<std::int64_t>;

using Entries = std::vector<std::pair<std::string, std::string>>;

struct Tensor {
  Shape shape;
  Array<float> data;

  explicit Tensor(Shape s, float fill = 0) : shape(std::move(s)) {
    data.assign(static_cast<std::size_t>(Rect::of_shape(shape).volume()), fill);
  }
  static Tensor random(const Shape& shape, unsigned seed);
  Rect whole() const { return Rect::of_shape(shape); }
  // A strided window into this tensor.
  TensorView view(const Rect& tile);
  template <typename... Index>
  float& at(Index... index) {
    std::size_t offset = 0, d = 0;
    ((offset = offset * static_cast<std::size_t>(shape[d++]) + static_cast<std::size_t>(index)),
     ...);
    return data.at(offset);
  }
};

double largest_difference(const Tensor& a, const Tensor& b);

constexpr double kTolerance = 2e-5;

// The kernels that are tested, by these very tests: those of CPUs, or those of GPUs where the
// environment says FLEXLEGION_TEST_KERNELS=gpu, and on a real GPU.
DeviceKind tested_kind();
inline bool of_gpus() { return tested_kind() == DeviceKind::gpu; }

struct Tested {
  operator DeviceKind() const { return tested_kind(); }
};
constexpr Tested kTested{};

// Of the tested kind, instead of ops/kernel.h's functions of these names: kernels whose calls
// return when their results are there.
std::unique_ptr<Kernel> make_kernel(const std::string& type, const Attributes& attributes, Tested);
std::unique_ptr<UpdateKernel> make_update_kernel(const std::string& optimizer,
                                                 const Attributes& attributes, Tested);

// A kernel of `type` and what its operator says of it.
struct Case {
  std::string type;
  Entries attributes;
  std::vector<Tensor> inputs, weights;
  Shape output_shape;
  std::function<Rect(const Rect&output_tile, int operand)> input_tile, weight_tile;
  bool reads_input = false, reads_output = false;
  RunState run{};
  bool trains_weights = true;  // or else they are the operator's state, without gradients
  // Inputs without gradients, such as numbers of elements; none unless it says so.
  std::function<bool(int input)> wants_input_grad = [](int) { return true; };
  // Inputs, and whether outputs, that are stored as bfloat16 where activations are.
  std::function<bool(int input)> narrow_input = [](int) { return true; };
  bool narrow_output = true;
};

struct Results {
  Tensor output;
  std::vector<Tensor> input_grads, weight_grads;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The gradient tiles of one task: in tensors full of NaN, so that what is not written shows.
struct GradientTiles {
  std::vector<Tensor> tensors;
  std::vector<TensorView> views;

  template <typename TileOf>
  GradientTiles(const std::vector<Tensor>& operands, TileOf&& tile_of, float fill = kNan) {
    tensors.reserve(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      tensors.emplace_back(operands[i].shape, fill);
      views.push_back(tensors.back().view(tile_of(static_cast<int>(i))));
    }
  }
  void fill(float value) const;
  void add_to(std::vector<Tensor>& sums) const;
};

// A kernel that accumulates adds the same gradients to ones.
void check_adds(Kernel& kernel, KernelTask task, const GradientTiles& input_grads,
                const GradientTiles& weight_grads);

Results run_tiles(Case& c, const std::vector<Rect>& tiles, Tensor output_grad);

// Cuts [0, extent) at random into at most `parts` pieces.
std::vector<std::pair<std::int64_t, std::int64_t>> random_pieces(std::int64_t extent, int parts,
                                                                 std::mt19937& rng);

// Cuts a tensor into uneven tiles: at most parts[d] along dimension d.
std::vector<Rect> random_tiles(const Shape& shape, const std::vector<int>& parts, unsigned seed);

}  // namespace flexlegion::testing
