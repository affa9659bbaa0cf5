// The plan's part of the C ABI of libflexlegion_core: checks indices, converts flat arrays, and
// calls the plan.
//
// Python passes a graph as arrays of structures with pointers, and gets plans back as flat arrays.
// Everything from outside is checked here and nowhere below: extents whose product would leave 64
// bits, numbers of enumerations, indices of tensors. So the code below may assume that a graph is
// well formed. Enumerations are cast, and the assertions at the top compare them when this file is
// compiled.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "plan/handles.h"
#include "plan/verify.h"
#include "support/error.h"

namespace fl = flexlegion;

namespace {

using fl::same;
static_assert(same(FL_FLOAT32, fl::DataType::float32) && same(FL_INT32, fl::DataType::int32) &&
              same(FL_BFLOAT16, fl::DataType::bfloat16) && same(FL_FLOAT16, fl::DataType::float16));
static_assert(same(FL_INPUT, fl::TensorKind::input) && same(FL_WEIGHT, fl::TensorKind::weight) &&
              same(FL_ACTIVATION, fl::TensorKind::activation));
static_assert(same(FL_ROLE_INPUT, fl::Role::input) && same(FL_ROLE_WEIGHT, fl::Role::weight) &&
              same(FL_ROLE_OUTPUT, fl::Role::output));
static_assert(same(FL_SAMPLE, fl::DimKind::sample) && same(FL_ATTRIBUTE, fl::DimKind::attribute) &&
              same(FL_PARAMETER, fl::DimKind::parameter) && same(FL_NONE, fl::DimKind::none) &&
              same(FL_REDUCTION, fl::DimKind::reduction) && same(FL_PART, fl::DimKind::part));
static_assert(same(FL_COMBINE_SUM, fl::Combine::sum) && same(FL_COMBINE_MAX, fl::Combine::max) &&
              same(FL_COMBINE_LOG_SUM_EXP, fl::Combine::log_sum_exp));
static_assert(same(FL_SUMS_READERS, fl::Sums::readers) && same(FL_SUMS_SHARDS, fl::Sums::shards));
static_assert(same(FL_SHARDING_STATES, fl::Sharding::states) &&
              same(FL_SHARDING_GRADIENTS, fl::Sharding::gradients) &&
              same(FL_SHARDING_WEIGHTS, fl::Sharding::weights));
static_assert(same(FL_OF_INPUT, fl::Of::input) && same(FL_OF_OPERATOR, fl::Of::op) &&
              same(FL_OF_ITERATION, fl::Of::iteration));
static_assert(same(FL_PRICE_OF_TASK, fl::Price::of_task) &&
              same(FL_PRICE_OF_BYTES, fl::Price::of_bytes) &&
              same(FL_PRICE_NOTHING, fl::Price::nothing));
static_assert(same(FL_READ, fl::Privilege::read) && same(FL_WRITE, fl::Privilege::write) &&
              same(FL_READ_WRITE, fl::Privilege::read_write));
static_assert(same(FL_TRAINS, fl::kTrains) && same(FL_EVALUATES, fl::kEvaluates) &&
              same(FL_PREDICTS, fl::kPredicts));
static_assert(FL_MAX_RANK == fl::kMaxRank && FL_MAX_SPACE == fl::kMaxRegionRank);

// What a number from outside names. IdVector itself does not check.
template <typename I, typename T>
const T& at(const fl::IdVector<I, T>& items, I id, const char* what) {
  if (items.has(id)) return items[id];
  throw std::out_of_range("no " + std::string(what) + " " + std::to_string(id.value));
}

// Typed ids as plain numbers, for the other side.
template <typename Ids>
std::vector<std::int32_t> numbers(const Ids& ids) {
  std::vector<std::int32_t> result;
  for (const auto& id : ids) result.push_back(id.value);
  return result;
}

// Far above any real tensor, and low enough that no product below overflows.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;  // of a tensor
constexpr std::int64_t kMaxMapNumber = std::int64_t{1} << 20;
constexpr std::int32_t kMaxDevice = 1 << 20;

// Whether a number is one of an enumeration's, of which `last` is the last.
void check_constant(int value, int last, const char* what) {
  if (value < 0 || value > last) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(value));
  }
}

