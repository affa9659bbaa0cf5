// The invariants of verify.h, launch by launch in the order of issue, as the runtime executes them.
// Carried along are the launches seen so far, the pieces of each gradient's stack, and how many
// elements of the iteration's fields are written. Values are checked apart for each kind of run, as
// evaluation does not run all that training does.
//
// A partition is checked by counting: rectangles without overlap that have as many elements as the
// tensor cover it. Overlaps are found by sorting (touches.h).
#include "plan/verify.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/schedule.h"
#include "plan/touches.h"

namespace flexlegion {

namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, const Plan& plan, int devices)
      : graph_(graph), plan_(plan), devices_(devices), stacks_(graph.tensors.size()) {}

  void verify() {
    for (const Launch& launch : plan_.launches) {
      launch_ = &launch;
      check_launch();
      for (const Requirement& r : launch.requirements) {
        check_requirement(r);
        // Where the first part alone runs backward, it needs no value of what it is linear in.
        const bool alone = launch.pass == Pass::backward && shared(r) &&
                           first_part_alone(graph_.operators[launch.op], launch);
        if (shared(r) && !alone) check_parts(r);
      }
      check_conflicts();
      seen_[{launch.pass, launch.op}] = &launch;
      if (!row_of(launch.pass).follows.empty()) check_follower();
      check_weights();
      check_iteration_fields();
      for (const Requirement& r : launch.requirements) {
        if (r.field != Field::gradient) continue;
        if (r.role == RequirementRole::contribution) {
          contribute(r);
        } else {
          check_sum(r);
        }
      }
    }
    for (TensorId t : stacks_.ids()) check_stack(t);
    for (unsigned run : {kTrains, kEvaluates, kPredicts}) check_values(run);
  }

 private:
  // What a gradient's stack holds after the launches so far: pieces, by their slots.
  struct Piece {
    Rect rect;  // without its slot
    int device;
    const Launch* launch;
  };
  struct Stack {
    std::map<std::int64_t, std::vector<Piece>> pieces;  // by slot
    const Launch* reader = nullptr;                     // the first
    bool mixed = false;  // some launch's tasks add, while others of it write
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw std::logic_error(name(*launch_) + ": " + what);
  }

  std::string name(const Launch& launch) const {
    const std::string pass = row_of(launch.pass).name;
    if (!launch.op.none()) return pass + " '" + graph_.operators[launch.op].name + "'";
    const Requirement* loaded = launch.in_role(RequirementRole::loaded);
    return loaded == nullptr ? pass : pass + " " + name(*loaded);
  }

  std::string name(const Use& use) const {
    if (use.tensor.none()) return std::string("the iteration's ") + name_of(use.field);
    const std::string field = use.field == Field::gradient    ? "the gradient of "
                              : use.field == Field::partial   ? "partial values of "
                              : use.field == Field::node_sums ? "the nodes' sums of "
                              : use.field == Field::copy      ? "the gathered value of "
                              : use.field == Field::reduced   ? "the reduced gradient of "
                              : use.field == Field::state     ? "an optimizer state of "
                                                              : "";
    return field + "'" + graph_.tensors[use.tensor].name + "'";
  }

  void check_launch() {
    const int stretch = stretch_of(launch_->pass);
    if (stretch < stretch_) fail("comes after a later pass");
    stretch_ = stretch;
    if (launch_->devices.empty()) fail("has no tasks");
    for (int device : launch_->devices) {
      if (device < 0 || (devices_ >= 0 && device >= devices_)) {
        fail("has a task on device " + std::to_string(device) + ", which there is not");
      }
    }
  }

  std::vector<std::int64_t> shape_of(const Use& use) const {
    if (use.tensor.none()) return {elements_of(use)};
    std::vector<std::int64_t> shape = graph_.tensors[use.tensor].shape;
    if (use.field == Field::gradient) {
      shape.insert(shape.begin(), plan_.gradients[use.tensor].slots);
    }
    if (use.field == Field::partial) {
      shape.insert(shape.begin(), plan_.values[use.tensor].slots);
    }
    if (use.field == Field::node_sums) {
      shape.insert(shape.begin(), plan_.nodes[use.tensor].count());
    }
    return shape;
  }

  // The field of the role; but where a tensor has partial values, they are written and, unless
  // something combined them before, read. An update reads the sums of nodes, where there are any.
  Field field_in_plan(const Requirement& r) const {
    using R = RequirementRole;
    const Field field = row_of(r.role).field;
    if (r.tensor.none()) return field;
    const Sharding sharding = plan_.sharding[r.tensor];
    const bool reduced = r.role == R::weight_gradient && sharding != Sharding::states;
    if (reduced) return Field::reduced;
    if (r.role == R::weight_gradient || r.role == R::partial_gradient) {
      return plan_.nodes[r.tensor].any() ? Field::node_sums : field;
    }
    if (field != Field::value) return field;
    const bool reads = r.role == R::weight || r.role == R::saved || r.role == R::spread;
    if (reads && sharding == Sharding::weights) return Field::copy;
    const ValueStack& stack = plan_.values[r.tensor];
    const bool partial = r.role == RequirementRole::output || !stack.summed;
    return stack.slots > 1 && partial ? Field::partial : field;
  }

  void check_requirement(const Requirement& r) {
    if (static_cast<int>(r.rects.size()) != launch_->tasks()) {
      fail("has no rectangle for each task, of " + name(r));
    }
    const bool adds = std::find(r.adds.begin(), r.adds.end(), true) != r.adds.end();
    const Privilege privilege = adds ? Privilege::read_write : row_of(r.role).privilege;
    if (r.field != field_in_plan(r) || r.privilege != privilege) {
      fail("touches " + name(r) + " otherwise than its role says");
    }
    const Rect whole = Rect::of_shape(shape_of(r));
    for (const Rect& rect : r.rects) {
      if (rect.empty()) continue;
      if (rect.rank != whole.rank || rect.bounding(whole) != whole) {
        fail("touches " + text(rect) + " of " + name(r) + ", which is " + text(whole));
      }
      const bool all = (rect.lo[0] == 0 && rect.hi[0] == whole.hi[0]) || shared(r);
      const bool stack = r.field == Field::partial || r.field == Field::node_sums;
      if (stack && r.privilege == Privilege::read && !all) {
        fail("leaves out slots of " + text(rect) + " of " + name(r));
      }
    }
  }

  // Whether the parts of a launch share out what it reads.
  bool shared(const Requirement& r) const {
    return launch_->parts > 1 && r.operand >= 0 && r.field != Field::gradient &&
           graph_.operators[launch_->op].operands[r.operand].linear;
  }

  // The parts of a launch, which follow each other, read the same elements, in other slots each; or
  // of what is no sum of several, the first part does.
  void check_parts(const Requirement& r) const {
    const bool sum = r.field == Field::partial && plan_.values[r.tensor].combine == Combine::sum;
    for (int k = 0; k < launch_->tasks(); k += launch_->parts) {
      const Rect& first = r.rects[k];
      std::int64_t next = first.empty() ? 0 : first.hi[0];
      for (int j = k + 1; j < k + launch_->parts; ++j) {
        const Rect& rect = r.rects[j];
        if (rect.empty()) continue;
        const bool alike = !first.empty() && without_slots(rect) == without_slots(first);
        if (!sum || !alike || rect.lo[0] != next) {
          fail("has " + text(rect) + " of " + name(r) + " in part " + std::to_string(j - k));
        }
        next = rect.hi[0];
      }
      if (sum && !first.empty() && (first.lo[0] != 0 || next != slots_of(r))) {
        fail("leaves out slots of " + text(first) + " of " + name(r));
      }
    }
  }

  // The rectangles, but none for tasks of later parts: what a launch touches if, of each tile, the
  // first part alone does something.
  std::vector<Rect> of_first_parts(std::vector<Rect> rects) const {
    for (int k = 0; k < launch_->tasks(); ++k) {
      if (k % launch_->parts != 0) rects[k].hi = rects[k].lo;
    }
    return rects;
  }

  void check_conflicts() {
    std::map<Place, std::vector<Touch>> places;
    std::set<Place> written;
    for (int i = 0; i < static_cast<int>(launch_->requirements.size()); ++i) {
      const Requirement& r = launch_->requirements[i];
      const bool writes = r.privilege != Privilege::read;
      if (writes) written.insert(r);
      for (int k = 0; k < launch_->tasks(); ++k) {
        if (!r.rects[k].empty()) places[r].push_back({r.rects[k], i, k, writes});
      }
    }
    for (const Place& place : written) {
      for_each_overlap(places[place], [this](const Touch& a, const Touch& b) {
        if (!a.writes && !b.writes) return false;
        fail("tasks " + std::to_string(a.task) + " and " + std::to_string(b.task) + " meet in " +
             text(a.rect.intersect(b.rect)) + " of " + name(launch_->requirements[a.requirement]) +
             ", which is written");
      });
    }
  }

  // A launch that follows another, as backward follows forward: its tasks run where that one's do.
  void check_follower() {
    const Launch* followed = nullptr;
    for (Pass pass : row_of(launch_->pass).follows) {
      const auto found = seen_.find({pass, launch_->op});
      if (followed == nullptr && found != seen_.end()) followed = found->second;
    }
    if (followed == nullptr) fail("comes without a launch that it follows");
    const Launch& forward = *followed;
    const std::string its_name = std::string(row_of(forward.pass).name) + " launch";
    if (launch_->devices != forward.devices) fail("runs elsewhere than the " + its_name);
    if (launch_->parts != forward.parts) fail("has other parts than the " + its_name);
    const Operator& op = graph_.operators[launch_->op];
    const bool idle = first_part_alone(op, *launch_);
    std::set<int> contributed;
    for (const Requirement& r : launch_->requirements) {
      const auto& all = forward.requirements;
      const auto its = std::find_if(all.begin(), all.end(), [&r](const Requirement& other) {
        return other.operand == r.operand && other.tensor == r.tensor;
      });
      const bool once = idle || (r.role == RequirementRole::contribution &&
                                 of_first_part_alone(op, op.operands[r.operand]));
      if (its == all.end() ||
          !touch_alike(without_slots(r),
                       once ? of_first_parts(without_slots(*its)) : without_slots(*its))) {
        fail("touches other parts of " + name(r) + " than the " + its_name);
      }
      if (r.role == RequirementRole::contribution && !contributed.insert(r.operand).second) {
        fail("contributes twice to " + name(r));
      }
    }
  }

  // A task has the same shard of whatever it touches of a weight.
  void check_shards(const Requirement& of) const {
    for (const Requirement& r : launch_->requirements) {
      if (r.operand != of.operand || r.tensor != of.tensor) continue;
      if (!touch_alike(without_slots(r), of.rects)) {
        fail("touches other shards of " + name(r) + " than of " + name(of));
      }
    }
  }

  void check_weights() {
    for (const Requirement& updated : launch_->requirements) {
      using R = RequirementRole;
      if (updated.role == R::gathered || updated.role == R::reduced) check_shards(updated);
      if (updated.role != R::updated) continue;
      check_shards(updated);
      int states = 0;
      for (const Requirement& r : launch_->requirements) {
        const bool its = r.operand == updated.operand && r.tensor == updated.tensor;
        states += its && r.role == R::optimizer_state;
      }
      const int expected = plan_.optimizer.states_of(graph_.tensors[updated.tensor]);
      if (states != expected) fail("lacks a state of " + name(updated));
    }
  }

  // A field of the iteration has an element for each task that writes it, and is read as a whole,
  // once all elements are there. Updates read the norm if, and only if, gradients are clipped.
  void check_iteration_fields() {
    bool updates = false, clips = false;
    for (const Requirement& r : launch_->requirements) {
      updates = updates || r.role == RequirementRole::updated;
      clips = clips || r.role == RequirementRole::clipped_by;
      if (!r.tensor.none()) continue;
      int& found = found_[static_cast<std::size_t>(r.field)];
      for (const Rect& rect : r.rects) {
        if (r.privilege == Privilege::read) {
          if (found == elements_of(r) && rect.extent(0) == found) continue;
          fail("reads " + text(rect) + " of " + name(r) + ", of which " + std::to_string(found) +
               " of " + std::to_string(elements_of(r)) + " are found");
        }
        if (rect.lo[0] != found || rect.extent(0) != 1) {
          fail("writes " + text(rect) + " of " + name(r) + ", of which element " +
               std::to_string(found) + " is next");
        }
        ++found;
      }
    }
    if (updates && clips != plan_.optimizer.needs_norm) {
      fail("clips its gradients, or should, by a norm that is not there");
    }
  }

  int elements_of(const Use& use) const {
    return plan_.elements[static_cast<std::size_t>(use.field)];
  }

  void contribute(const Requirement& r) {
    Stack& stack = stacks_[r.tensor];
    if (stack.reader != nullptr) {
      fail("contributes to " + name(r) + ", which " + name(*stack.reader) + " has read");
    }
    bool adds = false, writes = false;
    for (int k = 0; k < launch_->tasks(); ++k) {
      if (r.rects[k].empty()) continue;
      if (r.rects[k].extent(0) != 1) fail("writes several slots of " + name(r));
      (r.adds[k] ? adds : writes) = true;
      contribute(r, k, stack.pieces[r.rects[k].lo[0]]);
    }
    stack.mixed = stack.mixed || (adds && writes);
  }

  void contribute(const Requirement& r, int k, std::vector<Piece>& slot) {
    const Rect rect = without_slots(r.rects[k]);
    const std::string where = text(rect) + " of " + name(r);
    bool added = false;
    for (Piece& piece : slot) {
      if (!piece.rect.overlaps(rect)) continue;
      if (!r.adds[k]) fail("overwrites " + where + ", which has a contribution");
      if (piece.rect != rect || piece.device != launch_->devices[k] || piece.launch == launch_) {
        fail("adds to " + where + " what is not its own");
      }
      piece.launch = launch_;
      added = true;
    }
    if (r.adds[k] && !added) fail("adds to " + where + ", where nothing is");
    if (!added) slot.push_back({rect, launch_->devices[k], launch_});
  }

  // A reader of a gradient leaves out no element, and no slot to which somebody contributed.
  void check_sum(const Requirement& r) {
    Stack& stack = stacks_[r.tensor];
    if (stack.pieces.empty() && plan_.gradients[r.tensor].fully_written) {
      fail("reads " + name(r) + ", which nothing writes");
    }
    if (stack.reader == nullptr) stack.reader = launch_;
    if (r.role == RequirementRole::node_gradient) {
      check_nodes(r, plan_.gradients[r.tensor].slots);
      return;
    }
    const std::vector<Rect> rects = without_slots(r);
    if (r.role == RequirementRole::looked_up_gradient) {
      check_looked_up(r, rects);
    } else {
      check_partition(r, rects, r.role == RequirementRole::output_gradient ? slots_of(r) : 1);
    }
    for (std::size_t k = 0; k < rects.size(); ++k) {
      if (rects[k].empty()) continue;
      for (const auto& [slot, pieces] : stack.pieces) {
        if (r.rects[k].lo[0] <= slot && slot < r.rects[k].hi[0]) continue;
        for (const Piece& piece : pieces) {
          if (!piece.rect.overlaps(rects[k])) continue;
          fail("leaves out slot " + std::to_string(slot) + " of " + text(rects[k]) + " of " +
               name(r));
        }
      }
    }
  }

  // The tasks of one node have the same slots, and share out the tensor in these. All nodes
  // together have each slot once.
  void check_nodes(const Requirement& r, int slots) const {
    const std::vector<Rect> rects = without_slots(r);
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Touch>> nodes;  // by slots
    for (int k = 0; k < static_cast<int>(rects.size()); ++k) {
      const Rect& stacked = r.rects[k];
      if (stacked.empty()) continue;
      nodes[{stacked.lo[0], stacked.hi[0]}].push_back({rects[k], 0, k, false});
    }
    std::int64_t next = 0;
    for (auto& [its, touches] : nodes) {
      if (its.first != next) fail("has slots of " + name(r) + " twice, or leaves some out");
      next = its.second;
      check_partition(r, std::move(touches));
    }
    if (next != slots) fail("leaves out slots of " + name(r));
  }

  int slots_of(const Requirement& r) const { return plan_.values[r.tensor].slots; }

  // Each part of a table's rows reads all that was looked up in its columns.
  void check_looked_up(const Requirement& r, const std::vector<Rect>& rects) const {
    std::map<Rect, int> times;
    for (const Rect& rect : rects) {
      if (!rect.empty()) ++times[rect];
    }
    std::vector<Rect> columns;
    for (const auto& [rect, count] : times) {
      if (count != times.begin()->second) fail("reads columns of " + name(r) + " more often");
      columns.push_back(rect);
    }
    check_partition(r, columns, 1);
  }

  // The rectangles have each element of the requirement's tensor once; or, if they are of several
  // partial values by turns, those of each.
  void check_partition(const Requirement& r, const std::vector<Rect>& rects, int values) const {
    for (int value = 0; value < values; ++value) {
      std::vector<Touch> touches;
      for (int k = value; k < static_cast<int>(rects.size()); k += values) {
        if (!rects[k].empty()) touches.push_back({rects[k], 0, k, false});
      }
      const bool idle = r.role == RequirementRole::output_gradient && touches.empty();
      if (idle && value % launch_->parts != 0) continue;
      check_partition(r, std::move(touches));
    }
  }

  void check_partition(const Requirement& r, std::vector<Touch> touches) const {
    std::int64_t elements = 0;
    for (const Touch& touch : touches) elements += touch.rect.volume();
    for_each_overlap(std::move(touches), [&](const Touch& a, const Touch& b) {
      fail("has " + text(a.rect.intersect(b.rect)) + " of " + name(r) + " twice, in tasks " +
           std::to_string(a.task) + " and " + std::to_string(b.task));
      return true;
    });
    const Rect whole = Rect::of_shape(graph_.tensors[r.tensor].shape);
    if (elements != whole.volume()) {
      fail("has " + std::to_string(elements) + " of the " + std::to_string(whole.volume()) +
           " elements of " + name(r));
    }
  }

  void check_stack(TensorId tensor) const {
    const Stack& stack = stacks_[tensor];
    const GradientStack& planned = plan_.gradients[tensor];
    const Tensor& what = graph_.tensors[tensor];
    const auto fail_of = [&what](const std::string& why) {
      throw std::logic_error("the gradient of '" + what.name + "' " + why);
    };
    if (!stack.pieces.empty() && stack.reader == nullptr && what.kind != TensorKind::input) {
      fail_of("is computed, and nothing reads it");
    }
    if (!planned.fully_written) return;
    const std::int64_t whole = Rect::of_shape(what.shape).volume();
    for (std::int64_t slot = 0; slot < planned.slots; ++slot) {
      std::int64_t written = 0;
      const auto pieces = stack.pieces.find(slot);
      if (pieces != stack.pieces.end()) {
        for (const Piece& piece : pieces->second) written += piece.rect.volume();
      }
      if (written != whole || stack.mixed) {
        fail_of("does not start as zeros, though slot " + std::to_string(slot) +
                " is not written as a whole before it is read");
      }
    }
  }

  void check_values(unsigned run) {
    // Places that can be read by now; and the values that this run has written.
    std::set<Place> there, written;
    for (TensorId t : graph_.tensors.ids()) {
      if (graph_.tensors[t].kind == TensorKind::weight) there.insert({t, Field::value});
    }
    for (const Launch& launch : plan_.launches) {
      if (!(launch.runs & run)) continue;
      launch_ = &launch;
      for (const Requirement& r : launch.requirements) {
        const bool any = volume(r.rects) > 0;
        if (!any || r.privilege == Privilege::write) continue;
        const bool known =
            !of_iteration(r.field) && r.field != Field::gradient && r.field != Field::state;
        Place place = r;
        place.buffer = 0;  // of those that were looked up
        if (known && there.count(place) == 0) fail("reads " + name(r) + " before it is written");
      }
      for (const Requirement& r : launch.requirements) {
        if (r.privilege == Privilege::read) continue;
        if (r.field == Field::partial) {
          check_partition(r, without_slots(r), slots_of(r));
          if (!there.insert(r).second) fail("writes " + name(r) + ", which were written before");
        }
        if (r.field == Field::node_sums) {
          check_nodes(r, plan_.nodes[r.tensor].count());
          there.insert(r);
        }
        if (of_iteration(r.field) || is_stacked(r.field)) continue;
        check_partition(r, r.rects, 1);
        if (r.field == Field::state) continue;
        if (!written.insert(r).second) fail("writes " + name(r) + ", which was written before");
        there.insert(r);
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const int devices_;
  const Launch* launch_ = nullptr;  // of which it is
  int stretch_ = 0;
  std::map<std::pair<Pass, OpId>, const Launch*> seen_;
  IdVector<TensorId, Stack> stacks_;  // of gradients
  std::array<int, kFields> found_{};  // of the iteration's fields: elements that were written
};

}  // namespace

void verify(const Graph& graph, const Plan& plan, int devices) {
  Verifier(graph, plan, devices).verify();
  verify_tenancies(graph, plan);
}

}  // namespace flexlegion
