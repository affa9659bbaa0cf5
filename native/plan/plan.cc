// From a graph and a strategy to the plan (plan.h): the launches in the order of issue, each with
// its requirements, and then the slots of partial values.
//
// 1. For each operator, how many partial values its outputs have, and whether a sum launch combines
//    them.
// 2. For each launch that the graph asks for, in the order of issue: its tasks and rectangles
//    (launches.h). One whose tasks the strategy does not ask for is left out.
// 3. For each of its requirements, the slots. What computes a value with a split reduction writes
//    the slot of its part. Each contribution to a gradient gets a slot in which nothing overlaps it
//    (Contributions); who reads the gradient reads the range of slots in which anything overlaps
//    its tile.
//
// Slots depend on all launches before, so this is done in one pass over the order of issue. Costs:
// the number of (requirement, task) pairs, times the pieces of a gradient that a new piece is
// compared with.
//
// Debug builds verify every plan that is made (verify.h).
#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "plan/rules.h"
#include "plan/schedule.h"
#include "plan/verify.h"

namespace flexlegion {

namespace {

// The builder holds what grows while launches are placed: the stacks of gradients, and the plan
// itself.
class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const Strategy& strategy, const std::vector<TensorId>& outputs,
              Optimizer optimizer)
      : graph_(graph), strategy_(strategy), facts_(facts_of(graph, outputs, optimizer)) {
    plan_.optimizer = facts_.optimizer;
    plan_.micro_batches = graph.micro_batches;
  }

  // Contributions are known when the last backward launch was placed; readers of a gradient come
  // later in the order of issue.
  Plan build() {
    check();
    contributions_.resize(graph_.tensors.size());
    numbers_.resize(graph_.tensors.size());
    plan_.gradients.resize(graph_.tensors.size());
    plan_.values.resize(graph_.tensors.size());
    plan_.nodes.resize(graph_.tensors.size());
    plan_.sharding = facts_.sharding;
    plan_.value_buffers.assign(graph_.tensors.size(), 1);
    plan_.gradient_buffers.assign(graph_.tensors.size(), 1);
    plan_.configured_buffers.assign(graph_.tensors.size(), 1);
    for (OpId op : graph_.operators.ids()) {
      if (facts_.runs[op] != 0) find_values(op);
      if (facts_.runs[op] != 0) find_buffers(op);
      if (strategy_[op].hierarchical) find_nodes(op);
    }
    plan_.service = ServiceOrder(
        graph_, [this](OpId op) -> const std::vector<int>& { return strategy_[op].devices; });
    for (const LaunchKey& key : issue_order(graph_, facts_)) {
      Launch launch = launch_of(graph_, facts_, key, strategy_[decides(graph_, facts_, key)]);
      if (launch.tasks() == 0)
        continue;  // partial values that nobody combines before they are read, say
      for (Requirement& r : launch.requirements) place(r, launch);
      launch.visit = plan_.service.visit(graph_, facts_, key);
      plan_.launches.push_back(std::move(launch));
    }
    number_slots();
    for (TensorId t : contributions_.ids()) {
      plan_.gradients[t].fully_written = fully_written(t);
    }
    find_tenancies(graph_, facts_, plan_);
    return std::move(plan_);
  }

 private:
  // A plan is made of what was checked; everything below relies on it.
  void check() const {
    if (strategy_.size() != graph_.operators.size()) {
      throw std::invalid_argument("a strategy needs one configuration an operator");
    }
    for (OpId op : strategy_.ids()) check_config(graph_, op, strategy_[op]);
  }

  // Which outputs of an operator have partial values.
  void find_values(OpId op) {
    const Operator& its = graph_.operators[op];
    const ParallelConfig& config = strategy_[op];
    const int slots = partial_values(its, config.degrees);
    const bool summed = sums_by_shards(its, config);
    for (int i : its.outputs()) {
      const Operand& output = its.operands[i];
      plan_.values[output.tensor] = {slots, summed, output.combine};
    }
  }

