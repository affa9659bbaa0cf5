// Tiles and access maps: from a tile of an operator's space to what its task touches (graph.h), and
// the checks of a graph.
//
// An access map's dimension is affine in the tile: [lo num / den + lo_offset, hi num / den +
// hi_offset), rounded outwards and clamped to the tensor. That covers element-wise operators
// (identity), convolutions (stride and window as num and offsets), halos, poolings, and reshapes in
// whole rows. Everything else in this project about who needs what from whom follows from these
// maps.
//
// check_graph() is the contract of everything that reads a graph. It runs once for each graph, so
// its sentences say what is wrong with an operator instead of what would fail later.
#include "plan/graph.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace flexlegion {

namespace {

// Division that rounds towards minus infinity, respectively plus infinity; den > 0.
// C++ rounds towards zero, which would be wrong for tiles before an operand's start (padding).
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

std::vector<int> Operator::outputs() const {
  std::vector<int> result;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    if (operands[i].role == Role::output) result.push_back(i);
  }
  return result;
}

int Operand::named_by() const {
  for (const DimMap& m : map) {
    if (m.named_by >= 0) return m.named_by;
  }
  return -1;
}

const Operand* Operator::table() const {
  for (const Operand& operand : operands) {
    if (operand.named_by() >= 0) return &operand;
  }
  return nullptr;
}

const Operand* Operator::tokens() const {
  const Operand* its = table();
  return its != nullptr ? &operands[its->named_by()] : nullptr;
}

// A weight whose every use is a lookup. Its gradient is never needed as a tensor, so an update may
// take it row by row.
IdVector<TensorId, bool> tables_of(const Graph& graph) {
  IdVector<TensorId, bool> looked_up(graph.tensors.size()), used_otherwise(graph.tensors.size());
  for (const Operator& op : graph.operators) {
    for (const Operand& o : op.operands) {
      (o.named_by() >= 0 ? looked_up : used_otherwise)[o.tensor] = true;
    }
  }
  for (TensorId t : looked_up.ids()) {
    if (used_otherwise[t] || graph.tensors[t].summed) looked_up[t] = false;
  }
  return looked_up;
}

// An operator's space: the dimensions of its output, then those that it reduces.
Rect space_of(const Graph& graph, const Operator& op) {
  Rect space = Rect::of_shape(graph.tensors[op.primary_output().tensor].shape);
  for (std::int64_t extent : op.reductions) space.hi[space.rank++] = extent;
  return space;
}

// Reductions are the last dimensions of the space, so the tasks that differ in these alone have
// neighbouring numbers.
int partial_values(const Operator& op, const std::vector<int>& degrees) {
  int values = 1;
  for (std::size_t d = degrees.size() - op.reductions.size(); d < degrees.size(); ++d) {
    values *= degrees[d];
  }
  return values;
}

// A maximum that the backward pass compares with partial values cannot be combined before.
bool sums_by_shards(const Operator& op, const ParallelConfig& config) {
  const bool maxima = std::any_of(op.operands.begin(), op.operands.end(), [](const Operand& o) {
    return o.role == Role::output && o.combine == Combine::max && o.saved_for_backward;
  });
  return config.sums == Sums::shards && !maxima && partial_values(op, config.degrees) > 1;
}

bool Graph::has_several_nodes() const {
  return std::any_of(node_of.begin(), node_of.end(),
                     [this](int node) { return node != node_of.front(); });
}

// What a task touches of an operand, from its tile of the space: the affine bounds of each
// dimension, within the tensor.
Rect accessed(const Operand& operand, const Tensor& tensor, const Rect& tile) {
  Rect r = Rect::of_shape(tensor.shape);
  for (int d = 0; d < tile.rank; ++d) {
    // A bias, for example: the part at the reduction's start adds it.
    if ((operand.once >> d & 1) == 0 || tile.lo[d] == 0) continue;
    r.hi = r.lo;  // another part's
    return r;
  }
  for (int d = 0; d < r.rank; ++d) {
    const DimMap& m = operand.map[d];
    if (m.out_dim < 0) continue;
    const std::int64_t lo = floor_div(tile.lo[m.out_dim] * m.num, m.den) + m.lo_offset;
    const std::int64_t hi = ceil_div(tile.hi[m.out_dim] * m.num, m.den) + m.hi_offset;
    if (!m.prefix) r.lo[d] = std::clamp(lo, r.lo[d], r.hi[d]);
    r.hi[d] = std::max(r.lo[d], std::min(r.hi[d], hi));  // nothing, rather than less than nothing
  }
  return r;
}

