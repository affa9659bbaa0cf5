// Operators that move elements, for every kind of device: reshape and flatten, rearrange, slice,
// concat, and how a transpose sees its input. Each is a copy between two views of equal extents.
//
// A Device has what ops/tensor_view.h offers CPU kernels: classes Input and Output (DenseInput,
// DenseOutput) and Mover, and functions write(to, from, adds) and zero(view).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ops/kernel.h"

namespace flexlegion {

// An attribute of whole numbers between commas.
std::vector<int> integers_of(const Attributes& attributes, const std::string& name);

// Dimensions of either side that a reshape joins or cuts, e.g. (12, 64) and 768.
struct DimGroup {
  std::vector<int> before, after;
};

// The smallest runs of dimensions of equal products. The sample's is one of its own; extents of 1
// belong to none, for they neither hold nor move anything.
std::vector<DimGroup> groups_of(const TensorView& before, const TensorView& after);

// The view with one dimension a group. Of a group's dimensions all but the outermost are whole, so
// that a tile is one range of the group; false if they do not follow each other in memory.
bool joined(const TensorView& view, const std::vector<DimGroup>& groups,
            std::vector<int> DimGroup::*side, TensorView& result);

// The part of a joined view that a tile of the other side covers.
TensorView within(TensorView view, const Rect& tile);

// (n, d1, d2, ...) -> (n, e1, e2, ...), row-major. The input's tile holds the output's, and may be
// larger: whole rows of d1, say, of which the first and the last are shared with other tasks.
template <typename Device>
class Reshape : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const std::vector<DimGroup> groups = groups_of(task.inputs[0], y);
    const TensorView from = joined_input(task.inputs[0], groups, &DimGroup::before);
    TensorView to;
    if (joined(y, groups, &DimGroup::after, to)) {
      return Device::write(to, within(from, to.tile), false);
    }
    const typename Device::Output out(y, 1);
    joined(packed(y, out.data()), groups, &DimGroup::after, to);
    Device::write(to, within(from, to.tile), false);
    out.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &dx = task.input_grads[0], &dy = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (dy.tile.empty()) return adds ? void() : Device::zero(dx);
    const std::vector<DimGroup> groups = groups_of(dx, dy);
    const TensorView from = joined_input(dy, groups, &DimGroup::after);
    TensorView to;
    if (joined(dx, groups, &DimGroup::before, to)) return write_gradient(to, from, adds);
    const typename Device::Output out(dx, 1, adds);
    joined(packed(dx, out.data()), groups, &DimGroup::before, to);
    write_gradient(to, from, false);
    out.commit();
  }

 private:
  static TensorView packed(const TensorView& view, float* data) {
    return dense_view(data, view.tile, view.shape);
  }

  static TensorView joined_input(const TensorView& view, const std::vector<DimGroup>& groups,
                                 std::vector<int> DimGroup::*side) {
    TensorView result;
    if (!joined(view, groups, side, result)) {
      const typename Device::Input dense(view, 0);
      joined(packed(view, dense.data()), groups, side, result);
    }
    return result;
  }

  static void write_gradient(const TensorView& to, const TensorView& from, bool adds) {
    if (!adds) zero_outside(to, from.tile);
    Device::write(within(to, from.tile), from, adds);
  }

  // Zeroes what `view` has outside of `tile`, which lies in it.
  static void zero_outside(TensorView view, const Rect& tile) {
    for (int d = 0; d < tile.rank; ++d) {
      Device::zero(narrowed(view, d, view.tile.lo[d], tile.lo[d]));
      Device::zero(narrowed(view, d, tile.hi[d], view.tile.hi[d]));
      view = narrowed(view, d, tile.lo[d], tile.hi[d]);
    }
  }
};