  // How many registers rounds take in turn. An input has those of its first reader.
  void find_buffers(OpId op) {
    for (const Operand& o : graph_.operators[op].operands) {
      const Tensor& tensor = graph_.tensors[o.tensor];
      const bool decides = tensor.kind == TensorKind::input
                               ? load_source(graph_, facts_, o.tensor).first_reader == op
                               : o.role == Role::output && tensor.kind != TensorKind::weight;
      if (!decides) continue;
      const auto devices_of = [this](OpId its) -> const auto& { return strategy_[its].devices; };
      const auto of = [&](Field field) {
        const Place place{o.tensor, field};
        const bool stays = stays_on_devices(facts_, place, op, devices_of);
        return buffers_of(graph_, facts_, place, strategy_[op].buffers, stays);
      };
      plan_.configured_buffers[o.tensor] = std::min(strategy_[op].buffers, graph_.micro_batches);
      plan_.value_buffers[o.tensor] = of(Field::value);
      plan_.gradient_buffers[o.tensor] = of(Field::gradient);
    }
  }

  // Which nodes sum the gradients of an operator's weights first.
  void find_nodes(OpId op) {
    const ParallelConfig& config = strategy_[op];
    const Sharing sharing{op, Shares::weights, config.hierarchical, &config.devices};
    for (int i : facts_.owned_weights(graph_, op)) {
      const Operand& weight = graph_.operators[op].operands[i];
      const auto parts = distinct(accessed_rects(graph_, op, weight, config.degrees));
      plan_.nodes[weight.tensor] = summing_nodes(graph_, weight.tensor, parts, sharing);
    }
  }

  // Without sums inside nodes, all contributions count as one node's.
  int node_of(TensorId weight, int device) const {
    const SummingNodes& nodes = plan_.nodes[weight];
    return nodes.any() ? nodes.of(graph_, device) : 0;
  }

  // Of gradients that are summed inside nodes, slots get the numbers that make those of a node
  // follow each other, once all contributions are known. Who reads them has asked for a node's.
  void number_slots() {
    std::map<TensorId, std::vector<int>> numbers;
    for (TensorId t : plan_.nodes.ids()) {
      if (plan_.nodes[t].any()) numbers.emplace(t, contributions_[t].numbers());
    }
    if (numbers.empty()) return;
    for (Launch& launch : plan_.launches) {
      for (Requirement& r : launch.requirements) {
        const auto its = numbers.find(r.tensor);
        if (r.role != RequirementRole::contribution || its == numbers.end()) continue;
        for (Rect& rect : r.rects) {
          if (rect.empty()) continue;
          rect.lo[0] = its->second[static_cast<std::size_t>(rect.lo[0])];
          rect.hi[0] = rect.lo[0] + 1;
        }
      }
    }
  }

  // Says where partial values lie, and what tasks find for the iteration.
  // An empty rectangle keeps its task's place in the list, and touches nothing.
  void place(Requirement& r, const Launch& launch) {
    if (r.field == Field::value || r.field == Field::partial || r.field == Field::copy) {
      place_value(r, launch);
    }
    if (r.role == RequirementRole::contribution) {
      contribute(r, launch.devices);
    } else if (r.role == RequirementRole::node_gradient || r.field == Field::node_sums) {
      place_in_node(r, launch.devices);
    } else if (r.sums_gradient() && plan_.nodes[r.tensor].any()) {
      r.field = Field::node_sums;
      for (Rect& rect : r.rects) rect = rect.in_slots(0, plan_.nodes[r.tensor].count());
    } else if (r.field == Field::gradient) {
      for (Rect& rect : r.rects) rect = contributions_[r.tensor].stacked(rect);
    } else if (r.tensor.none()) {
      int& elements = plan_.elements[static_cast<std::size_t>(r.field)];
      for (Rect& rect : r.rects) {
        rect.lo[0] = r.privilege == Privilege::read ? 0 : elements++;
        rect.hi[0] = elements;
      }
    }
  }

