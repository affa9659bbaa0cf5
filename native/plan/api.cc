// The C ABI of libflexlegion_core: checks indices, converts flat arrays, and calls the plan.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "plan/fusion.h"
#include "plan/handles.h"
#include "plan/verify.h"
#include "support/error.h"

namespace fl = flexlegion;

namespace {

using fl::same;
static_assert(same(FL_FLOAT32, fl::DataType::float32) && same(FL_INT32, fl::DataType::int32));
static_assert(same(FL_INPUT, fl::TensorKind::input) && same(FL_WEIGHT, fl::TensorKind::weight) &&
              same(FL_ACTIVATION, fl::TensorKind::activation));
static_assert(same(FL_ROLE_INPUT, fl::Role::input) && same(FL_ROLE_WEIGHT, fl::Role::weight) &&
              same(FL_ROLE_OUTPUT, fl::Role::output));
static_assert(same(FL_SAMPLE, fl::DimKind::sample) && same(FL_ATTRIBUTE, fl::DimKind::attribute) &&
              same(FL_PARAMETER, fl::DimKind::parameter) && same(FL_NONE, fl::DimKind::none) &&
              same(FL_REDUCTION, fl::DimKind::reduction));
static_assert(same(FL_COMBINE_SUM, fl::Combine::sum) && same(FL_COMBINE_MAX, fl::Combine::max) &&
              same(FL_COMBINE_LOG_SUM_EXP, fl::Combine::log_sum_exp));
static_assert(same(FL_SUMS_READERS, fl::Sums::readers) && same(FL_SUMS_SHARDS, fl::Sums::shards));
static_assert(same(FL_LOAD, fl::Pass::load) && same(FL_FORWARD, fl::Pass::forward) &&
              same(FL_SUM, fl::Pass::sum) && same(FL_BACKWARD, fl::Pass::backward) &&
              same(FL_NORM, fl::Pass::norm) && same(FL_CLIP, fl::Pass::clip) &&
              same(FL_UPDATE, fl::Pass::update));
static_assert(same(FL_VALUE, fl::Field::value) && same(FL_PARTIAL, fl::Field::partial) &&
              same(FL_GRADIENT, fl::Field::gradient) && same(FL_STATE, fl::Field::state) &&
              same(FL_NORMS, fl::Field::norms) && same(FL_TOTAL_NORM, fl::Field::total_norm));
using Role = fl::RequirementRole;
static_assert(same(FL_USE_LOADED, Role::loaded) && same(FL_USE_INPUT, Role::input) &&
              same(FL_USE_WEIGHT, Role::weight) &&
              same(FL_USE_OPERATOR_STATE, Role::operator_state) &&
              same(FL_USE_OUTPUT, Role::output) && same(FL_USE_PARTIAL, Role::partial) &&
              same(FL_USE_SUMMED, Role::summed) && same(FL_USE_SAVED, Role::saved) &&
              same(FL_USE_OUTPUT_GRADIENT, Role::output_gradient) &&
              same(FL_USE_CONTRIBUTION, Role::contribution) &&
              same(FL_USE_WEIGHT_GRADIENT, Role::weight_gradient) &&
              same(FL_USE_LOOKED_UP_TOKENS, Role::looked_up_tokens) &&
              same(FL_USE_LOOKED_UP_GRADIENT, Role::looked_up_gradient) &&
              same(FL_USE_NORM, Role::norm) && same(FL_USE_ALL_NORMS, Role::all_norms) &&
              same(FL_USE_TOTAL_NORM, Role::total_norm) && same(FL_USE_UPDATED, Role::updated) &&
              same(FL_USE_OPTIMIZER_STATE, Role::optimizer_state) &&
              same(FL_USE_CLIPPED_BY, Role::clipped_by));
static_assert(same(FL_READ, fl::Privilege::read) && same(FL_WRITE, fl::Privilege::write) &&
              same(FL_READ_WRITE, fl::Privilege::read_write));
static_assert(same(FL_TRAINS, fl::kTrains) && same(FL_EVALUATES, fl::kEvaluates) &&
              same(FL_PREDICTS, fl::kPredicts));
static_assert(FL_MAX_RANK == fl::kMaxRank && FL_MAX_SPACE == fl::kMaxRegionRank);

template <typename Items>
auto& at(Items& items, int index, const char* what) {
  if (index < 0 || index >= static_cast<int>(items.size())) {
    throw std::out_of_range("no " + std::string(what) + " " + std::to_string(index));
  }
  return items[static_cast<std::size_t>(index)];
}

constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;  // of a tensor
constexpr std::int64_t kMaxMapNumber = std::int64_t{1} << 20;
constexpr std::int32_t kMaxDevice = 1 << 20;

void check_constant(int value, int last, const char* what) {
  if (value < 0 || value > last) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(value));
  }
}

}  // namespace

