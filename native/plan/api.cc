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

template <typename Items>
auto& at(Items& items, int index, const char* what) {
  if (index < 0 || index >= static_cast<int>(items.size())) {
    throw std::out_of_range("no " + std::string(what) + " " + std::to_string(index));
  }
  return items[static_cast<std::size_t>(index)];
}

constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;  // of a tensor
constexpr std::int64_t kMaxMapNumber = std::int64_t{1} << 20;
constexpr int kMaxStates = 1000;
constexpr std::int32_t kMaxDevice = 1 << 20;

void check_constant(int value, int last, const char* what) {
  if (value < 0 || value > last) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(value));
  }
}

const fl::Requirement& requirement_at(const fl_plan* plan, int launch, int requirement) {
  return at(at(plan->plan.launches, launch, "launch").requirements, requirement, "requirement");
}

}  // namespace

const char* fl_last_error(void) { return fl::last_error().c_str(); }
int fl_last_error_is_users(void) { return fl::last_error_is_users() ? 1 : 0; }

fl_graph* fl_graph_create(void) {
  return fl::guarded(static_cast<fl_graph*>(nullptr), [] { return new fl_graph; });
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
    check_constant(kind, FL_OPERATOR_STATE, "kind of tensors");
    fl::Tensor tensor;
    tensor.name = name;
    tensor.shape.assign(shape, shape + rank);
    tensor.type = static_cast<fl::DataType>(data_type);
    tensor.is_table = kind == FL_TABLE;
    tensor.is_state = kind == FL_OPERATOR_STATE;
    tensor.kind = tensor.is_table || tensor.is_state ? fl::TensorKind::weight
                                                     : static_cast<fl::TensorKind>(kind);
    tensor.needs_gradient = needs_gradient != 0;
    if (tensor.is_state && tensor.needs_gradient) {
      throw std::invalid_argument("tensor '" + tensor.name + "' is a state, which has no gradient");
    }
    graph->graph.tensors.push_back(std::move(tensor));
    return static_cast<int>(graph->graph.tensors.size()) - 1;
  });
}

int fl_graph_add_operator(fl_graph* graph, const char* name, const char* type, int is_loss,
                          int n_dims, const int32_t* dim_kinds, int n_attributes,
                          const char* const* attribute_names, const char* const* attribute_values) {
  return fl::guarded(-1, [&] {
    fl::Operator op;
    op.name = name;
    op.type = type;
    op.is_loss = is_loss != 0;
    for (int d = 0; d < n_dims; ++d) check_constant(dim_kinds[d], FL_NONE, "kind of dimensions");
    for (int d = 0; d < n_dims; ++d) op.dims.push_back(static_cast<fl::DimKind>(dim_kinds[d]));
    for (int a = 0; a < n_attributes; ++a) {
      op.attributes.emplace_back(attribute_names[a], attribute_values[a]);
    }
    graph->graph.operators.push_back(std::move(op));
    return static_cast<int>(graph->graph.operators.size()) - 1;
  });
}

int fl_graph_add_operand(fl_graph* graph, int op, int tensor, int role, int saved_for_backward,
                         const int64_t* map) {
  return fl::guarded(-1, [&] {
    fl::Operator& owner = at(graph->graph.operators, op, "operator");
    fl::Operand operand;
    operand.tensor = tensor;
    operand.role = static_cast<fl::Role>(role);
    operand.saved_for_backward = saved_for_backward != 0;
    check_constant(role, FL_ROLE_OUTPUT, "role");
    const std::size_t rank = at(graph->graph.tensors, tensor, "tensor").shape.size();
    for (std::size_t d = 0; d < rank; ++d, map += 5) {
      const bool large = std::any_of(
          map + 1, map + 5, [](std::int64_t x) { return x > kMaxMapNumber || x < -kMaxMapNumber; });
      if (map[0] < -1 || map[0] >= static_cast<std::int64_t>(owner.dims.size()) || map[1] < 0 ||
          map[2] < 1 || large) {
        throw std::invalid_argument("operator '" + owner.name + "': bad access map");
      }
      operand.map.push_back({static_cast<int>(map[0]), map[1], map[2], map[3], map[4]});
    }
    owner.operands.push_back(std::move(operand));
    return static_cast<int>(owner.operands.size()) - 1;
  });
}

int fl_graph_set_shard_bytes(fl_graph* graph, int64_t bytes) {
  return fl::guarded(-1, [&] {
    if (bytes < 0) throw std::invalid_argument("a shard cannot have less than no bytes");
    graph->graph.shard_bytes = bytes;
    return 0;
  });
}

