// The operator graph G, as the plan needs it: tensors, and operators that state once, by their
// access maps, which part of each operand one tile of their output needs (FlexFlow, sections 3.1
// and 4).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/data_type.h"
#include "support/ids.h"
#include "support/rect.h"

namespace flexlegion {

// An operator may read a weight that is not its own, too, among its inputs.
enum class TensorKind { input, weight, activation };

struct Tensor;
struct Operator;
using TensorId = Id<Tensor>;
using OpId = Id<Operator>;

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DataType type = DataType::float32;
  TensorKind kind = TensorKind::activation;
  bool needs_gradient = false;
  // A weight that is its operator's own: the forward pass reads and writes it, and nothing trains
  // it.
  bool is_state = false;
  // An activation through which no gradient passes.
  bool detached = false;
  // A weight that is no table (tables_of), though rows of it are looked up and nothing else is.
  bool summed = false;

  // Gradients of weights are summed up, so they are floats whatever their values are stored as.
  DataType gradient_type() const { return kind == TensorKind::weight ? DataType::float32 : type; }
  // A weight that is trained and stored narrow has a *master*: its value as floats, which updates
  // change, and of which the value is rounded. It is kept as the last of the optimizer's states.
  bool has_master() const {
    return kind == TensorKind::weight && needs_gradient && is_narrow(type);
  }
  std::int64_t value_bytes() const { return element_bytes(type); }  // of an element
  std::int64_t gradient_bytes() const { return element_bytes(gradient_type()); }
  // A weight that nothing changes: every task may keep a copy of what it reads.
  bool is_constant() const { return kind == TensorKind::weight && !needs_gradient && !is_state; }
};

// One dimension of an access map: output range [lo, hi) of dimension `out_dim` needs
//   [floor(lo * num / den) + lo_offset, ceil(hi * num / den) + hi_offset), clamped to the tensor;
// out_dim < 0 needs the whole extent. Of a weight's rows in that range, a task touches those alone
// that the values of another operand name, an input; named_by < 0 touches them all. A prefix begins
// at 0, as a causal attention reads what stands before its tile's end.
struct DimMap {
  int out_dim = -1;
  std::int64_t num = 1, den = 1, lo_offset = 0, hi_offset = 0;
  int named_by = -1;
  bool prefix = false;

  bool operator==(const DimMap& o) const {
    return out_dim == o.out_dim && num == o.num && den == o.den && lo_offset == o.lo_offset &&
           hi_offset == o.hi_offset && named_by == o.named_by && prefix == o.prefix;
  }
};

enum class Role { input, weight, output };

// How the partial values of an output become its value: P(sum), P(max) (OneFlow, section 3.1), and
// the logarithm of the sum of the exponentials.
enum class Combine { sum, max, log_sum_exp };

struct Operand {
  TensorId tensor;
  Role role = Role::input;
  bool saved_for_backward = false;  // backward reads the value that forward read or wrote
  std::vector<DimMap> map;          // one a dimension of the tensor
  // Dimensions of the operator's space (bits): of the parts in these, the first alone touches the
  // operand. A bias is added once, say, to one of the partial values.
  unsigned once = 0;
  Combine combine = Combine::sum;  // of an output
  // Of an activation that is read: what it is a sum of can be computed with term by term, and the
  // results added. Then parts (DimKind::part) have some of its partial values each.
  bool linear = false;

  int named_by() const;  // the operand whose values name the rows of this one that are read; or -1
};

// `none`: a dimension that cannot be split. `reduction`: one that the outputs do not have.
// `part`: one that no operand has, whose parts share out the partial values of linear inputs.
enum class DimKind { sample, attribute, parameter, none, reduction, part };

using AttributeList = std::vector<std::pair<std::string, std::string>>;

// What of an operator's weights is cut into shards, of which each device that uses the weights
// keeps its own: the optimizer's states always; the gradients, which are summed shard by shard as
// soon as the backward pass has computed them; the values, which are gathered when the forward
// pass, and again the backward pass, reads them. Others call these ZeRO's stages 1, 2 and 3, or the
// last one fully sharded data parallelism (Rajbhandari et al., 2020; plan.h).
enum class Sharding { states, gradients, weights };
constexpr int kShardings = 3;

// The operator's *space* has the dimensions of its first output, then those that it reduces, such
// as the inner one of a matrix product: its tiles are the tasks. Tasks that differ in their parts
// of reductions alone compute partial values of the same part of the outputs.
struct Operator {
  std::string name;
  std::string type;  // names the kernel
  bool is_loss = false;
  // Whether the backward pass computes its outputs once more, instead of finding them in memory
  // (plan.h); and what of its weights is sharded. The order of issue follows from both, and which
  // memory is free when. So set_order() brings them from the configurations to the graph.
  bool again = false;
  Sharding sharding = Sharding::states;
  std::vector<DimKind> dims;             // of its space
  std::vector<std::int64_t> reductions;  // extents of the last of them
  std::vector<Operand> operands;
  AttributeList attributes;