const char* fl_last_error(int* is_users) {
  *is_users = fl::last_error_is_users() ? 1 : 0;
  return fl::last_error().c_str();
}

fl_graph* fl_graph_create(int64_t shard_bytes, int fused_launches) {
  return fl::guarded(static_cast<fl_graph*>(nullptr), [&] {
    if (shard_bytes < 0) throw std::invalid_argument("a shard cannot have less than no bytes");
    if (fused_launches < 0) throw std::invalid_argument("less than no launches cannot be fused");
    auto graph = std::make_unique<fl_graph>();
    graph->graph.shard_bytes = shard_bytes;
    if (fused_launches > 0) graph->graph.fused_launches = fused_launches;
    return graph.release();
  });
}

void fl_graph_destroy(fl_graph* graph) { delete graph; }

int fl_graph_add_tensor(fl_graph* graph, const char* name, int rank, const int64_t* shape,
                        int data_type, int kind, int needs_gradient) {
  return fl::guarded(-1, [&] {
    if (rank < 1 || rank > fl::kMaxRank) {
      throw std::invalid_argument("tensor '" + std::string(name) + "' has " + std::to_string(rank) +
                                  " dimensions; 1 to " + std::to_string(fl::kMaxRank) +
                                  " are possible");
    }
    std::int64_t volume = 1;
    for (int d = 0; d < rank; ++d) {
      volume = shape[d] < 1 || shape[d] > kMaxElements / volume ? 0 : volume * shape[d];
      if (volume == 0) {
        throw std::invalid_argument(
            "tensor '" + std::string(name) + "' has an extent of " + std::to_string(shape[d]) +
            "; its elements have to number 1 to " + std::to_string(kMaxElements));
      }
    }
    check_constant(data_type, FL_INT32, "data type");
    check_constant(kind, FL_DETACHED, "kind of tensors");
    fl::Tensor tensor;
    tensor.name = name;
    tensor.shape.assign(shape, shape + rank);
    tensor.type = static_cast<fl::DataType>(data_type);
    tensor.is_state = kind == FL_OPERATOR_STATE;
    tensor.detached = kind == FL_DETACHED;
    tensor.kind = tensor.is_state   ? fl::TensorKind::weight
                  : tensor.detached ? fl::TensorKind::activation
                                    : static_cast<fl::TensorKind>(kind);
    tensor.needs_gradient = needs_gradient != 0;
    if (tensor.is_state && tensor.needs_gradient) {
      throw std::invalid_argument("tensor '" + tensor.name + "' is a state, which has no gradient");
    }
    graph->finished.reset();
    graph->graph.tensors.push_back(std::move(tensor));
    return static_cast<int>(graph->graph.tensors.size()) - 1;
  });
}

int fl_graph_add_operator(fl_graph* graph, const char* name, const char* type, int is_loss,
                          int n_dims, const int32_t* dim_kinds, int n_reductions,
                          const int64_t* reductions, int n_attributes,
                          const char* const* attribute_names, const char* const* attribute_values) {
  return fl::guarded(-1, [&] {
    fl::Operator op;
    op.name = name;
    op.type = type;
    op.is_loss = is_loss != 0;
    for (int d = 0; d < n_dims; ++d)
      check_constant(dim_kinds[d], FL_REDUCTION, "kind of dimensions");
    for (int d = 0; d < n_dims; ++d) op.dims.push_back(static_cast<fl::DimKind>(dim_kinds[d]));
    check_constant(n_reductions, fl::kMaxRegionRank, "number of reductions");
    op.reductions.assign(reductions, reductions + n_reductions);
    for (std::int64_t extent : op.reductions) {
      if (extent >= 1 && extent <= kMaxElements) continue;
      throw std::invalid_argument("operator '" + op.name + "' reduces an extent of " +
                                  std::to_string(extent));
    }
    for (int a = 0; a < n_attributes; ++a) {
      op.attributes.emplace_back(attribute_names[a], attribute_values[a]);
    }
    graph->finished.reset();
    graph->graph.operators.push_back(std::move(op));
    return static_cast<int>(graph->graph.operators.size()) - 1;
  });
}

