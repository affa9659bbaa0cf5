// Operators that move or join elements, and windows over sequences.
#include <doctest/doctest.h>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

using Permutation = std::vector<std::size_t>;

Rect same_tile(const Rect& out, int) { return out; }

std::vector<int> two_or_three_parts(const Shape& shape) {
  std::vector<int> parts;
  for (std::size_t d = 0; d < shape.size(); ++d) parts.push_back(d % 2 == 0 ? 2 : 3);
  return parts;
}

// Of outputs that take each element of the input once, at `from(output index)`.
template <typename From>
void check_move(Case c, From&& from) {
  Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, 4), dx(c.inputs[0].shape);
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = c.inputs[0].data[from(i)];
    dx.data[from(i)] = dy.data[i];
  }
  for (unsigned seed = 0; seed < 6; ++seed) {
    const auto tiles = random_tiles(c.output_shape, two_or_three_parts(c.output_shape), seed);
    const Results tiled = run_tiles(c, tiles, dy);
    CHECK(tiled.output.data == y.data);
    CHECK(tiled.input_grads[0].data == dx.data);
  }
}

TEST_CASE("transpose: tiles of any cut, any order of the dimensions") {
  const std::pair<Shape, Permutation> cases[] = {
      {{3, 20, 35}, {0, 2, 1}},           {{2, 5, 7, 9}, {0, 2, 1, 3}},
      {{2, 5, 7, 19}, {0, 3, 1, 2}},      {{2, 5, 1, 19}, {0, 3, 2, 1}},
      {{2, 3, 4, 5, 6}, {0, 4, 2, 1, 3}}, {{4, 5, 6}, {0, 1, 2}},
  };
  for (const auto& [shape, order] : cases) {
    const Permutation permutation = order;
    Case c;
    c.type = "transpose";
    c.inputs = {Tensor::random(shape, 3)};
    std::string list;
    for (const std::size_t d : permutation) {
      list += (list.empty() ? "" : ",") + std::to_string(d);
      c.output_shape.push_back(shape[d]);
    }
    c.attributes = {{"permutation", list}};
    c.input_tile = [=](const Rect& out, int) {
      Rect in = out;
      for (std::size_t d = 0; d < permutation.size(); ++d) {
        in.lo[permutation[d]] = out.lo[d];
        in.hi[permutation[d]] = out.hi[d];
      }
      return in;
    };
    check_move(c, [&](std::size_t i) {
      std::vector<std::size_t> index(shape.size());
      for (std::size_t d = shape.size(); d-- > 0;) {
        const auto extent = static_cast<std::size_t>(c.output_shape[d]);
        index[permutation[d]] = i % extent;
        i /= extent;
      }
      std::size_t at = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        at = at * static_cast<std::size_t>(shape[d]) + index[d];
      }
      return at;
    });
  }
}