// A tensor, its extents checked so that no product of theirs overflows anywhere below.
fl::Tensor tensor_of(const fl_tensor& its) {
  fl::Tensor tensor;
  tensor.name = its.name;
  if (its.rank < 1 || its.rank > fl::kMaxRank) {
    throw std::invalid_argument("tensor '" + tensor.name + "' has " + std::to_string(its.rank) +
                                " dimensions; 1 to " + std::to_string(fl::kMaxRank) +
                                " are possible");
  }
  tensor.shape.assign(its.shape, its.shape + its.rank);
  std::int64_t volume = 1;
  for (std::int64_t extent : tensor.shape) {
    // By division, for the product might overflow before it is compared.
    volume = extent < 1 || extent > kMaxElements / volume ? 0 : volume * extent;
    if (volume == 0) {
      throw std::invalid_argument("tensor '" + tensor.name + "' has an extent of " +
                                  std::to_string(extent) + "; its elements have to number 1 to " +
                                  std::to_string(kMaxElements));
    }
  }
  check_constant(its.data_type, FL_FLOAT16, "data type");
  // The other side has three kinds more: a weight that is an operator's state, or that is summed
  // up, and an activation through which no gradient passes. Here they are flags.
  check_constant(its.kind, FL_SUMMED_WEIGHT, "kind of tensors");
  tensor.type = static_cast<fl::DataType>(its.data_type);
  tensor.is_state = its.kind == FL_OPERATOR_STATE;
  tensor.detached = its.kind == FL_DETACHED;
  tensor.summed = its.kind == FL_SUMMED_WEIGHT;
  tensor.kind = tensor.is_state || tensor.summed ? fl::TensorKind::weight
                : tensor.detached                ? fl::TensorKind::activation
                                                 : static_cast<fl::TensorKind>(its.kind);
  tensor.needs_gradient = its.needs_gradient != 0;
  if (tensor.is_state && tensor.needs_gradient) {
    throw std::invalid_argument("tensor '" + tensor.name + "' is a state, which has no gradient");
  }
  return tensor;
}

// An operand and its access map. Numerators, denominators and offsets are bounded, so that a bound
// of a tile times a numerator stays within 64 bits.
fl::Operand operand_of(const fl::Graph& graph, const fl::Operator& owner, const fl_operand& its) {
  const auto bad_map = [&] {
    return std::invalid_argument("operator '" + owner.name + "': bad access map");
  };
  check_constant(its.role, FL_ROLE_OUTPUT, "role");
  check_constant(its.combine, FL_COMBINE_LOG_SUM_EXP, "way to combine");
  if (its.once >> owner.dims.size() != 0) throw bad_map();
  fl::Operand operand;
  operand.tensor = fl::TensorId(its.tensor);
  operand.role = static_cast<fl::Role>(its.role);
  operand.saved_for_backward = its.saved_for_backward != 0;
  operand.once = its.once;
  operand.combine = static_cast<fl::Combine>(its.combine);
  operand.linear = its.linear != 0;
  const std::size_t rank = at(graph.tensors, operand.tensor, "tensor").shape.size();
  for (const fl_dim_map* m = its.map; m != its.map + rank; ++m) {
    const bool large = std::max({m->num, m->den, m->lo_offset, m->hi_offset}) > kMaxMapNumber ||
                       std::min(m->lo_offset, m->hi_offset) < -kMaxMapNumber;
    if (m->out_dim < -1 || m->out_dim >= static_cast<int>(owner.dims.size()) || m->num < 0 ||
        m->den < 1 || large || m->named_by < -1) {
      throw bad_map();
    }
    operand.map.push_back(
        {m->out_dim, m->num, m->den, m->lo_offset, m->hi_offset, m->named_by, m->prefix != 0});
  }
  return operand;
}