  const Operand& primary_output() const;
  std::vector<int> outputs() const;  // their operands
  // The dimension of kind `part`, which is the last one, or -1.
  int part() const {
    return !dims.empty() && dims.back() == DimKind::part ? static_cast<int>(dims.size()) - 1 : -1;
  }
  // Whether it looks rows up; of which operand, named by which. Otherwise null.
  const Operand* table() const;
  const Operand* tokens() const;
};

// So many launches at most are fused. Longer runs gain little, and what is issued meanwhile (the
// next batch) waits for their end.
constexpr int kLongestRun = 16;

struct Graph {
  IdVector<TensorId, Tensor> tensors;
  IdVector<OpId, Operator> operators;  // in topological order
  // A weight is not cut into shards of less (bytes): what moves costs time by the message, too.
  std::int64_t shard_bytes = 0;
  int fused_launches = kLongestRun;
  // Each tensor has memory of its own, so that it can be read when the iteration is over; else
  // those that are needed for a few launches take turns in it (registers.h).
  bool keeps_tensors = false;
  // An iteration plays this graph, which is that of one micro-batch, so many times (plan.h).
  int micro_batches = 1;
  // A device: its node, between which data pass a network. Devices beyond the end are of node 0.
  std::vector<int> node_of;

  int node(int device) const {
    const auto d = static_cast<std::size_t>(device);
    return d < node_of.size() ? node_of[d] : 0;
  }
  bool has_several_nodes() const;
};

// What a task that computes `tile` of the operator's space touches of `operand`.
Rect accessed(const Operand& operand, const Tensor& tensor, const Rect& tile);

// The whole of an operator's space.
Rect space_of(const Graph& graph, const Operator& op);

// Who combines partial values: each reader for itself, or, shard by shard, those that wrote them.
enum class Sums { readers, shards };

// A parallelization configuration (section 4): a degree for each dimension of the operator's space,
// and a device for each task; tasks are numbered row-major over the degrees.
struct ParallelConfig {
  std::vector<int> degrees;
  std::vector<int> devices;
  Sums sums = Sums::readers;
  // Whether gradients of the operator's weights are summed inside each node first, and updated
  // weights sent once to each other node (rules.h). OneFlow and others call such an all-reduce
  // hierarchical.
  bool hierarchical = false;
  // How many micro-batches can be under way at the operator: so many registers its outputs and
  // their gradients have, which the rounds take in turn (OneFlow, section 4.2). No more than there
  // are rounds.
  int buffers = 1;
  bool again = false;  // (Operator::again)
  Sharding sharding = Sharding::states;
};

// How many partial values of its outputs an operator computes, if it is split like that. Task k
// computes number k modulo that: reductions are the last dimensions.
int partial_values(const Operator& op, const std::vector<int>& degrees);

// Of `part`: how many there are, if it is split like that. Task k is of part k modulo that.
inline int parts_of(const Operator& op, const std::vector<int>& degrees) {
  return op.part() < 0 ? 1 : degrees.back();
}

// Whether a sum launch combines them. Of maxima, whose gradient goes to the first element that has
// one, backward has to see all partial values: there, readers combine them.
bool sums_by_shards(const Operator& op, const ParallelConfig& config);

constexpr int kMaxTasks = 1 << 16;  // of one operator
constexpr int kMaxMicroBatches = 1 << 12;

using Strategy = IdVector<OpId, ParallelConfig>;

// Tells the graph what of the strategy the order of issue depends on: which operators are run
// again, and what of their weights is sharded.
void set_order(Graph& graph, const Strategy& strategy);

// Tile `k` of `whole`. Where a degree does not divide its extent, tiles differ by at most one.
Rect tile_of(const Rect& whole, const std::vector<int>& degrees, int k);

// The same for every tile of `degrees`: what the tasks of `op` touch of `operand`.
std::vector<Rect> accessed_rects(const Graph& graph, OpId op, const Operand& operand,
                                 const std::vector<int>& degrees);

// Whether the first part alone contributes to the gradient of an operand: it is a linear input,
// whose gradient is that of the sum of its partial values, or a term that is added once.
bool of_first_part_alone(const Operator& op, const Operand& operand);

// The operand as the first part alone touches it.
Operand of_first_part(const Operator& op, Operand operand);

// Slots [first, last) of a stack of partial values.
struct Slots {
  int first = 0, last = 0;
};

// Of a sum of so many partial values, those that task `k` takes if its operator is cut into so many
// parts. The first part has some in any case.
Slots slots_of_part(int values, int parts, int k);

// Whether a tensor is a weight (row, column) of which operators look up rows, and which nothing
// uses otherwise, unless it is summed: an embedding's table. These operators can be split by its
// rows and columns alone. Its gradient is never written down: the update reads it, row by row, off
// the gradients of those operators' outputs.
IdVector<TensorId, bool> tables_of(const Graph& graph);

// Throws std::invalid_argument unless every operator reads what stands before it, writes what
// nobody else writes, and has maps that fit.
void check_graph(const Graph& graph);

// Whether two operators differ in their names and tensors alone, not in what a tile of their output
// needs.
bool same_access(const Graph& graph, OpId a, OpId b);

// Throws std::invalid_argument unless the configuration fits the operator.
void check_config(const Graph& graph, OpId op, const ParallelConfig& config);

}  // namespace flexlegion
