// The shape arithmetic of ops/moves.h, and its operators.
//
// A reshape of a tile is a copy where dimensions can be matched: (12, 64) becomes 768, and a tile
// of 3 of the 12 is a range of the 768. groups_of() finds the smallest runs of dimensions with
// equal products on both sides; joined() sees a view along these runs, as one dimension each; the
// copy is then between two views of equal rank.
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/moves.h"
#include "ops/onednn_support.h"

namespace flexlegion {

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
    // The side whose product is smaller takes its next dimension, until both are equal.
    std::int64_t p = before.shape[b++], q = after.shape[a++];
    // (12, 64) and 768, say: 12 < 768, so the left side takes 64, and both are 768.
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

bool joined(const TensorView& view, const std::vector<DimGroup>& groups,
            std::vector<int> DimGroup::*side, TensorView& result) {
  result = TensorView();
  result.data = view.data;
  result.type = view.type;
  result.tile.rank = static_cast<int>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // From the innermost outwards: each dimension has to begin where the one inside it ends, and
    // all but the outermost are whole.
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

// A tile of the groups, cut dimension by dimension.
TensorView within(TensorView view, const Rect& tile) {
  for (int d = 0; d < tile.rank; ++d) view = narrowed(view, d, tile.lo[d], tile.hi[d]);
  return view;
}

// "1,2,3" as numbers. An empty text has none.
std::vector<int> integers_of(const Attributes& attributes, const std::string& name) {
  std::vector<int> numbers;
  const std::string& list = attributes.text(name);
  for (std::size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
    numbers.push_back(std::stoi(list.substr(at)));
    if (list.find(',', at) == std::string::npos) break;
  }
  return numbers;
}

std::vector<int> permutation_of(const Attributes& attributes) {
  const std::vector<int> permutation = integers_of(attributes, "permutation");
  if (permutation.size() > kMaxRank) throw std::invalid_argument("too many dimensions");
  return permutation;
}

TensorView permuted(const TensorView& input, const std::vector<int>& permutation) {
  TensorView view = input;
  for (std::size_t d = 0; d < permutation.size(); ++d) {
    const int from = permutation[d];
    view.tile.lo[d] = input.tile.lo[from];
    view.tile.hi[d] = input.tile.hi[from];
    view.stride[d] = input.stride[from];
    view.shape[d] = input.shape[from];
  }
  return view;
}

namespace {

// A copy between views of equal extents. Where the last dimension lies contiguously on both sides,
// runs are copied. Otherwise it is a transpose, for which oneDNN has blocked code: reading columns
// element by element would use one number of each cache line.
class Mover {
 public:
  static bool takes(DataType type) { return type == DataType::bfloat16; }

  void move(const TensorView& from, const TensorView& to, bool adds) {
    const int rank = to.rank();
    if (from.stride[rank - 1] == 1 && to.stride[rank - 1] == 1) {
      return write_or_add_view(to, from, adds);
    }
    // A primitive is made for extents and strides, so tiles of one shape share it.
    onednn::Cache::Key key{adds, from.narrow(), to.narrow()};
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
      return onednn::reorder(onednn::desc(from.type, extents, from_strides),
                             onednn::desc(to.type, extents, to_strides), adds);
    });
    primitive.execute({{DNNL_ARG_FROM, from.data}, {DNNL_ARG_TO, to.data}});
  }

 private:
  onednn::Cache cache_;
};

// What the operators of ops/moves.h need of a kind of device.
struct Cpu {
  using Input = DenseInput;
  using Output = DenseOutput;
  using Mover = flexlegion::Mover;
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    write_or_add_view(to, from, adds);
  }
  static void zero(const TensorView& view) { zero_view(view); }
};

// A transpose of a tile needs nothing but its strides in another order.
class Transpose : public Kernel {
 public:
  explicit Transpose(const Attributes& attributes) : permutation_(permutation_of(attributes)) {}

  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return Mover::takes(type); }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    mover_.move(permuted(task.inputs[0], permutation_), task.outputs[0], false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    // The gradient seen in the output's order, so the same permutation serves both passes.
    mover_.move(task.output_grads[0], permuted(task.input_grads[0], permutation_),
                task.adds_to_input_grad(0));
  }

 private:
  std::vector<int> permutation_;
  Mover mover_;
};

const RegisterKernel registered_flatten("flatten", [](const Attributes&) {
  return std::make_unique<Reshape<Cpu>>();
});
const RegisterKernel registered_reshape("reshape", [](const Attributes&) {
  return std::make_unique<Reshape<Cpu>>();
});
const RegisterKernel registered_rearrange("rearrange", [](const Attributes& a) {
  return std::make_unique<Rearrange<Cpu>>(a);
});
const RegisterKernel registered_slice("slice", [](const Attributes& a) {
  return std::make_unique<Slice<Cpu>>(a);
});
const RegisterKernel registered_concat("concat", [](const Attributes& a) {
  return std::make_unique<Concat<Cpu>>(a);
});
const RegisterKernel registered_pad("pad", [](const Attributes& a) {
  return std::make_unique<Pad<Cpu>>(a);
});
const RegisterKernel registered_roll("roll", [](const Attributes& a) {
  return std::make_unique<Roll<Cpu>>(a);
});
const RegisterKernel registered_transpose("transpose", [](const Attributes& a) {
  return std::make_unique<Transpose>(a);
});

}  // namespace
}  // namespace flexlegion