// An operator. What its dimensions and operands mean together is checked later, for the graph as a
// whole (check_graph).
fl::Operator operator_of(const fl::Graph& graph, const fl_operator& its) {
  fl::Operator op;
  op.name = its.name;
  op.type = its.type;
  op.is_loss = its.is_loss != 0;
  check_constant(its.n_dims, fl::kMaxRegionRank, "number of dimensions");
  for (int d = 0; d < its.n_dims; ++d) {
    check_constant(its.dim_kinds[d], FL_PART, "kind of dimensions");
    op.dims.push_back(static_cast<fl::DimKind>(its.dim_kinds[d]));
  }
  check_constant(its.n_reductions, fl::kMaxRegionRank, "number of reductions");
  op.reductions.assign(its.reductions, its.reductions + its.n_reductions);
  for (std::int64_t extent : op.reductions) {
    if (extent >= 1 && extent <= kMaxElements) continue;
    throw std::invalid_argument("operator '" + op.name + "' reduces an extent of " +
                                std::to_string(extent));
  }
  op.attributes = fl::attributes_of(its.attributes);
  for (int i = 0; i < its.n_operands; ++i) {
    op.operands.push_back(operand_of(graph, op, its.operands[i]));
  }
  return op;
}

}  // namespace

// One a thread, as errno is: calls from several threads do not mix their messages.
fl::LastError& fl::last_error() {
  thread_local LastError error;
  return error;
}

void fl_last_error(fl_error* out) {
  const fl::LastError& error = fl::last_error();
  *out = {error.message.c_str(), error.is_users ? 1 : 0,
          static_cast<std::int32_t>(error.needs.size()), error.needs.data()};
}

// Names that Python reads instead of repeating them: passes, fields and roles. They are listed at
// the first call and stay, as pointers to them are handed out.
void fl_vocabulary_of(fl_vocabulary* out) {
  struct Names {
    std::vector<fl_pass> passes;
    std::vector<const char*> fields, roles;

    Names() {
      for (const fl::PassRow& row : fl::all_passes()) {
        passes.push_back({row.name, static_cast<std::int32_t>(row.of),
                          static_cast<std::int32_t>(row.price),
                          static_cast<std::int32_t>(row.priced_as), row.closing ? 1 : 0});
      }
      for (int f = 0; f < fl::kFields; ++f) {
        fields.push_back(fl::name_of(static_cast<fl::Field>(f)));
      }
      for (int r = 0; r < fl::kRoles; ++r) {
        roles.push_back(fl::row_of(static_cast<fl::RequirementRole>(r)).name);
      }
    }
  };
  static const Names names;
  *out = {fl::kPasses,         fl::kFields,         fl::kRoles,
          names.passes.data(), names.fields.data(), names.roles.data()};
}

// Numbers and words, as kernels take them.
fl::AttributeList fl::attributes_of(const fl_attributes& its) {
  AttributeList attributes;
  for (int i = 0; i < its.n; ++i) attributes.emplace_back(its.names[i], its.values[i]);
  return attributes;
}

// Tensors come before the operators whose operands name them. What operators mean together is
// checked when all are there (check_graph).
fl::WantedGraph::WantedGraph(const fl_graph& its) {
  if (its.shard_bytes < 0) throw std::invalid_argument("a shard cannot have less than no bytes");
  if (its.fused_launches < 0) throw std::invalid_argument("less than no launches cannot be fused");
  graph.shard_bytes = its.shard_bytes;
  check_constant(its.n_devices, kMaxDevice, "number of devices");
  for (const std::int32_t* node = its.node_of; node != its.node_of + its.n_devices; ++node) {
    check_constant(*node, kMaxDevice, "node");
    graph.node_of.push_back(*node);
  }
  if (its.fused_launches > 0) graph.fused_launches = its.fused_launches;
  graph.keeps_tensors = its.keeps_tensors != 0;
  graph.micro_batches = its.micro_batches;
  if (its.micro_batches < 1 || its.micro_batches > kMaxMicroBatches) {
    throw std::invalid_argument(std::to_string(its.micro_batches) +
                                " micro-batches are not possible; 1 to " +
                                std::to_string(kMaxMicroBatches) + " are");
  }
  for (int t = 0; t < its.n_tensors; ++t) graph.tensors.push_back(tensor_of(its.tensors[t]));
  for (int op = 0; op < its.n_operators; ++op) {
    graph.operators.push_back(operator_of(graph, its.operators[op]));
  }
  check_graph(graph);
  for (int i = 0; i < its.n_outputs; ++i) {
    outputs.emplace_back(its.outputs[i]);
    at(graph.tensors, outputs.back(), "tensor");
  }
}