  // A task of a node reads all slots of the node, and writes the node's one.
  void place_in_node(Requirement& r, const std::vector<int>& devices) {
    for (std::size_t k = 0; k < r.rects.size(); ++k) {
      const int node = node_of(r.tensor, devices[k]);
      const Slots its = r.field == Field::node_sums ? Slots{node, node + 1}
                                                    : contributions_[r.tensor].of_node(node);
      r.rects[k] = r.rects[k].in_slots(its.first, its.last);
    }
  }

  // Where a value has slots, a task writes the slot of its part, and reads the slots of its terms.
  void place_value(Requirement& r, const Launch& launch) {
    if (launch.op.none()) return;  // what is loaded has no partial values
    const Operand& operand = graph_.operators[launch.op].operands[r.operand];
    const TermUse use = term_use(plan_.values[r.tensor], r.role, operand, launch.parts);
    if (use.slots > 1) r.field = Field::partial;
    if (use.slots == 1 && use.parts == 1) return;
    for (int k = 0; k < static_cast<int>(r.rects.size()); ++k) {
      Rect& rect = r.rects[k];
      const Slots its = use.of_task(k);
      if (its.first == its.last) rect.hi = rect.lo;
      if (use.slots > 1) rect = rect.in_slots(its.first, its.last);
    }
  }

  // Puts each task's contribution to a gradient into a slot.
  // The slot is exclusive: two tasks never write the same memory, so no sum needs atomic additions,
  // and its order is the plan's.
  void contribute(Requirement& r, const std::vector<int>& devices) {
    const int launch = static_cast<int>(plan_.launches.size());
    Contributions& contributions = contributions_[r.tensor];
    auto& numbers = numbers_[r.tensor];
    contributions.next_requirement();
    for (int k = 0; k < static_cast<int>(r.rects.size()); ++k) {
      Rect& rect = r.rects[k];
      if (rect.empty()) {
        rect = rect.in_slots(0, 1);
        r.adds.push_back(false);
        continue;
      }
      // Equal rectangles get equal numbers, so that pieces are compared by number first.
      const int number = numbers.try_emplace(rect, static_cast<int>(numbers.size())).first->second;
      const int node = node_of(r.tensor, devices[k]);
      const auto entry = contributions.add(number, rect, devices[k], launch, k, node);
      const int slot = contributions.pieces()[entry.piece].slot;
      rect = rect.in_slots(slot, slot + 1);
      r.adds.push_back(entry.adds);
      if (entry.adds) r.privilege = Privilege::read_write;
    }
    plan_.gradients[r.tensor].slots = std::max(1, contributions.slots());
  }

  bool fully_written(TensorId tensor) const {
    const Contributions& contributions = contributions_[tensor];
    return contributions.slots() > 0 &&
           contributions.fully_written(Rect::of_shape(graph_.tensors[tensor].shape).volume());
  }

  const Graph& graph_;
  const Strategy& strategy_;
  const GraphFacts facts_;
  // Of each tensor's gradient; and a number for each rectangle.
  IdVector<TensorId, Contributions> contributions_;
  IdVector<TensorId, std::map<Rect, int>> numbers_;
  Plan plan_;
};

}  // namespace

// What is said of a value is, of a tensor that has partial values, of these. Exceptions are what a
// sum launch writes, and what is read after it.
TermUse term_use(const ValueStack& stack, RequirementRole role, const Operand& operand, int parts) {
  TermUse use;
  use.own = role == RequirementRole::output;
  const bool summed = stack.summed && !use.own && role != RequirementRole::partial;
  if (!summed) use.slots = stack.slots;
  if (use.slots > 1 && stack.combine == Combine::sum) use.terms = use.slots;
  if (operand.linear) use.parts = parts;
  return use;
}

// The tasks of one tile, one for each partial value, follow each other.
Slots TermUse::of_task(int k) const {
  if (own) return {k % slots, k % slots + 1};
  const Slots its = slots_of_part(terms, parts, k);
  if (its.first == its.last) return {};
  return terms == 1 ? Slots{0, slots} : its;
}