TEST_CASE("rearrange: axes of dimensions in another order") {
  struct Move {
    Shape input;             // without samples
    std::vector<int> axes;   // that it is cut into
    std::vector<int> order;  // of these in the output
    Shape output;
    std::vector<int> parts;  // that tiles are cut into: of samples, and of what can be split
    std::vector<std::array<int, 3>> split;  // dimensions of output and input, elements a step
  };
  const Move moves[] = {
      {{6, 10, 5}, {3, 2, 2, 5, 5}, {0, 2, 1, 3, 4}, {6, 10, 5}, {2, 1, 1, 2}, {{3, 3, 1}}},
      {{4, 3, 6}, {2, 2, 3, 6}, {0, 2, 3, 1}, {2, 3, 12}, {2, 2, 3, 1}, {{1, 1, 2}, {2, 2, 1}}},
      {{4, 3, 6}, {2, 2, 3, 6}, {3, 1, 0, 2}, {6, 2, 6}, {3, 2, 1, 1}, {{1, 3, 1}}},
      {{4, 1, 35}, {4, 5, 7}, {0, 2, 1}, {4, 35, 1}, {1, 4, 1, 1}, {{1, 1, 1}}},
      // more axes than views have dimensions
      {{8, 8, 8}, {2, 2, 2, 2, 2, 2, 2, 2, 2}, {3, 0, 6, 4, 1, 7, 5, 2, 8}, {64, 8}, {2, 1, 1}, {}},
  };
  const auto text = [](const std::vector<int>& list) {
    std::string joined;
    for (int x : list) joined += (joined.empty() ? "" : ",") + std::to_string(x);
    return joined;
  };
  for (const Move& move : moves) {
    Case c;
    c.type = "rearrange";
    c.attributes = {{"extents", text(move.axes)}, {"order", text(move.order)}};
    Shape input{3}, output{3};
    input.insert(input.end(), move.input.begin(), move.input.end());
    output.insert(output.end(), move.output.begin(), move.output.end());
    c.inputs = {Tensor::random(input, 3)};
    c.output_shape = output;
    c.input_tile = [&](const Rect& out, int) {
      Rect in = Rect::of_shape(input);
      in.lo[0] = out.lo[0];
      in.hi[0] = out.hi[0];
      for (const auto& [to, from, step] : move.split) {
        in.lo[from] = out.lo[to] * step;
        in.hi[from] = out.hi[to] * step;
      }
      return in;
    };
    Tensor y(output), dy = Tensor::random(output, 4), dx(input);
    const std::size_t axes = move.axes.size(), elements = y.data.size() / 3;
    for (std::size_t i = 0; i < y.data.size(); ++i) {
      std::size_t rest = i % elements, inner = 1, from = 0;
      std::vector<std::size_t> at(axes);
      for (std::size_t a = axes; a-- > 0;) {
        const auto axis = static_cast<std::size_t>(move.order[a]);
        const auto extent = static_cast<std::size_t>(move.axes[axis]);
        at[axis] = rest % extent;
        rest /= extent;
      }
      for (std::size_t a = axes; a-- > 0; inner *= static_cast<std::size_t>(move.axes[a])) {
        from += at[a] * inner;
      }
      from += i / elements * elements;
      y.data[i] = c.inputs[0].data[from];
      dx.data[from] = dy.data[i];
    }
    for (unsigned seed = 0; seed < 4; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(output, move.parts, seed), dy);
      CHECK(tiled.output.data == y.data);
      CHECK(tiled.input_grads[0].data == dx.data);
    }
  }
}

TEST_CASE("slice: tiles of any cut") {
  Case c;
  c.type = "slice";
  c.attributes = {{"axis", "1"}, {"start", "2"}, {"size", "4"}};
  c.inputs = {Tensor::random({3, 9, 5}, 3)};
  c.output_shape = {3, 4, 5};
  c.input_tile = [](Rect tile, int) {
    tile.lo[1] += 2;
    tile.hi[1] += 2;
    return tile;
  };
  check_move(c, [](std::size_t i) { return i / 20 * 45 + i % 20 + 10; });
}

TEST_CASE("reshape: joined and cut dimensions, tiles larger than what they give") {
  // (4, 6) -> (3, 8) in the middle: rows of 8 lie in up to three rows of 6, which tasks share.
  Case c;
  c.type = "reshape";
  c.inputs = {Tensor::random({2, 4, 6, 5}, 3)};
  c.output_shape = {2, 3, 8, 1, 5};
  c.input_tile = [](const Rect& out, int) {
    Rect in = Rect::of_shape({2, 4, 6, 5});
    in.lo[0] = out.lo[0];
    in.hi[0] = out.hi[0];
    in.lo[1] = out.lo[1] * 8 / 6;
    in.hi[1] = (out.hi[1] * 8 + 5) / 6;
    in.lo[3] = out.lo[4];
    in.hi[3] = out.hi[4];
    return in;
  };
  Tensor dy = Tensor::random(c.output_shape, 4);
  for (unsigned seed = 0; seed < 8; ++seed) {
    const Results tiled = run_tiles(c, random_tiles(c.output_shape, {2, 3, 1, 1, 3}, seed), dy);
    CHECK(tiled.output.data == c.inputs[0].data);
    CHECK(tiled.input_grads[0].data == dy.data);
  }
}