int fl_graph_add_operand(fl_graph* graph, int op, int tensor, int role, int saved_for_backward,
                         const fl_dim_map* map, uint32_t once, int combine) {
  return fl::guarded(-1, [&] {
    fl::Operator& owner = at(graph->graph.operators, op, "operator");
    fl::Operand operand;
    operand.tensor = tensor;
    operand.role = static_cast<fl::Role>(role);
    operand.saved_for_backward = saved_for_backward != 0;
    check_constant(role, FL_ROLE_OUTPUT, "role");
    check_constant(combine, FL_COMBINE_LOG_SUM_EXP, "way to combine");
    operand.once = once;
    operand.combine = static_cast<fl::Combine>(combine);
    if (once >> owner.dims.size() != 0) {
      throw std::invalid_argument("operator '" + owner.name + "': bad access map");
    }
    const std::size_t rank = at(graph->graph.tensors, tensor, "tensor").shape.size();
    for (std::size_t d = 0; d < rank; ++d) {
      const fl_dim_map& m = map[d];
      const bool large = std::max({m.num, m.den, m.lo_offset, m.hi_offset}) > kMaxMapNumber ||
                         std::min(m.lo_offset, m.hi_offset) < -kMaxMapNumber;
      if (m.out_dim < -1 || m.out_dim >= static_cast<int>(owner.dims.size()) || m.num < 0 ||
          m.den < 1 || large || m.named_by < -1) {
        throw std::invalid_argument("operator '" + owner.name + "': bad access map");
      }
      operand.map.push_back(
          {m.out_dim, m.num, m.den, m.lo_offset, m.hi_offset, m.named_by, m.prefix != 0});
    }
    graph->finished.reset();
    owner.operands.push_back(std::move(operand));
    return static_cast<int>(owner.operands.size()) - 1;
  });
}

fl::FinishedGraph::FinishedGraph(const fl::Graph& graph, std::vector<int> predicted)
    : outputs(std::move(predicted)), facts(fl::facts_of(graph, outputs)) {
  runs.assign(facts.runs.begin(), facts.runs.end());
  backward.assign(facts.backward.begin(), facts.backward.end());
  gradient.assign(facts.differentiable.begin(), facts.differentiable.end());
}

int fl_graph_finish(fl_graph* graph, int n_outputs, const int32_t* outputs, fl_graph_facts* out) {
  return fl::guarded(-1, [&] {
    graph->finished.reset();
    fl::check_graph(graph->graph);
    std::vector<int> wanted(outputs, outputs + n_outputs);
    for (int output : wanted) at(graph->graph.tensors, output, "tensor");
    const auto& all = graph->finished.emplace(graph->graph, std::move(wanted));
    *out = {all.runs.data(), all.backward.data(), all.facts.table.data(), all.gradient.data(),
            all.facts.owner.data()};
    return 0;
  });
}

const fl::FinishedGraph& fl::finished(const fl_graph& graph) {
  if (!graph.finished) throw std::invalid_argument("the graph is not finished");
  return *graph.finished;
}

fl_strategy* fl_strategy_create(void) {
  return fl::guarded(static_cast<fl_strategy*>(nullptr), [] { return new fl_strategy; });
}

void fl_strategy_destroy(fl_strategy* strategy) { delete strategy; }

