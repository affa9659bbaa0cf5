// Operators that move elements: reshape and flatten, slice, transpose.
//
// Each is a copy between two views of equal extents: the input is seen as the output is.
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/onednn_support.h"

namespace flexlegion {
namespace {

// Dimensions of either side that a reshape joins or cuts, e.g. (12, 64) and 768.
struct DimGroup {
  std::vector<int> before, after;
};

// The smallest runs of dimensions of equal products. The sample's is one of its own; extents of 1
// belong to none, for they neither hold nor move anything.
std::vector<DimGroup> groups_of(const TensorView& before, const TensorView& after) {
  std::vector<DimGroup> groups{{{0}, {0}}};
  int b = 1, a = 1;
  const auto skip_ones = [](const TensorView& view, int& d) {
    while (d < view.rank() && view.shape[d] == 1) ++d;
  };
  for (;;) {
    skip_ones(before, b);
    skip_ones(after, a);
    if (b == before.rank() || a == after.rank()) return groups;
    DimGroup group{{b}, {a}};
    std::int64_t p = before.shape[b++], q = after.shape[a++];
    while (p != q) {
      const bool shorter_before = p < q;
      int& d = shorter_before ? b : a;
      const TensorView& view = shorter_before ? before : after;
      skip_ones(view, d);
      if (d == view.rank()) throw std::logic_error("shapes of different sizes");
      (shorter_before ? p : q) *= view.shape[d];
      (shorter_before ? group.before : group.after).push_back(d++);
    }
    groups.push_back(group);
  }
}

// The view with one dimension a group. Of a group's dimensions all but the outermost are whole, so
// that a tile is one range of the group; false if they do not follow each other in memory.
bool joined(const TensorView& view, const std::vector<DimGroup>& groups,
            std::vector<int> DimGroup::*side, TensorView& result) {
  result = TensorView();
  result.data = view.data;
  result.tile.rank = static_cast<int>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& dims = groups[g].*side;
    std::int64_t inner = 1, whole = 1;
    const std::int64_t stride = view.stride[dims.back()];
    for (std::size_t i = dims.size(); i-- > 0;) {
      const int d = dims[i];
      if (view.extent(d) != 1 && view.stride[d] != stride * whole) return false;
      inner = whole;
      whole *= view.shape[d];
    }
    result.shape[g] = whole;
    result.stride[g] = stride;
    result.tile.lo[g] = view.tile.lo[dims[0]] * inner;
    result.tile.hi[g] = view.tile.hi[dims[0]] * inner;
  }
  return true;
}

// The part of a joined view that a tile of the other side covers.
TensorView within(TensorView view, const Rect& tile) {
  for (int d = 0; d < tile.rank; ++d) view = narrowed(view, d, tile.lo[d], tile.hi[d]);
  return view;
}

// Zeroes what `view` has outside of `tile`, which lies in it.
void zero_outside(TensorView view, const Rect& tile) {
  for (int d = 0; d < tile.rank; ++d) {
    zero_view(narrowed(view, d, view.tile.lo[d], tile.lo[d]));
    zero_view(narrowed(view, d, tile.hi[d], view.tile.hi[d]));
    view = narrowed(view, d, tile.lo[d], tile.hi[d]);
  }
}

// (n, d1, d2, ...) -> (n, e1, e2, ...), row-major. The input's tile holds the output's, and may be
// larger: whole rows of d1, say, of which the first and the last are shared with other tasks.
class Reshape : public Kernel {
 public:
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const TensorView& x = task.inputs[0];
    const std::vector<DimGroup> groups = groups_of(x, y);
    TensorView from, to;
    if (!joined(x, groups, &DimGroup::before, from)) {
      joined(packed(x, DenseInput(x, 0).data()), groups, &DimGroup::before, from);
    }
    if (joined(y, groups, &DimGroup::after, to)) return copy_view(to, within(from, to.tile));
    const DenseOutput out(y, 1);
    joined(packed(y, out.data()), groups, &DimGroup::after, to);
    copy_view(to, within(from, to.tile));
    out.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &dx = task.input_grads[0], &dy = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (dy.tile.empty()) return adds ? void() : zero_view(dx);
    const std::vector<DimGroup> groups = groups_of(dx, dy);
    TensorView from, to;
    if (!joined(dy, groups, &DimGroup::after, from)) {
      joined(packed(dy, DenseInput(dy, 0).data()), groups, &DimGroup::after, from);
    }
    if (joined(dx, groups, &DimGroup::before, to)) return write_gradient(to, from, adds);
    const DenseOutput out(dx, 1, adds);
    joined(packed(dx, out.data()), groups, &DimGroup::before, to);
    write_gradient(to, from, false);
    out.commit();
  }