TEST_CASE("add and multiply") {
  for (const bool product : {false, true}) {
    Case c;
    c.type = product ? "multiply" : "add";
    const Shape shape{4, 5, 37};
    for (unsigned i = 0; i < (product ? 2u : 3u); ++i) c.inputs.push_back(Tensor::random(shape, i));
    c.output_shape = shape;
    c.input_tile = same_tile;
    c.reads_input = product;
    Tensor y(shape), dy = Tensor::random(shape, 6), da(shape), db(shape);
    for (std::size_t i = 0; i < y.data.size(); ++i) {
      const float a = c.inputs[0].data[i], b = c.inputs[1].data[i];
      y.data[i] = product ? a * b : a + b + c.inputs[2].data[i];
      da.data[i] = product ? b * dy.data[i] : dy.data[i];
      db.data[i] = product ? a * dy.data[i] : dy.data[i];
    }
    for (unsigned seed = 0; seed < 6; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(shape, {2, 2, 3}, seed), dy);
      CHECK(largest_difference(tiled.output, y) < kTolerance);
      CHECK(largest_difference(tiled.input_grads[0], da) < kTolerance);
      CHECK(largest_difference(tiled.input_grads[1], db) < kTolerance);
    }
  }
}

TEST_CASE("concat: along any dimension, inputs that fall out of the tile, absent gradients") {
  for (const std::size_t axis : {1u, 2u}) {
    Case c;
    c.type = "concat";
    c.attributes = {{"axis", std::to_string(axis)}};
    Shape shape{3, 5, 4};
    std::vector<std::int64_t> offsets;
    std::int64_t extent = 0;
    for (const std::int64_t part : {3, 1, 5}) {
      shape[axis] = part;
      c.inputs.push_back(Tensor::random(shape, static_cast<unsigned>(part)));
      offsets.push_back(extent);
      extent += part;
    }
    shape[axis] = extent;
    c.output_shape = shape;
    c.input_tile = [&](Rect tile, int i) {
      const std::size_t input = static_cast<std::size_t>(i);
      const std::int64_t part = c.inputs[input].shape[axis], offset = offsets[input];
      tile.lo[axis] = std::clamp<std::int64_t>(tile.lo[axis] - offset, 0, part);
      tile.hi[axis] = std::clamp<std::int64_t>(tile.hi[axis] - offset, tile.lo[axis], part);
      return tile;
    };
    Tensor y(shape), dy = Tensor::random(shape, 9);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      Rect place = c.inputs[i].whole();
      place.lo[axis] += offsets[i];
      place.hi[axis] += offsets[i];
      copy_view(y.view(place), c.inputs[i].view(c.inputs[i].whole()));
    }
    for (unsigned seed = 0; seed < 8; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(shape, {2, 3, 3}, seed), dy);
      CHECK(tiled.output.data == y.data);
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        Rect place = c.inputs[i].whole();
        place.lo[axis] += offsets[i];
        place.hi[axis] += offsets[i];
        Tensor expected(c.inputs[i].shape);
        copy_view(expected.view(expected.whole()), dy.view(place));
        CHECK(tiled.input_grads[i].data == expected.data);
      }
    }

    // Nobody needs the first input's gradient.
    Tensor gradient(c.inputs[1].shape);
    KernelTask task;
    task.output_grads = {dy.view(dy.whole())};
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      TensorView absent = c.inputs[i].view(c.inputs[i].whole());
      absent.data = nullptr;
      task.input_grads.push_back(absent);
    }
    task.input_grads[1] = gradient.view(gradient.whole());
    make_kernel(c.type, Attributes(c.attributes), kTested)->backward(task);
    CHECK(gradient.data == run_tiles(c, {y.whole()}, dy).input_grads[1].data);
  }
}