fl_plan* fl_plan_create(const fl_graph* graph, int n_degrees, const int32_t* degrees, int n_devices,
                        const int32_t* devices, int n_outputs, const int32_t* outputs,
                        int optimizer_states, int clips) {
  return fl::guarded(static_cast<fl_plan*>(nullptr), [&] {
    auto plan = std::make_unique<fl_plan>();
    plan->graph = graph->graph;
    fl::check_graph(plan->graph);
    const std::vector<int> wanted(outputs, outputs + n_outputs);
    for (int output : wanted) at(plan->graph.tensors, output, "tensor");
    check_constant(optimizer_states, kMaxStates, "number of optimizer states");
    const int32_t* const last_degree = degrees + n_degrees;
    const int32_t* const last_device = devices + n_devices;
    for (const fl::Operator& op : plan->graph.operators) {
      fl::ParallelConfig config;
      std::int64_t tasks = 1;
      for (std::size_t d = 0; d < op.dims.size() && degrees < last_degree; ++d) {
        config.degrees.push_back(*degrees++);
        tasks = std::clamp<std::int64_t>(tasks * config.degrees.back(), 0, fl::kMaxTasks);
      }
      const std::int64_t left = last_device - devices;
      const int32_t* const end = devices + std::clamp<std::int64_t>(tasks, 0, left);
      config.devices.assign(devices, end);
      devices = end;
      for (int device : config.devices) check_constant(device, kMaxDevice, "device");
      plan->strategy.push_back(std::move(config));
    }
    plan->plan = fl::make_plan(plan->graph, plan->strategy, wanted, {optimizer_states, clips != 0});
    return plan.release();
  });
}

void fl_plan_destroy(fl_plan* plan) { delete plan; }

int fl_plan_launches(const fl_plan* plan) { return static_cast<int>(plan->plan.launches.size()); }

int fl_plan_launch(const fl_plan* plan, int launch, fl_launch* out) {
  return fl::guarded(-1, [&] {
    const fl::Launch& l = at(plan->plan.launches, launch, "launch");
    *out = {l.op, static_cast<int32_t>(l.pass), static_cast<int32_t>(l.runs), l.tasks(),
            static_cast<int32_t>(l.requirements.size())};
    return 0;
  });
}

int fl_plan_devices(const fl_plan* plan, int launch, int32_t* devices) {
  return fl::guarded(-1, [&] {
    const fl::Launch& l = at(plan->plan.launches, launch, "launch");
    std::copy(l.devices.begin(), l.devices.end(), devices);
    return 0;
  });
}

int fl_plan_requirement(const fl_plan* plan, int launch, int requirement, fl_requirement* out) {
  return fl::guarded(-1, [&] {
    const fl::Requirement& r = requirement_at(plan, launch, requirement);
    *out = {r.operand,
            r.tensor,
            static_cast<int32_t>(r.field),
            r.state,
            static_cast<int32_t>(r.privilege),
            r.rects.empty() ? 0 : r.rects.front().rank,
            static_cast<int32_t>(r.role)};
    return 0;
  });
}

int fl_plan_rects(const fl_plan* plan, int launch, int requirement, int64_t* rects, uint8_t* adds) {
  return fl::guarded(-1, [&] {
    const fl::Requirement& r = requirement_at(plan, launch, requirement);
    for (std::size_t k = 0; k < r.rects.size(); ++k) {
      const fl::Rect& rect = r.rects[k];
      rects = std::copy_n(rect.lo.begin(), rect.rank, rects);
      rects = std::copy_n(rect.hi.begin(), rect.rank, rects);
      adds[k] = !r.adds.empty() && r.adds[k];
    }
    return 0;
  });
}

int fl_plan_norms(const fl_plan* plan) { return plan->plan.norms; }

int fl_plan_gradient_slots(const fl_plan* plan, int tensor) {
  return fl::guarded(-1, [&] { return at(plan->plan.gradients, tensor, "tensor").slots; });
}

int fl_plan_fused(const fl_plan* plan, unsigned runs, int n_devices, const int32_t* memory_of,
                  int32_t* run) {
  return fl::guarded(-1, [&] {
    for (const fl::Launch& launch : plan->plan.launches) {
      for (int device : launch.devices) check_constant(device, n_devices - 1, "device");
    }
    const auto numbers =
        fl::run_numbers(plan->graph, plan->plan, runs, {memory_of, memory_of + n_devices});
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