// Copies, since vectors of bits and of typed ids are no arrays of C.
fl::FactsArrays::FactsArrays(const GraphFacts& facts)
    : runs_(facts.runs.begin(), facts.runs.end()),
      table_(numbers(facts.table)),
      owner_(numbers(facts.owner)),
      backward_(facts.backward.begin(), facts.backward.end()),
      gradient_(facts.differentiable.begin(), facts.differentiable.end()),
      scales_(facts.optimizer.scales) {}

fl_graph_facts fl::FactsArrays::view() const {
  return {runs_.data(),     backward_.data(), table_.data(),
          gradient_.data(), owner_.data(),    scales_ ? 1 : 0};
}

// By operator, in ascending order: the caller may list configurations in any order, and leave some
// out where that makes sense. Only bounds are checked here that no graph can lift; whether
// operators and devices exist, and degrees fit, whoever has the graph checks (check_config).
std::map<fl::OpId, fl::ParallelConfig> fl::configs_of(const fl_strategy& strategy) {
  std::map<OpId, ParallelConfig> configs;
  for (const fl_config* its = strategy.configs; its != strategy.configs + strategy.n; ++its) {
    check_constant(its->n_degrees, kMaxRegionRank, "number of degrees");
    check_constant(its->sums, FL_SUMS_SHARDS, "way to sum");
    check_constant(its->n_devices, kMaxTasks, "number of tasks");
    ParallelConfig& config = configs[OpId(its->op)];
    config.degrees.assign(its->degrees, its->degrees + its->n_degrees);
    config.devices.assign(its->devices, its->devices + its->n_devices);
    config.sums = static_cast<Sums>(its->sums);
    config.hierarchical = its->hierarchical != 0;
    config.buffers = its->buffers;
    config.again = its->again != 0;
    check_constant(its->sharding, FL_SHARDING_WEIGHTS, "sharding");
    config.sharding = static_cast<Sharding>(its->sharding);
    if (its->buffers < 1 || its->buffers > kMaxMicroBatches) {
      throw std::invalid_argument("an operator cannot have " + std::to_string(its->buffers) +
                                  " buffers; 1 to " + std::to_string(kMaxMicroBatches) +
                                  " are possible");
    }
  }
  return configs;
}

// Pointers into the strategy that is kept beside them. Moving both leaves the pointers valid, since
// a moved vector keeps its memory; copying would not.
fl::StrategyArrays::StrategyArrays(Strategy strategy) : strategy_(std::move(strategy)) {
  for (const ParallelConfig& config : strategy_) {
    configs_.push_back(
        {static_cast<std::int32_t>(configs_.size()),
         static_cast<std::int32_t>(config.degrees.size()),
         static_cast<std::int32_t>(config.devices.size()), static_cast<std::int32_t>(config.sums),
         config.hierarchical ? 1 : 0, config.buffers, config.again ? 1 : 0,
         static_cast<std::int32_t>(config.sharding), config.degrees.data(), config.devices.data()});
  }
}