// A window over a sequence is one over an image of one row.
void check_window1d(const std::string& type, Entries attributes, std::int64_t channels,
                    std::int64_t filters, unsigned seed) {
  const std::int64_t n = 3, length = 14, kernel = 3, stride = 2, padding = 1;
  const std::int64_t positions = (length + 2 * padding - kernel) / stride + 1;
  const bool conv = type == "conv1d";
  Case flat;
  flat.type = type;
  flat.attributes = attributes;
  Case image = flat;
  image.type = conv ? "conv2d" : "pool2d";
  flat.attributes.insert(flat.attributes.end(),
                         {{"kernel", "3"}, {"stride", "2"}, {"padding", "1"}});
  image.attributes.insert(image.attributes.end(), {{"kernel_h", "1"},
                                                   {"stride_h", "1"},
                                                   {"padding_h", "0"},
                                                   {"kernel_w", "3"},
                                                   {"stride_w", "2"},
                                                   {"padding_w", "1"},
                                                   {"groups", "1"}});
  flat.inputs = {Tensor::random({n, length, channels}, seed)};
  image.inputs = {Tensor::random({n, 1, length, channels}, seed)};
  flat.output_shape = {n, positions, filters};
  image.output_shape = {n, 1, positions, filters};
  flat.reads_input = image.reads_input = true;
  flat.reads_output = image.reads_output = true;
  if (conv) {
    flat.weights = {Tensor::random({filters, kernel, channels}, 5), Tensor::random({filters}, 6)};
    image.weights = {Tensor::random({filters, 1, kernel, channels}, 5), flat.weights[1]};
  }
  flat.input_tile = [&](Rect tile, int) {
    tile.lo[1] = std::max<std::int64_t>(0, tile.lo[1] * stride - padding);
    tile.hi[1] = std::min(length, (tile.hi[1] - 1) * stride - padding + kernel);
    if (conv) {
      tile.lo[2] = 0;
      tile.hi[2] = channels;
    }
    return tile;
  };
  flat.weight_tile = [&](const Rect& out, int i) {
    Rect tile = flat.weights[static_cast<std::size_t>(i)].whole();
    tile.lo[0] = out.lo[2];
    tile.hi[0] = out.hi[2];
    return tile;
  };
  image.input_tile = [&](const Rect&, int) { return image.inputs[0].whole(); };
  image.weight_tile = [&](const Rect&, int i) {
    return image.weights[static_cast<std::size_t>(i)].whole();
  };
  Tensor dy = Tensor::random(flat.output_shape, 7),
         image_dy = Tensor::random(image.output_shape, 7);
  const Results whole = run_tiles(image, {Rect::of_shape(image.output_shape)}, image_dy);
  const auto close = [](const Tensor& a, Tensor b) {
    b.shape = a.shape;
    return largest_difference(a, b) < kTolerance;
  };
  for (unsigned cut = 0; cut < 4; ++cut) {
    const Results tiled = run_tiles(flat, random_tiles(flat.output_shape, {2, 3, 2}, cut), dy);
    CHECK(close(tiled.output, whole.output));
    CHECK(close(tiled.input_grads[0], whole.input_grads[0]));
    for (std::size_t i = 0; i < flat.weights.size(); ++i) {
      CHECK(close(tiled.weight_grads[i], whole.weight_grads[i]));
    }
  }
}

TEST_CASE("conv1d and pool1d: tiles of any cut") {
  check_window1d("conv1d", {{"use_bias", "1"}, {"activation", "relu"}}, 5, 7, 1);
  check_window1d("conv1d", {{"use_bias", "1"}, {"activation", "none"}}, 16, 32, 2);
  check_window1d("pool1d", {{"kind", "max"}, {"count_include_pad", "1"}}, 6, 6, 3);
  check_window1d("pool1d", {{"kind", "average"}, {"count_include_pad", "0"}}, 6, 6, 4);
}

}  // namespace
}  // namespace flexlegion::testing