// (n, d1, d2, ...) seen along axes, of which each dimension has some, the major one first; these in
// another order; (n, e1, e2, ...) of these: a reshape, a transpose and a reshape in one copy. A
// tile has all of an axis, but of a dimension's major one, which may be cut.
//
// A Device's Mover copies between two views, of whatever strides: move(from, to, adds).
template <typename Device>
class Rearrange : public Kernel {
 public:
  explicit Rearrange(const Attributes& attributes)
      : extents_(integers_of(attributes, "extents")),
        order_(integers_of(attributes, "order")),
        inverse_(order_.size()) {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto axis = static_cast<std::size_t>(order_[i]);
      ordered_.push_back(extents_.at(axis));
      inverse_.at(axis) = static_cast<int>(i);
    }
  }

  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return Device::Mover::takes(type); }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    move(paired(along(x, extents_), along(y, ordered_), order_), x, y, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const TensorView &dx = task.input_grads[0], &dy = task.output_grads[0];
    move(paired(along(dy, ordered_), along(dx, extents_), inverse_), dy, dx,
         task.adds_to_input_grad(0));
  }

 private:
  struct Axis {
    std::int64_t extent, stride;
  };
  struct Pair {  // the same axis on both sides
    std::int64_t extent, from, to;
  };

  // In the order of `to`, whose axis i is axis numbers[i] of `from`; samples are before both.
  static std::vector<Pair> paired(const std::vector<Axis>& from, const std::vector<Axis>& to,
                                  const std::vector<int>& numbers) {
    std::vector<Pair> pairs{{to[0].extent, from[0].stride, to[0].stride}};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto axis = static_cast<std::size_t>(numbers[i]);
      pairs.push_back({to[i + 1].extent, from[axis + 1].stride, to[i + 1].stride});
    }
    return pairs;
  }

  // The samples, then the axes of a view's tile.
  static std::vector<Axis> along(const TensorView& view, const std::vector<int>& extents) {
    std::vector<Axis> axes{{view.extent(0), view.stride[0]}};
    std::size_t at = 0;
    for (int d = 1; d < view.rank(); ++d) {
      const std::size_t first = axes.size();
      std::int64_t whole = 1;
      while (whole < view.shape[d]) {
        whole *= extents.at(at);
        axes.push_back({extents[at++], 0});
      }
      std::int64_t inner = 1;
      for (std::size_t i = axes.size(); i-- > first;) {
        axes[i].stride = view.stride[d] * inner;
        if (i == first) axes[i].extent = view.extent(d) / inner;
        inner *= axes[i].extent;
      }
    }
    return axes;
  }

  void move(const std::vector<Pair>& axes, const TensorView& from, const TensorView& to,
            bool adds) {
    std::vector<Pair> joined;  // without what follows itself on both sides
    for (const Pair& axis : axes) {
      if (axis.extent == 1) continue;
      if (!joined.empty() && joined.back().from == axis.extent * axis.from &&
          joined.back().to == axis.extent * axis.to) {
        joined.back() = {joined.back().extent * axis.extent, axis.from, axis.to};
      } else {
        joined.push_back(axis);
      }
    }
    if (joined.empty()) joined.push_back({1, 1, 1});
    move_from(0, joined, from, to, adds);
  }

  // Views have kMaxRegionRank dimensions; axes beyond that are walked one by one.
  void move_from(std::size_t first, const std::vector<Pair>& axes, const TensorView& from,
                 const TensorView& to, bool adds) {
    if (axes.size() - first > kMaxRegionRank) {
      TensorView source = from, target = to;
      for (std::int64_t i = 0; i < axes[first].extent; ++i) {
        source.data = from.at(i * axes[first].from);
        target.data = to.at(i * axes[first].to);
        move_from(first + 1, axes, source, target, adds);
      }
      return;
    }
    TensorView source, target;
    source.data = from.data, source.type = from.type;
    target.data = to.data, target.type = to.type;
    source.tile.rank = target.tile.rank = static_cast<int>(axes.size() - first);
    for (std::size_t d = 0; first + d < axes.size(); ++d) {
      const Pair& axis = axes[first + d];
      source.tile.hi[d] = source.shape[d] = target.tile.hi[d] = target.shape[d] = axis.extent;
      source.stride[d] = axis.from;
      target.stride[d] = axis.to;
    }
    mover_.move(source, target, adds);
  }

  std::vector<int> extents_, order_, inverse_, ordered_;  // ordered: the output's extents
  typename Device::Mover mover_;
};