 private:
  static TensorView packed(const TensorView& view, float* data) {
    return dense_view(data, view.tile, view.shape);
  }

  static void write_gradient(const TensorView& to, const TensorView& from, bool adds) {
    if (!adds) zero_outside(to, from.tile);
    write_or_add_view(within(to, from.tile), from, adds);
  }
};

// A range of one dimension. A task's input tile is its output tile, moved.
class Slice : public Kernel {
 public:
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override { copy_view(task.outputs[0], task.inputs[0]); }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    write_or_add_view(task.input_grads[0], task.output_grads[0], task.adds_to_input_grad(0));
  }
};

// Dimension d of the output is dimension permutation[d] of the input.
class Transpose : public Kernel {
 public:
  explicit Transpose(const Attributes& attributes) {
    const std::string& list = attributes.text("permutation");
    for (std::size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
      permutation_.push_back(std::stoi(list.substr(at)));
      if (list.find(',', at) == std::string::npos) break;
    }
    if (permutation_.size() > kMaxRank) throw std::invalid_argument("too many dimensions");
  }

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    move(permuted(task.inputs[0]), task.outputs[0], false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    move(task.output_grads[0], permuted(task.input_grads[0]), task.adds_to_input_grad(0));
  }

 private:
  // The input as the output sees it.
  TensorView permuted(const TensorView& input) const {
    TensorView view = input;
    for (std::size_t d = 0; d < permutation_.size(); ++d) {
      const int from = permutation_[d];
      view.tile.lo[d] = input.tile.lo[from];
      view.tile.hi[d] = input.tile.hi[from];
      view.stride[d] = input.stride[from];
      view.shape[d] = input.shape[from];
    }
    return view;
  }

  // Rows that stay rows are copied; oneDNN knows how to transpose the others.
  void move(const TensorView& from, const TensorView& to, bool adds) {
    const int rank = to.rank(), last = rank - 1;
    if (permutation_.back() == last) return write_or_add_view(to, from, adds);
    onednn::Cache::Key key{adds};
    dnnl::memory::dims extents, from_strides, to_strides;
    for (int d = 0; d < rank; ++d) {
      extents.push_back(to.extent(d));
      from_strides.push_back(from.stride[d]);
      to_strides.push_back(to.stride[d]);
    }
    for (const auto* list : {&extents, &from_strides, &to_strides}) {
      key.insert(key.end(), list->begin(), list->end());
    }
    const onednn::Prepared& primitive = cache_.get(key, [&] {
      return onednn::reorder(onednn::f32_desc(extents, from_strides),
                             onednn::f32_desc(extents, to_strides), adds);
    });
    primitive.execute({{DNNL_ARG_FROM, from.f32()}, {DNNL_ARG_TO, to.f32()}});
  }

  std::vector<int> permutation_;
  onednn::Cache cache_;
};

const RegisterKernel registered_flatten("flatten", [](const Attributes&) {
  return std::make_unique<Reshape>();
});
const RegisterKernel registered_reshape("reshape", [](const Attributes&) {
  return std::make_unique<Reshape>();
});
const RegisterKernel registered_slice("slice",
                                      [](const Attributes&) { return std::make_unique<Slice>(); });
const RegisterKernel registered_transpose("transpose", [](const Attributes& a) {
  return std::make_unique<Transpose>(a);
});

}  // namespace
}  // namespace flexlegion