// Tasks are numbered row-major over the tiles, so the last dimension changes fastest.
Rect tile_of(const Rect& whole, const std::vector<int>& degrees, int k) {
  Rect tile = whole;
  for (int d = whole.rank - 1; d >= 0; --d) {
    const std::int64_t part = k % degrees[d];
    k /= degrees[d];
    // Both bounds by the same formula, so tiles meet exactly, whatever the remainder.
    tile.lo[d] = whole.lo[d] + part * whole.extent(d) / degrees[d];
    tile.hi[d] = whole.lo[d] + (part + 1) * whole.extent(d) / degrees[d];
  }
  return tile;
}

// A rectangle a task, in the order of tasks.
std::vector<Rect> accessed_rects(const Graph& graph, OpId op, const Operand& operand,
                                 const std::vector<int>& degrees) {
  const Rect whole = space_of(graph, graph.operators[op]);
  int tasks = 1;
  for (int degree : degrees) tasks *= degree;
  std::vector<Rect> rects(static_cast<std::size_t>(tasks));
  for (int k = 0; k < tasks; ++k) {
    rects[k] = accessed(operand, graph.tensors[operand.tensor], tile_of(whole, degrees, k));
  }
  return rects;
}

bool of_first_part_alone(const Operator& op, const Operand& operand) {
  return op.part() >= 0 && (operand.linear || (operand.once >> op.part() & 1) != 0);
}

// The operand as if all parts but the first touched nothing of it.
Operand of_first_part(const Operator& op, Operand operand) {
  if (op.part() >= 0) operand.once |= 1u << op.part();
  return operand;
}

// Rounded up, so that the first part has a slot even if there are fewer values than parts.
Slots slots_of_part(int values, int parts, int k) {
  if (parts == 1) return {0, values};
  const auto before = [&](std::int64_t part) {
    return static_cast<int>((part * values + parts - 1) / parts);
  };
  const std::int64_t part = k % parts;
  return {before(part), before(part + 1)};
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

// Whether an operator looks rows up in a way that kernels and updates know: whole numbers name rows
// of a weight (row, column), whose columns are those of the output. A reduction may cut the rows.
bool looks_up(const Graph& graph, const Operator& op, const Operand& o) {
  const Tensor& weight = graph.tensors[o.tensor];
  const int by = o.named_by(), rank = static_cast<int>(op.dims.size() - op.reductions.size());
  if (o.role != Role::weight || o.map.size() != 2 || o.map[0].named_by != by ||
      by >= static_cast<int>(op.operands.size()) || op.operands[by].role != Role::input ||
      graph.tensors[op.operands[by].tensor].type != DataType::int32) {
    return false;
  }
  const int row = o.map[0].out_dim;
  const bool rows = row < 0 || (row >= rank && op.reductions[row - rank] == weight.shape[0]);
  return rows && o.map[0] == DimMap{row, 1, 1, 0, 0, by} && o.map[1] == DimMap{rank - 1} &&
         weight.shape[1] == graph.tensors[op.primary_output().tensor].shape.back();
}

// Whether what an operator states of its linear inputs can be: its results are not computed with
// again, and are summed.
bool states_parts(const Graph& graph, const Operator& op) {
  bool linear = false;
  for (const Operand& o : op.operands) {
    if (o.role == Role::output && (o.saved_for_backward || o.combine != Combine::sum)) return false;
    if (!o.linear) continue;
    const Tensor& tensor = graph.tensors[o.tensor];
    if (o.role != Role::input || tensor.kind == TensorKind::weight || o.once != 0) return false;
    linear = true;
  }
  return linear && !op.is_loss;
}

// Whether the dimensions that can be split are the operand's own.
bool split_alone(const Operator& op, const Operand& o) {
  for (int d = 0; d < static_cast<int>(op.dims.size()); ++d) {
    const bool its =
        std::any_of(o.map.begin(), o.map.end(), [d](const DimMap& m) { return m.out_dim == d; });
    if (!its && op.dims[d] != DimKind::none) return false;
  }
  return true;
}

}  // namespace

