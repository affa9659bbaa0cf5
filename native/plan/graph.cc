#include "plan/graph.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace flexlegion {

namespace {

// Division that rounds towards minus infinity, respectively plus infinity; den > 0.
std::int64_t floor_div(std::int64_t a, std::int64_t den) {
  return a >= 0 ? a / den : -((-a + den - 1) / den);
}
std::int64_t ceil_div(std::int64_t a, std::int64_t den) { return -floor_div(-a, den); }

}  // namespace

const Operand& Operator::primary_output() const {
  for (const Operand& operand : operands) {
    if (operand.role == Role::output) return operand;
  }
  throw std::invalid_argument("operator '" + name + "' has no output");
}

Rect accessed(const Operand& operand, const Tensor& tensor, const Rect& tile) {
  Rect r = Rect::of_shape(tensor.shape);
  for (int d = 0; d < r.rank; ++d) {
    const DimMap& m = operand.map[d];
    if (m.out_dim < 0) continue;
    const std::int64_t lo = floor_div(tile.lo[m.out_dim] * m.num, m.den) + m.lo_offset;
    const std::int64_t hi = ceil_div(tile.hi[m.out_dim] * m.num, m.den) + m.hi_offset;
    r.lo[d] = std::clamp(lo, r.lo[d], r.hi[d]);
    r.hi[d] = std::max(r.lo[d], std::min(r.hi[d], hi));  // nothing, rather than less than nothing
  }
  return r;
}

Rect tile_of(const Rect& whole, const std::vector<int>& degrees, int k) {
  Rect tile = whole;
  for (int d = whole.rank - 1; d >= 0; --d) {
    const std::int64_t part = k % degrees[d];
    k /= degrees[d];
    tile.lo[d] = whole.lo[d] + part * whole.extent(d) / degrees[d];
    tile.hi[d] = whole.lo[d] + (part + 1) * whole.extent(d) / degrees[d];
  }
  return tile;
}

std::vector<Rect> accessed_rects(const Graph& graph, int op, const Operand& operand,
                                 const std::vector<int>& degrees) {
  const Rect whole =
      Rect::of_shape(graph.tensors[graph.operators[op].primary_output().tensor].shape);
  int tasks = 1;
  for (int degree : degrees) tasks *= degree;
  std::vector<Rect> rects(static_cast<std::size_t>(tasks));
  for (int k = 0; k < tasks; ++k) {
    rects[k] = accessed(operand, graph.tensors[operand.tensor], tile_of(whole, degrees, k));
  }
  return rects;
}

namespace {

// Whether the tasks of an operator, however it is split, touch different parts of an operand.
bool disjoint(const Operator& op, const Operand& operand) {
  for (std::size_t d = 0; d < op.dims.size(); ++d) {
    if (op.dims[d] == DimKind::none) continue;
    const DimMap same{static_cast<int>(d)};
    if (std::find(operand.map.begin(), operand.map.end(), same) == operand.map.end()) return false;
  }
  return true;
}

// Whether an operator uses a table as tables are used: it reads all rows of the columns that are
// its output's last dimension, the only one that can be split.
bool looks_up(const Graph& graph, const Operator& op, const Operand& table) {
  const Operand& tokens = op.operands.front();
  const auto& shape = graph.tensors[op.primary_output().tensor].shape;
  const DimMap column{static_cast<int>(shape.size()) - 1};
  return op.operands.size() == 3 && tokens.role == Role::input &&
         graph.tensors[tokens.tensor].type == DataType::int32 && table.map.size() == 2 &&
         table.map[0] == DimMap{} && table.map[1] == column &&
         graph.tensors[table.tensor].shape[1] == shape.back() &&
         std::all_of(op.dims.begin(), op.dims.end() - 1,
                     [](DimKind kind) { return kind == DimKind::none; });
}

}  // namespace

void check_graph(const Graph& graph) {
  std::vector<bool> written(graph.tensors.size()), taken(graph.tensors.size());
  for (std::size_t t = 0; t < written.size(); ++t) {
    written[t] = graph.tensors[t].kind != TensorKind::activation;
  }
  for (const Operator& op : graph.operators) {
    const auto fail = [&op](const char* why) {
      throw std::invalid_argument("operator '" + op.name + "' " + why);
    };
    const Operand& output = op.primary_output();
    if (op.dims.size() != graph.tensors[output.tensor].shape.size()) {
      fail("needs one kind for each dimension of its output");
    }
    for (const Operand& o : op.operands) {
      if (o.map.size() != graph.tensors[o.tensor].shape.size()) fail("has a bad access map");
      if (o.role == Role::output) continue;
      if (!written[o.tensor]) fail("reads a tensor that no operator before it writes");
      const Tensor& tensor = graph.tensors[o.tensor];
      if (o.role == Role::weight && tensor.kind != TensorKind::weight) {
        fail("takes for a weight what is none");
      }
      if (tensor.is_table && !looks_up(graph, op, o)) {
        fail("does not look rows up in a table, or is not split by its columns alone");
      }
      if (!tensor.is_state) continue;
      if (o.role != Role::weight) fail("reads another operator's state");
      if (taken[o.tensor]) fail("shares a state, which cannot be shared");
      if (!disjoint(op, o)) fail("has tasks that share a state");
      taken[o.tensor] = true;
    }
    for (const Operand& o : op.operands) {
      if (o.role != Role::output) continue;
      if (written[o.tensor]) fail("writes a tensor that has a writer already");
      written[o.tensor] = true;
    }
  }
}

bool same_access(const Graph& graph, int a, int b) {
  const Operator& x = graph.operators[a];
  const Operator& y = graph.operators[b];
  return x.type == y.type && x.is_loss == y.is_loss && x.dims == y.dims &&
         std::equal(x.operands.begin(), x.operands.end(), y.operands.begin(), y.operands.end(),
                    [&graph](const Operand& i, const Operand& j) {
                      return i.role == j.role && i.saved_for_backward == j.saved_for_backward &&
                             i.map == j.map &&
                             graph.tensors[i.tensor].shape == graph.tensors[j.tensor].shape;
                    });
}

void check_config(const Graph& graph, int op, const ParallelConfig& config) {
  const Operator& o = graph.operators[op];
  const auto& shape = graph.tensors[o.primary_output().tensor].shape;
  std::int64_t tasks = 1;
  if (config.degrees.size() != shape.size()) {
    throw std::invalid_argument("operator '" + o.name + "': wrong number of degrees");
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t most = d < o.dims.size() && o.dims[d] == DimKind::none ? 1 : shape[d];
    if (config.degrees[d] < 1 || config.degrees[d] > most) {
      throw std::invalid_argument("operator '" + o.name + "': a degree outside 1.." +
                                  std::to_string(most));
    }
    tasks *= config.degrees[d];
    if (tasks > kMaxTasks) {
      throw std::invalid_argument("operator '" + o.name + "': more than " +
                                  std::to_string(kMaxTasks) + " tasks");
    }
  }
  if (static_cast<std::int64_t>(config.devices.size()) != tasks) {
    throw std::invalid_argument("operator '" + o.name + "': needs one device a task");
  }
}

}  // namespace flexlegion
