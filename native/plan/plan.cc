#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/rules.h"

namespace flexlegion {

namespace {

class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const Strategy& strategy, const std::vector<int>& outputs,
              int optimizer_states)
      : graph_(graph), strategy_(strategy), facts_(facts_of(graph, outputs)) {
    plan_.optimizer_states = optimizer_states;
  }

  Plan build() {
    check();
    contributions_.resize(graph_.tensors.size());
    numbers_.resize(graph_.tensors.size());
    plan_.gradients.resize(graph_.tensors.size());
    for (const LaunchId& id : facts_.launches) {
      switch (id.pass) {
        case Pass::load:
          add_load(id.index);
          break;
        case Pass::forward:
          add_forward(id.index);
          break;
        case Pass::backward:
          add_backward(id.index);
          break;
        case Pass::update:
          add_update(id.index);
          break;
      }
    }
    for (std::size_t t = 0; t < contributions_.size(); ++t) {
      plan_.gradients[t].fully_written = fully_written(static_cast<int>(t));
    }
    return std::move(plan_);
  }

 private:
  void check() const {
    if (strategy_.size() != graph_.operators.size()) {
      throw std::invalid_argument("a strategy needs one configuration an operator");
    }
    for (std::size_t i = 0; i < strategy_.size(); ++i) {
      check_config(graph_, static_cast<int>(i), strategy_[i]);
    }
  }

  Launch launch_of(int op, Pass pass) const {
    Launch launch;
    launch.op = op;
    launch.pass = pass;
    launch.runs = pass == Pass::forward ? facts_.runs[op] : unsigned{kTrains};
    launch.devices = strategy_[op].devices;
    return launch;
  }

  std::vector<Rect> rects_of(int op, const Operand& o) const {
    return accessed_rects(graph_, op, o, strategy_[op].degrees);
  }

  static Requirement requirement(int operand, const Operand& o, Field field, Privilege privilege,
                                 std::vector<Rect> rects) {
    Requirement r;
    r.operand = operand;
    r.tensor = o.tensor;
    r.field = field;
    r.privilege = privilege;
    r.rects = std::move(rects);
    return r;
  }