void check_graph(const Graph& graph) {
  const IdVector<TensorId, bool> tables = tables_of(graph);
  // Operators come in topological order: what one reads has been written by one before it.
  IdVector<TensorId, bool> written(graph.tensors.size()), taken(graph.tensors.size());
  for (TensorId t : written.ids()) {
    written[t] = graph.tensors[t].kind != TensorKind::activation;
  }
  for (const Operator& op : graph.operators) {
    const auto fail = [&op](const char* why) {
      throw std::invalid_argument("operator '" + op.name + "' " + why);
    };
    const Operand& output = op.primary_output();
    const std::size_t rank = graph.tensors[output.tensor].shape.size();
    if (op.dims.size() != rank + op.reductions.size()) {
      fail("needs one kind for each dimension of its output, and for each that it reduces");
    }
    if (op.dims.size() > kMaxRegionRank) fail("has too many dimensions");
    for (std::size_t d = 0; d < op.dims.size(); ++d) {
      const bool part = op.dims[d] == DimKind::part;
      const bool reduces = op.dims[d] == DimKind::reduction || part;
      if (d < rank ? reduces : !reduces && op.dims[d] != DimKind::none) {
        fail("has its reductions in other places than behind its output's dimensions");
      }
      if (part && d + 1 < op.dims.size()) fail("has parts of its inputs before another dimension");
    }
    if (op.part() >= 0 && !states_parts(graph, op)) {
      fail("has parts of its inputs, but is not linear in one");
    }
    for (const Operand& o : op.operands) {
      if (o.map.size() != graph.tensors[o.tensor].shape.size()) fail("has a bad access map");
      for (const DimMap& m : o.map) {
        if (m.out_dim >= 0 && m.out_dim == op.part()) fail("has an operand along its parts");
      }
      if (o.role == Role::output) continue;
      if (!written[o.tensor]) fail("reads a tensor that no operator before it writes");
      const Tensor& tensor = graph.tensors[o.tensor];
      if (o.role == Role::weight && tensor.kind != TensorKind::weight) {
        fail("takes for a weight what is none");
      }
      if (o.named_by() >= 0 && (!looks_up(graph, op, o) || op.table() != &o)) {
        fail("looks rows up in another way than in a table, by tokens");
      }
      if (tables[o.tensor] && !split_alone(op, o)) {
        fail("is not split by the rows and columns of its table alone");
      }
      if (!tensor.is_state) continue;
      if (o.role != Role::weight) fail("reads another operator's state");
      if (taken[o.tensor]) fail("shares a state, which cannot be shared");
      if (!disjoint(op, o)) fail("has tasks that share a state");
      taken[o.tensor] = true;
    }
    for (const Operand& o : op.operands) {
      if (o.role != Role::output) continue;
      for (const DimMap& m : o.map) {
        if (m.out_dim >= static_cast<int>(rank)) fail("has an output along what it reduces");
      }
      if (o.named_by() >= 0) fail("has an output of which tokens name rows");
      if (o.once != 0) fail("has an output that not all tasks write");
      if (written[o.tensor]) fail("writes a tensor that has a writer already");
      written[o.tensor] = true;
    }
  }
}

// Operators of one class share their rectangles and costs, so everything that these depend on is
// compared.
bool same_access(const Graph& graph, OpId a, OpId b) {
  const Operator& x = graph.operators[a];
  const Operator& y = graph.operators[b];
  return x.type == y.type && x.is_loss == y.is_loss && x.dims == y.dims &&
         x.reductions == y.reductions &&
         std::equal(x.operands.begin(), x.operands.end(), y.operands.begin(), y.operands.end(),
                    [&graph](const Operand& i, const Operand& j) {
                      return i.role == j.role && i.saved_for_backward == j.saved_for_backward &&
                             i.map == j.map && i.once == j.once && i.combine == j.combine &&
                             i.linear == j.linear &&
                             graph.tensors[i.tensor].shape == graph.tensors[j.tensor].shape;
                    });
}

// Degrees within the extents, whole dimensions whole, and a device for each task.
void check_config(const Graph& graph, OpId op, const ParallelConfig& config) {
  const Operator& o = graph.operators[op];
  const Rect space = space_of(graph, o);
  std::int64_t tasks = 1;
  if (static_cast<int>(config.degrees.size()) != space.rank) {
    throw std::invalid_argument("operator '" + o.name + "': wrong number of degrees");
  }
  for (int d = 0; d < space.rank; ++d) {
    const bool whole = d < static_cast<int>(o.dims.size()) && o.dims[d] == DimKind::none;
    const std::int64_t most = whole ? 1 : space.hi[d];
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
  const bool keeps = std::any_of(o.operands.begin(), o.operands.end(), [&](const Operand& its) {
    return graph.tensors[its.tensor].is_state;
  });
  if (config.again && (o.is_loss || keeps)) {
    throw std::invalid_argument("operator '" + o.name + "' cannot be run again: it " +
                                (keeps ? "changes its state" : "is a loss"));
  }
}

void set_order(Graph& graph, const Strategy& strategy) {
  for (OpId op : strategy.ids()) {
    if (!graph.operators.has(op)) continue;
    graph.operators[op].again = strategy[op].again;
    graph.operators[op].sharding = strategy[op].sharding;
  }
}

}  // namespace flexlegion