// A range of one dimension, or each `step`th element of it. A task's input tile is its output tile,
// moved, from the first element to the last one that is taken.
template <typename Device>
class Slice : public Kernel {
 public:
  explicit Slice(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))), step_(attributes.integer("step", 1)) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    Device::write(task.outputs[0], taken(task.inputs[0]), false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView& dx = task.input_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (step_ > 1 && !adds) Device::zero(dx);
    Device::write(taken(dx), task.output_grads[0], adds);
  }

 private:
  // The elements of the input's tile that the output has.
  TensorView taken(TensorView view) const {
    view.tile.hi[axis_] = view.tile.lo[axis_] + (view.tile.extent(axis_) + step_ - 1) / step_;
    view.stride[axis_] *= step_;
    return view;
  }

  int axis_;
  std::int64_t step_;
};

// Inputs one after the other along one dimension.
template <typename Device>
class Concat : public Kernel {
 public:
  explicit Concat(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    std::int64_t offset = 0;
    for (const TensorView& input : task.inputs) {
      if (input.present()) Device::write(part(task.outputs[0], input, offset), input, false);
      offset += input.shape[axis_];
    }
  }

  void backward(KernelTask& task) override {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < task.input_grads.size(); ++i) {
      const TensorView& gradient = task.input_grads[i];
      if (gradient.present()) {
        Device::write(gradient, part(task.output_grads[0], gradient, offset),
                      task.adds_to_input_grad(i));
      }
      offset += gradient.shape[axis_];
    }
  }

 private:
  // Where `input`'s tile lies in the joined tensor's, if the input begins at `offset` there.
  TensorView part(const TensorView& joined, const TensorView& input, std::int64_t offset) const {
    return narrowed(joined, axis_, input.tile.lo[axis_] + offset, input.tile.hi[axis_] + offset);
  }

  int axis_;
};

// Zeros before and after each dimension. A task's input tile is what its output tile has of it.
template <typename Device>
class Pad : public Kernel {
 public:
  explicit Pad(const Attributes& attributes) : before_(integers_of(attributes, "before")) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (x.tile.empty() || inside(y, x).volume() != y.volume()) Device::zero(y);
    if (!x.tile.empty()) Device::write(inside(y, x), x, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const TensorView& dx = task.input_grads[0];
    Device::write(dx, inside(task.output_grads[0], dx), task.adds_to_input_grad(0));
  }

 private:
  // The part of the padded tile that has the input's elements.
  TensorView inside(TensorView padded, const TensorView& input) const {
    for (int d = 0; d < padded.rank(); ++d) {
      const std::int64_t moved = before_[static_cast<std::size_t>(d)];
      padded = narrowed(padded, d, input.tile.lo[d] + moved, input.tile.hi[d] + moved);
    }
    return padded;
  }

  std::vector<int> before_;
};

// One dimension turned round by `shift`: element i goes to (i + shift) modulo its extent. A task
// reads the dimension whole.
template <typename Device>
class Roll : public Kernel {
 public:
  explicit Roll(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))), shift_(attributes.integer("shift")) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    for (const Part& part : parts_of(task.outputs[0])) {
      Device::write(moved(task.outputs[0], part, 0), moved(task.inputs[0], part, part.back), false);
    }
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &dx = task.input_grads[0], &dy = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    const bool whole = dy.tile.extent(axis_) == dy.shape[axis_];
    if (!adds && !whole) Device::zero(dx);
    for (const Part& part : parts_of(dy)) {
      Device::write(moved(dx, part, part.back), moved(dy, part, 0), adds);
    }
  }

 private:
  // Outputs [lo, hi), which lie `back` elements before in the input.
  struct Part {
    std::int64_t lo, hi, back;
  };

  std::vector<Part> parts_of(const TensorView& output) const {
    const std::int64_t extent = output.shape[axis_];
    const std::int64_t lo = output.tile.lo[axis_], hi = output.tile.hi[axis_];
    std::vector<Part> parts;
    if (lo < shift_) parts.push_back({lo, std::min(hi, shift_), shift_ - extent});
    if (hi > shift_) parts.push_back({std::max(lo, shift_), hi, shift_});
    return parts;
  }

  TensorView moved(const TensorView& view, const Part& part, std::int64_t back) const {
    return narrowed(view, axis_, part.lo - back, part.hi - back);
  }

  int axis_;
  std::int64_t shift_;  // from 0 on, below the extent
};

// Dimension d of a transpose's output is dimension permutation[d] of its input.
std::vector<int> permutation_of(const Attributes& attributes);

// A transpose's input as its output sees it.
TensorView permuted(const TensorView& input, const std::vector<int>& permutation);

}  // namespace flexlegion
