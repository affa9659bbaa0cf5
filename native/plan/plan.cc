#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace flexlegion {

namespace {

// A rectangle of a gradient that one task writes: where, and into which slot.
struct Piece {
  Rect rect;
  int slot;
  int device;
  std::size_t launch;
};

class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const Strategy& strategy, int output, int optimizer_states)
      : graph_(graph), strategy_(strategy), output_(output) {
    plan_.optimizer_states = optimizer_states;
  }

  Plan build() {
    check();
    find_runs();
    find_gradients();
    pieces_.resize(graph_.tensors.size());
    mixed_.resize(graph_.tensors.size());
    plan_.gradients.resize(graph_.tensors.size());
    const int n = static_cast<int>(graph_.operators.size());
    for (int t = 0; t < static_cast<int>(graph_.tensors.size()); ++t) {
      if (graph_.tensors[t].kind == TensorKind::input) add_load(t);
    }
    for (int op = 0; op < n; ++op) {
      if (runs_[op] != 0) add_forward(op);
    }
    for (int op = n - 1; op >= 0; --op) {
      if (runs_[op] & kTrains && wants_backward(op)) add_backward(op);
    }
    for (int op = n - 1; op >= 0; --op) {
      if (runs_[op] & kTrains) add_update(op);
    }
    for (std::size_t t = 0; t < pieces_.size(); ++t) {
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
      const Operator& op = graph_.operators[i];
      const ParallelConfig& config = strategy_[i];
      const auto& shape = graph_.tensors[op.primary_output().tensor].shape;
      std::int64_t tasks = 1;
      if (config.degrees.size() != shape.size()) {
        throw std::invalid_argument("operator '" + op.name + "': wrong number of degrees");
      }
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (config.degrees[d] < 1 || config.degrees[d] > shape[d]) {
          throw std::invalid_argument("operator '" + op.name + "': a degree outside 1.." +
                                      std::to_string(shape[d]));
        }
        tasks *= config.degrees[d];
      }
      if (static_cast<std::int64_t>(config.devices.size()) != tasks) {
        throw std::invalid_argument("operator '" + op.name + "': needs one device a task");
      }
    }
  }

  // Which operators each kind of run executes: the ancestors of what it wants.
  void find_runs() {
    const auto& ops = graph_.operators;
    runs_.assign(ops.size(), 0);
    std::vector<unsigned> wanted(graph_.tensors.size(), 0);
    if (output_ >= 0) wanted[output_] |= kPredicts;
    for (int op = static_cast<int>(ops.size()) - 1; op >= 0; --op) {
      unsigned runs = ops[op].is_loss ? unsigned{kTrains} | unsigned{kEvaluates} : 0u;
      for (const Operand& o : ops[op].operands) {
        if (o.role == Role::output) runs |= wanted[o.tensor];
      }
      runs_[op] = runs;
      for (const Operand& o : ops[op].operands) {
        if (o.role != Role::output) wanted[o.tensor] |= runs;
      }
    }
  }

  // A tensor has a gradient if it is a weight, if it was asked for, or if it depends on such a
  // tensor.
  void find_gradients() {
    differentiable_.resize(graph_.tensors.size());
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      differentiable_[t] = graph_.tensors[t].needs_gradient;
    }
    for (const Operator& op : graph_.operators) {
      bool any = false;
      for (const Operand& o : op.operands)
        any |= o.role != Role::output && differentiable_[o.tensor];
      for (const Operand& o : op.operands) {
        if (o.role == Role::output) differentiable_[o.tensor] = any;
      }
    }
  }

  bool wants_backward(int op) const {
    for (const Operand& o : graph_.operators[op].operands) {
      if (o.role != Role::output && differentiable_[o.tensor]) return true;
    }
    return false;
  }

  Launch launch_of(int op, Pass pass) const {
    Launch launch;
    launch.op = op;
    launch.pass = pass;
    launch.runs = pass == Pass::forward ? runs_[op] : unsigned{kTrains};
    launch.devices = strategy_[op].devices;
    return launch;
  }

  // The rectangles of operand `o` that the tasks of `op` touch.
  std::vector<Rect> rects_of(int op, const Operand& o) const {
    const Rect whole =
        Rect::of_shape(graph_.tensors[graph_.operators[op].primary_output().tensor].shape);
    const ParallelConfig& config = strategy_[op];
    std::vector<Rect> rects(config.devices.size());
    for (std::size_t k = 0; k < rects.size(); ++k) {
      rects[k] = accessed(o, graph_.tensors[o.tensor],
                          tile_of(whole, config.degrees, static_cast<int>(k)));
    }
    return rects;
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

  // A batch is cut by samples, as the tensor's first reader cuts it, and loaded where that reader
  // runs.
  void add_load(int tensor) {
    Launch launch;
    launch.op = -1;
    launch.pass = Pass::load;
    Requirement write;
    write.tensor = tensor;
    write.privilege = Privilege::write;
    const Rect whole = Rect::of_shape(graph_.tensors[tensor].shape);
    for (int op = 0; op < static_cast<int>(graph_.operators.size()); ++op) {
      for (const Operand& o : graph_.operators[op].operands) {
        if (o.tensor != tensor || runs_[op] == 0) continue;
        launch.runs |= runs_[op];
        if (!launch.devices.empty()) continue;
        const ParallelConfig& config = strategy_[op];
        const int by = o.map[0].out_dim;  // -1: the reader does not cut the samples
        const int parts = by == 0 ? config.degrees[0] : 1;
        const int stride = static_cast<int>(config.devices.size()) / parts;
        std::vector<int> degrees(whole.rank, 1);
        degrees[0] = parts;
        for (int k = 0; k < parts; ++k) {
          launch.devices.push_back(config.devices[k * stride]);
          write.rects.push_back(tile_of(whole, degrees, k));
        }
      }
    }
    if (launch.runs == 0) return;
    launch.requirements.push_back(std::move(write));
    plan_.launches.push_back(std::move(launch));
  }

  void add_forward(int op) {
    Launch launch = launch_of(op, Pass::forward);
    const auto& operands = graph_.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Privilege p = operands[i].role == Role::output ? Privilege::write : Privilege::read;
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
      } else if (differentiable_[o.tensor]) {
        launch.requirements.push_back(contribution(i, o, rects_of(op, o), launch.devices));
      }
    }
    plan_.launches.push_back(std::move(launch));
  }

  // Gives each task's rectangle a slot: the first in which it overlaps no other piece, or in which
  // it can add to an earlier launch's piece of the same place and device.
  Requirement contribution(int operand, const Operand& o, const std::vector<Rect>& rects,
                           const std::vector<int>& devices) {
    Requirement r = requirement(operand, o, Field::gradient, Privilege::write, {});
    const std::size_t launch = plan_.launches.size();
    auto& pieces = pieces_[o.tensor];
    int& slots = plan_.gradients[o.tensor].slots;
    for (std::size_t k = 0; k < rects.size(); ++k) {
      enum class State : char { free, shared, taken };
      std::vector<State> state(static_cast<std::size_t>(slots) + 1, State::free);
      for (const Piece& piece : pieces) {
        if (!piece.rect.overlaps(rects[k])) continue;
        const bool same = piece.rect == rects[k] && piece.device == devices[k];
        State& its = state[static_cast<std::size_t>(piece.slot)];
        if (!same || piece.launch == launch) {
          its = State::taken;
        } else if (its == State::free) {
          its = State::shared;
        }
      }
      int slot = 0;
      while (state[static_cast<std::size_t>(slot)] == State::taken) ++slot;
      const bool adds = state[static_cast<std::size_t>(slot)] == State::shared;
      pieces.push_back({rects[k], slot, devices[k], launch});
      slots = std::max(slots, slot + 1);
      r.rects.push_back(rects[k].in_slots(slot, slot + 1));
      r.adds.push_back(adds);
      if (adds) r.privilege = Privilege::read_write;
    }
    // A launch has one privilege: where some of its tasks add, the others may read as well.
    if (r.privilege == Privilege::read_write &&
        std::find(r.adds.begin(), r.adds.end(), false) != r.adds.end()) {
      mixed_[o.tensor] = true;
    }
    return r;
  }

  // For a reader of `rects`: the range of slots in which something overlaps each of them.
  std::vector<Rect> stacked(int tensor, const std::vector<Rect>& rects) const {
    std::vector<Rect> result;
    for (const Rect& rect : rects) {
      int first = plan_.gradients[tensor].slots, last = 0;
      for (const Piece& piece : pieces_[tensor]) {
        if (!piece.rect.overlaps(rect)) continue;
        first = std::min(first, piece.slot);
        last = std::max(last, piece.slot + 1);
      }
      // Nothing contributes (a strided window skipped the tile): one slot of zeros.
      if (last <= first) first = 0, last = 1;
      result.push_back(rect.in_slots(first, last));
    }
    return result;
  }

  bool fully_written(int tensor) const {
    if (mixed_[tensor]) return false;
    const std::int64_t volume = Rect::of_shape(graph_.tensors[tensor].shape).volume();
    std::map<int, std::set<Rect>> written;
    for (const Piece& piece : pieces_[tensor]) written[piece.slot].insert(piece.rect);
    for (const auto& [slot, rects] : written) {
      std::int64_t sum = 0;
      for (const Rect& rect : rects) sum += rect.volume();
      if (sum != volume) return false;
    }
    return true;
  }

  // A shard of a weight: updated on, and by, one of the devices that use it.
  struct Shard {
    Rect rect;
    int device;
  };

  // Cuts each part of the weight that the owner's tasks read into one shard a replica device, along
  // its longest dimension.
  std::vector<Shard> shards_of(int op, const Operand& o) const {
    const Rect whole = Rect::of_shape(graph_.tensors[o.tensor].shape);
    const std::vector<Rect> rects = rects_of(op, o);
    std::map<Rect, std::vector<int>> users;
    std::int64_t volume = 0;
    for (std::size_t k = 0; k < rects.size(); ++k) {
      auto [entry, fresh] = users.try_emplace(rects[k]);
      if (fresh) volume += rects[k].volume();
      auto& devices = entry->second;
      const int device = strategy_[op].devices[k];
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
        devices.push_back(device);
      }
    }
    if (volume != whole.volume()) {  // the parts overlap, or leave something out
      std::set<int> all(strategy_[op].devices.begin(), strategy_[op].devices.end());
      users = {{whole, std::vector<int>(all.begin(), all.end())}};
    }
    std::vector<Shard> shards;
    for (const auto& [rect, devices] : users) {
      int longest = 0;
      for (int d = 1; d < rect.rank; ++d) {
        if (rect.extent(d) > rect.extent(longest)) longest = d;
      }
      std::vector<int> degrees(rect.rank, 1);
      degrees[longest] = static_cast<int>(
          std::min<std::int64_t>(rect.extent(longest), static_cast<std::int64_t>(devices.size())));
      for (int k = 0; k < degrees[longest]; ++k) {
        shards.push_back({tile_of(rect, degrees, k), devices[k]});
      }
    }
    return shards;
  }

  // One update launch covers all weights that the operator owns (it is the first to use them).
  void add_update(int op) {
    const auto& operands = graph_.operators[op].operands;
    std::vector<int> owned;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Operand& o = operands[i];
      if (o.role == Role::weight && plan_.gradients[o.tensor].slots > 0 && owner(o.tensor) == op) {
        owned.push_back(i);
      }
    }
    if (owned.empty()) return;
    Launch launch = launch_of(op, Pass::update);
    launch.devices.clear();
    // The j-th shard of each weight on a device goes to the j-th task of that device.
    std::map<std::pair<int, int>, std::vector<std::pair<int, Rect>>> tasks;
    for (int i : owned) {
      std::map<int, int> on_device;
      for (const Shard& shard : shards_of(op, operands[i])) {
        tasks[{shard.device, on_device[shard.device]++}].push_back({i, shard.rect});
      }
    }
    for (const auto& task : tasks) launch.devices.push_back(task.first.first);
    for (int i : owned) {
      Rect empty;
      empty.rank = static_cast<int>(graph_.tensors[operands[i].tensor].shape.size());
      std::vector<Rect> rects;
      for (const auto& task : tasks) {
        Rect mine = empty;
        for (const auto& [operand, rect] : task.second) {
          if (operand == i) mine = rect;
        }
        rects.push_back(mine);
      }
      add_update_requirements(launch, i, operands[i], rects);
    }
    plan_.launches.push_back(std::move(launch));
  }

  void add_update_requirements(Launch& launch, int i, const Operand& o,
                               const std::vector<Rect>& rects) const {
    launch.requirements.push_back(
        requirement(i, o, Field::gradient, Privilege::read, stacked(o.tensor, rects)));
    launch.requirements.push_back(requirement(i, o, Field::value, Privilege::read_write, rects));
    for (int s = 0; s < plan_.optimizer_states; ++s) {
      launch.requirements.push_back(requirement(i, o, Field::state, Privilege::read_write, rects));
      launch.requirements.back().state = s;
    }
  }

  int owner(int tensor) const {
    for (int op = 0; op < static_cast<int>(graph_.operators.size()); ++op) {
      if (!(runs_[op] & kTrains)) continue;
      for (const Operand& o : graph_.operators[op].operands) {
        if (o.tensor == tensor && o.role == Role::weight) return op;
      }
    }
    return -1;
  }

  const Graph& graph_;
  const Strategy& strategy_;
  int output_;
  std::vector<unsigned> runs_;
  std::vector<bool> differentiable_;
  std::vector<std::vector<Piece>> pieces_;
  std::vector<bool> mixed_;  // a tensor: some launch both adds to and writes its gradient
  Plan plan_;
};

}  // namespace

Plan make_plan(const Graph& graph, const Strategy& strategy, int output, int optimizer_states) {
  return PlanBuilder(graph, strategy, output, optimizer_states).build();
}

std::int64_t bytes_on_device(const Plan& plan, int device) {
  constexpr std::int64_t kElementBytes = 4;  // float32 and int32 alike
  struct Touched {
    Rect read, written;
  };
  std::map<std::tuple<int, Field, int>, Touched> fields;
  for (const Launch& launch : plan.launches) {
    for (const Requirement& r : launch.requirements) {
      Touched& field = fields[{r.tensor, r.field, r.state}];
      Rect& box = r.privilege == Privilege::read ? field.read : field.written;
      for (int k = 0; k < launch.tasks(); ++k) {
        if (launch.devices[k] == device) box = box.bounding(r.rects[k]);
      }
    }
  }
  std::int64_t elements = 0;
  for (const auto& [key, field] : fields) {
    elements += share_instance(field.read, field.written)
                    ? field.read.bounding(field.written).volume()
                    : field.read.volume() + field.written.volume();
  }
  return elements * kElementBytes;
}

}  // namespace flexlegion