Plan make_plan(const Graph& graph, const Strategy& strategy, const std::vector<TensorId>& outputs,
               Optimizer optimizer) {
  Plan plan = PlanBuilder(graph, strategy, outputs, optimizer).build();
#if !defined(NDEBUG) || defined(FLEXLEGION_SANITIZE)
  verify(graph, plan);
#endif
  return plan;
}

// What stays on its devices, and one pass alone needs, a gradient or a value that the backward pass
// does not read, is used up before the next micro-batch of that pass has these devices. Two
// registers are enough for it: one is filled while partial values in the other one are summed up.
// Of what is computed again, one micro-batch at a time is under way, so that it takes little
// memory.
int buffers_of(const Graph& graph, const GraphFacts& facts, const Place& place, int configured,
               bool stays) {
  constexpr int kWithinPass = 2, kRunAgain = 1;
  const bool gradient = place.field == Field::gradient;
  const bool lasts =
      gradient ? facts.gradient_lasts[place.tensor] : facts.value_lasts[place.tensor];
  if (lasts || graph.keeps_tensors) return graph.micro_batches;
  const bool input = graph.tensors[place.tensor].kind == TensorKind::input;
  const bool again = !gradient && facts.recomputed[place.tensor];
  if (!input && stays && (gradient || again || !facts.needed_backward[place.tensor])) {
    configured = std::min(configured, again ? kRunAgain : kWithinPass);
  }
  return std::min(configured, graph.micro_batches);
}

Rect zeroed_by(const Plan& plan, const Requirement& r, const Rect& rect) {
  if (r.role == RequirementRole::node_gradient) return rect;
  return rect.in_all_slots(plan.gradients[r.tensor].slots);
}

bool starts_as_zeros(const Plan& plan, const Requirement& r) {
  return r.field == Field::gradient && r.privilege == Privilege::read &&
         !plan.gradients[r.tensor].fully_written;
}

// What the runtime allocates for a device, by the same rule of boxes as its regions.
std::int64_t bytes_on_device(const Graph& graph, const Plan& plan, int device) {
  // As the runtime allocates: one bounding box of what is read, one of what is written, each field
  // by itself.
  struct Touched {
    Rect read, written;
  };
  std::map<Place, Touched> places;
  const auto bytes_of = [&graph](const Place& place) {  // of an element
    return element_bytes(type_of(graph, place));
  };
  std::int64_t bytes = 0;
  for (const Launch& launch : plan.launches) {
    Rect staged;
    for (const Requirement& r : launch.requirements) {
      const auto tenancy = plan.tenancies.find(r);
      if (tenancy != plan.tenancies.end() && tenancy->second.local) continue;
      Place place = plan.home_of(r);
      place.buffer = 0;
      Touched& touched = places[place];
      Rect& box = r.privilege == Privilege::read ? touched.read : touched.written;
      const bool zeroed = starts_as_zeros(plan, r);
      for (int k = 0; k < launch.tasks(); ++k) {
        if (launch.devices[k] != device) continue;
        box = box.bounding(r.rects[k]);
        if (zeroed) {
          touched.written = touched.written.bounding(zeroed_by(plan, r, r.rects[k]));
        }
        if (row_of(launch.pass).ahead) staged = staged.bounding(r.rects[k]);
      }
    }
    if (staged.empty()) continue;
    bytes +=
        staged.volume() * bytes_of(*launch.in_role(RequirementRole::loaded)) * plan.micro_batches;
  }
  for (const auto& [home, its] : plan.local_registers) {
    const auto d = static_cast<std::size_t>(device);
    if (d + 1 >= its.first.size()) continue;
    bytes += (its.first[d + 1] - its.first[d]) * bytes_of(home) * plan.buffers(home);
  }
  for (const auto& [place, touched] : places) {
    const int buffers = plan.buffers(place);
    bytes += held_elements(touched.read, touched.written) * bytes_of(place) * buffers;
  }
  return bytes;
}

}  // namespace flexlegion