  void add_load(int tensor) {
    const LoadSource source = load_source(graph_, facts_, tensor);
    const ParallelConfig& reader = strategy_[source.first_reader];
    ParallelConfig config = load_config(graph_, source, reader.degrees, reader.devices);
    Launch launch;
    launch.op = -1;
    launch.pass = Pass::load;
    for (int op = 0; op < static_cast<int>(graph_.operators.size()); ++op) {
      for (const Operand& o : graph_.operators[op].operands) {
        if (o.tensor == tensor) launch.runs |= facts_.runs[op];
      }
    }
    Requirement write;
    write.tensor = tensor;
    write.privilege = Privilege::write;
    const Rect whole = Rect::of_shape(graph_.tensors[tensor].shape);
    for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
      write.rects.push_back(tile_of(whole, config.degrees, k));
    }
    launch.devices = std::move(config.devices);
    launch.requirements.push_back(std::move(write));
    plan_.launches.push_back(std::move(launch));
  }

  void add_forward(int op) {
    Launch launch = launch_of(op, Pass::forward);
    const auto& operands = graph_.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Privilege p = operands[i].role == Role::output              ? Privilege::write
                          : graph_.tensors[operands[i].tensor].is_state ? Privilege::read_write
                                                                        : Privilege::read;
      launch.requirements.push_back(
          requirement(i, operands[i], Field::value, p, rects_of(op, operands[i])));
    }
    plan_.launches.push_back(std::move(launch));
  }

  void add_backward(int op) {
    Launch launch = launch_of(op, Pass::backward);
    const auto& operands = graph_.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Operand& o = operands[i];
      if (o.saved_for_backward) {
        launch.requirements.push_back(
            requirement(i, o, Field::value, Privilege::read, rects_of(op, o)));
      }
      if (o.role == Role::output) {
        if (plan_.gradients[o.tensor].slots > 0) {
          launch.requirements.push_back(requirement(i, o, Field::gradient, Privilege::read,
                                                    stacked(o.tensor, rects_of(op, o))));
        }
      } else if (facts_.differentiable[o.tensor]) {
        launch.requirements.push_back(contribution(i, o, rects_of(op, o), launch.devices));
      }
    }
    plan_.launches.push_back(std::move(launch));
  }

  // Each task's piece, in its slot.
  Requirement contribution(int operand, const Operand& o, const std::vector<Rect>& rects,
                           const std::vector<int>& devices) {
    Requirement r = requirement(operand, o, Field::gradient, Privilege::write, {});
    const int launch = static_cast<int>(plan_.launches.size());
    Contributions& contributions = contributions_[o.tensor];
    auto& numbers = numbers_[o.tensor];
    contributions.next_requirement();
    for (int k = 0; k < static_cast<int>(rects.size()); ++k) {
      if (rects[k].empty()) {
        r.rects.push_back(rects[k].in_slots(0, 1));
        r.adds.push_back(false);
        continue;
      }
      const int number =
          numbers.try_emplace(rects[k], static_cast<int>(numbers.size())).first->second;
      const auto entry = contributions.add(number, rects[k], devices[k], launch, k);
      const int slot = contributions.pieces()[entry.piece].slot;
      r.rects.push_back(rects[k].in_slots(slot, slot + 1));
      r.adds.push_back(entry.adds);
      if (entry.adds) r.privilege = Privilege::read_write;
    }
    plan_.gradients[o.tensor].slots = std::max(1, contributions.slots());
    return r;
  }

  std::vector<Rect> stacked(int tensor, const std::vector<Rect>& rects) const {
    std::vector<Rect> result;
    for (const Rect& rect : rects) result.push_back(contributions_[tensor].stacked(rect));
    return result;
  }

  bool fully_written(int tensor) const {
    const Contributions& contributions = contributions_[tensor];
    return contributions.slots() > 0 &&
           contributions.fully_written(Rect::of_shape(graph_.tensors[tensor].shape).volume());
  }

  // One update launch covers all weights that the operator owns (it is the first to use them).
  void add_update(int op) {
    const auto& operands = graph_.operators[op].operands;
    const std::vector<int> owned = facts_.owned_weights(graph_, op);
    std::vector<std::vector<Shard>> shards;
    for (int i : owned) {
      shards.push_back(shards_of(graph_, op, operands[i].tensor,
                                 distinct(rects_of(op, operands[i])), strategy_[op].devices));
    }
    const std::vector<UpdateTask> tasks = update_tasks(shards);
    Launch launch = launch_of(op, Pass::update);
    launch.devices.clear();
    for (const UpdateTask& task : tasks) launch.devices.push_back(task.device);
    for (int w = 0; w < static_cast<int>(owned.size()); ++w) {
      const Operand& o = operands[owned[w]];
      Rect empty;
      empty.rank = static_cast<int>(graph_.tensors[o.tensor].shape.size());
      std::vector<Rect> rects;
      for (const UpdateTask& task : tasks) {
        Rect mine = empty;
        for (const auto& [weight, rect] : task.shards) {
          if (weight == w) mine = rect;
        }
        rects.push_back(mine);
      }
      add_update_requirements(launch, owned[w], o, rects);
    }
    plan_.launches.push_back(std::move(launch));
  }

  void add_update_requirements(Launch& launch, int i, const Operand& o,
                               const std::vector<Rect>& rects) const {
    const auto lookups = facts_.lookups.find(o.tensor);
    if (lookups == facts_.lookups.end()) {
      launch.requirements.push_back(
          requirement(i, o, Field::gradient, Privilege::read, stacked(o.tensor, rects)));
    } else {
      for (int op : lookups->second) add_lookup_requirements(launch, i, op, rects);
    }
    launch.requirements.push_back(requirement(i, o, Field::value, Privilege::read_write, rects));
    for (int s = 0; s < plan_.optimizer_states; ++s) {
      launch.requirements.push_back(requirement(i, o, Field::state, Privilege::read_write, rects));
      launch.requirements.back().state = s;
    }
  }

  // For the update of a table's shards: tokens and output gradient of an operator that reads it.
  void add_lookup_requirements(Launch& launch, int i, int op,
                               const std::vector<Rect>& shards) const {
    const Operand& tokens = graph_.operators[op].operands.front();
    const Operand& output = graph_.operators[op].primary_output();
    if (plan_.gradients[output.tensor].slots == 0) return;
    std::vector<Rect> token_rects, gradient_rects;
    for (const Rect& shard : shards) {
      Rect mine = looked_up_tokens(graph_, op);
      if (shard.empty()) mine.hi = mine.lo;
      token_rects.push_back(mine);
      gradient_rects.push_back(looked_up_gradient(graph_, op, shard));
    }
    launch.requirements.push_back(
        requirement(i, tokens, Field::value, Privilege::read, std::move(token_rects)));
    launch.requirements.push_back(requirement(i, output, Field::gradient, Privilege::read,
                                              stacked(output.tensor, gradient_rects)));
  }

  const Graph& graph_;
  const Strategy& strategy_;
  const GraphFacts facts_;
  // Of each tensor's gradient; and a number for each rectangle.
  std::vector<Contributions> contributions_;
  std::vector<std::map<Rect, int>> numbers_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const Graph& graph, const Strategy& strategy, const std::vector<int>& outputs,
               int optimizer_states) {
  return PlanBuilder(graph, strategy, outputs, optimizer_states).build();
}

bool starts_as_zeros(const Plan& plan, const Requirement& r) {
  return r.field == Field::gradient && r.privilege == Privilege::read &&
         !plan.gradients[r.tensor].fully_written;
}

std::int64_t bytes_on_device(const Plan& plan, int device) {
  struct Touched {
    Rect read, written;
  };
  std::map<std::tuple<int, Field, int>, Touched> fields;
  std::int64_t elements = 0;
  for (const Launch& launch : plan.launches) {
    Rect staged;
    for (const Requirement& r : launch.requirements) {
      Touched& field = fields[{r.tensor, r.field, r.state}];
      Rect& box = r.privilege == Privilege::read ? field.read : field.written;
      const bool zeroed = starts_as_zeros(plan, r);
      for (int k = 0; k < launch.tasks(); ++k) {
        if (launch.devices[k] != device) continue;
        box = box.bounding(r.rects[k]);
        if (zeroed) {
          const int slots = plan.gradients[r.tensor].slots;
          field.written = field.written.bounding(r.rects[k].in_all_slots(slots));
        }
        if (launch.pass == Pass::load) staged = staged.bounding(r.rects[k]);
      }
    }
    elements += staged.volume();
  }
  for (const auto& [key, field] : fields) {
    elements += held_elements(field.read, field.written);
  }
  return elements * kElementBytes;
}

}  // namespace flexlegion