int fl_strategy_set(fl_strategy* strategy, int op, int n_degrees, const int32_t* degrees,
                    int n_devices, const int32_t* devices, int sums) {
  return fl::guarded(-1, [&] {
    check_constant(n_degrees, fl::kMaxRegionRank, "number of degrees");
    check_constant(sums, FL_SUMS_SHARDS, "way to sum");
    check_constant(n_devices, fl::kMaxTasks, "number of tasks");
    fl::ParallelConfig& config = strategy->configs[op];
    config.degrees.assign(degrees, degrees + n_degrees);
    config.devices.assign(devices, devices + n_devices);
    config.sums = static_cast<fl::Sums>(sums);
    return 0;
  });
}

int fl_strategy_get(const fl_strategy* strategy, int op, fl_config* out) {
  return fl::guarded(-1, [&] {
    const auto found = strategy->configs.find(op);
    if (found == strategy->configs.end()) {
      throw std::out_of_range("no configuration of operator " + std::to_string(op));
    }
    const auto& degrees = found->second.degrees;
    const auto& devices = found->second.devices;
    *out = {static_cast<int32_t>(degrees.size()), static_cast<int32_t>(devices.size()),
            static_cast<int32_t>(found->second.sums), degrees.data(), devices.data()};
    return 0;
  });
}

fl::PlanArrays::PlanArrays(const fl::Plan& plan) {
  for (const fl::Launch& l : plan.launches) {
    launches.push_back({l.op, static_cast<int32_t>(l.pass), static_cast<int32_t>(l.runs), l.tasks(),
                        static_cast<int32_t>(l.requirements.size())});
    devices.insert(devices.end(), l.devices.begin(), l.devices.end());
    for (const fl::Requirement& r : l.requirements) {
      const int rank = r.rects.empty() ? 0 : r.rects.front().rank;
      requirements.push_back({r.operand, r.tensor, static_cast<int32_t>(r.field), r.state,
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
}

fl_plan* fl_plan_create(const fl_graph* graph, const fl_strategy* strategy, int optimizer_states,
                        int clips, fl_plan_arrays* out) {
  return fl::guarded(static_cast<fl_plan*>(nullptr), [&] {
    auto plan = std::make_unique<fl_plan>();
    plan->graph = graph->graph;
    check_constant(optimizer_states, fl::kMaxStates, "number of optimizer states");
    for (const auto& [op, config] : strategy->configs) {
      at(plan->graph.operators, op, "operator");
      for (int device : config.devices) check_constant(device, kMaxDevice, "device");
      plan->strategy.push_back(config);
    }
    plan->plan = fl::make_plan(plan->graph, plan->strategy, fl::finished(*graph).outputs,
                               {optimizer_states, clips != 0});
    plan->arrays = std::make_shared<fl::PlanArrays>(plan->plan);
    const fl::PlanArrays& all = *plan->arrays;
    *out = {static_cast<int32_t>(all.launches.size()),
            static_cast<int32_t>(all.requirements.size()),
            static_cast<int32_t>(all.devices.size()),
            static_cast<int32_t>(all.gradient_slots.size()),
            plan->plan.norms,
            static_cast<int64_t>(all.adds.size()),
            static_cast<int64_t>(all.bounds.size()),
            all.launches.data(),
            all.requirements.data(),
            all.devices.data(),
            all.adds.data(),
            all.bounds.data(),
            all.gradient_slots.data(),
            all.value_slots.data()};
    return plan.release();
  });
}

void fl_plan_destroy(fl_plan* plan) { delete plan; }

int fl_plan_fused(const fl_plan* plan, unsigned runs, int n_devices, const int32_t* memory_of,
                  int32_t* run) {
  return fl::guarded(-1, [&] {
    for (const fl::Launch& launch : plan->plan.launches) {
      for (int device : launch.devices) check_constant(device, n_devices - 1, "device");
    }
    const auto numbers =
        fl::run_numbers(plan->graph, plan->plan, runs, {memory_of, memory_of + n_devices},
                        plan->graph.fused_launches);
    std::copy(numbers.begin(), numbers.end(), run);
    return 0;
  });
}

int fl_plan_verify(const fl_plan* plan, int n_devices) {
  return fl::guarded(-1, [&] {
    fl::verify(plan->graph, plan->plan, n_devices);
    return 0;
  });
}

int64_t fl_plan_bytes_on_device(const fl_plan* plan, int device) {
  return fl::guarded(std::int64_t{-1}, [&] { return fl::bytes_on_device(plan->plan, device); });
}