// All lists run on from launch to launch. A reader walks them in step, by the numbers of tasks and
// requirements that each launch states. All rectangles of a requirement have as many bounds, empty
// ones as well, so that one rank says how many.
fl::PlanArrays::PlanArrays(const fl::Plan& plan, const GraphFacts& its) : facts(its) {
  for (const fl::Launch& l : plan.launches) {
    launches.push_back({l.op.value, static_cast<int32_t>(l.pass), static_cast<int32_t>(l.runs),
                        l.tasks(), static_cast<int32_t>(l.requirements.size())});
    devices.insert(devices.end(), l.devices.begin(), l.devices.end());
    for (const fl::Requirement& r : l.requirements) {
      const int rank = r.rects.empty() ? 0 : r.rects.front().rank;
      requirements.push_back({r.operand, r.tensor.value, static_cast<int32_t>(r.field), r.index,
                              static_cast<int32_t>(r.privilege), rank,
                              static_cast<int32_t>(r.role)});
      for (std::size_t k = 0; k < r.rects.size(); ++k) {
        const fl::Rect& rect = r.rects[k];
        bounds.insert(bounds.end(), rect.lo.begin(), rect.lo.begin() + rank);
        bounds.insert(bounds.end(), rect.hi.begin(), rect.hi.begin() + rank);
        adds.push_back(!r.adds.empty() && r.adds[k]);
      }
    }
  }
  for (const fl::GradientStack& stack : plan.gradients) gradient_slots.push_back(stack.slots);
  for (const fl::ValueStack& stack : plan.values) value_slots.push_back(stack.slots);
  for (const fl::SummingNodes& nodes : plan.nodes) node_sums.push_back(nodes.count());
}

// A plan keeps a graph of its own: the arrays that the graph came in are the caller's.
fl_plan* fl_plan_create(const fl_graph* graph, const fl_strategy* strategy, int optimizer_states,
                        int clips, fl_plan_arrays* out) {
  return fl::guarded(static_cast<fl_plan*>(nullptr), [&] {
    fl::WantedGraph wanted(*graph);
    auto plan = std::make_unique<fl_plan>();
    plan->graph = std::move(wanted.graph);
    check_constant(optimizer_states, fl::kMaxStates, "number of optimizer states");
    // In ascending order, so that the i-th is that of operator i, unless one is missing: then there
    // are too few, and make_plan() refuses them.
    for (const auto& [op, config] : fl::configs_of(*strategy)) {
      at(plan->graph.operators, op, "operator");
      for (int device : config.devices) check_constant(device, kMaxDevice, "device");
      plan->strategy.push_back(config);
    }
    const fl::Optimizer optimizer{optimizer_states, clips != 0};
    // The graph is told first what the order of issue depends on; the facts follow from that, too.
    fl::set_order(plan->graph, plan->strategy);
    plan->plan = fl::make_plan(plan->graph, plan->strategy, wanted.outputs, optimizer);
    plan->arrays = std::make_shared<fl::PlanArrays>(
        plan->plan, fl::facts_of(plan->graph, wanted.outputs, optimizer));
    const fl::PlanArrays& all = *plan->arrays;
    *out = {static_cast<int32_t>(all.launches.size()),
            static_cast<int32_t>(all.requirements.size()),
            static_cast<int32_t>(all.devices.size()),
            static_cast<int32_t>(all.gradient_slots.size()),
            static_cast<int64_t>(all.adds.size()),
            static_cast<int64_t>(all.bounds.size()),
            all.launches.data(),
            all.requirements.data(),
            all.devices.data(),
            all.adds.data(),
            all.bounds.data(),
            all.gradient_slots.data(),
            all.value_slots.data(),
            all.node_sums.data(),
            plan->plan.elements.data(),
            all.facts.view()};
    return plan.release();
  });
}

void fl_plan_destroy(fl_plan* plan) { delete plan; }

int fl_plan_verify(const fl_plan* plan, int n_devices) {
  return fl::guarded(-1, [&] {
    fl::verify(plan->graph, plan->plan, n_devices);
    return 0;
  });
}

int64_t fl_plan_bytes_on_device(const fl_plan* plan, int device) {
  return fl::guarded(std::int64_t{-1},
                     [&] { return fl::bytes_on_device(plan->graph, plan->plan, device); });
}
