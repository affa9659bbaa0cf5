// What a flow holds: step 3 of flow_rules.h, by the rule by which the plan counts memory.
//
// The runtime allocates bounding boxes. Of each place and device there are two: of what tasks there
// read, and of what they write (box); and so of each memory. Partial values have a slot in front of
// their rectangle: a box covers all slots that a task reads, or the one that it writes
// (box_gradient). When all uses of a place are known, hold() counts the instances that follow from
// both boxes (held_elements), for the kind of content that the place has.
//
// Contributions to a gradient that is summed inside nodes get their slots' numbers when all of them
// are there, so their boxes come last (box_contributions).
#include "sim/flow_rules.h"

#include <algorithm>

namespace flexlegion {

namespace {

using R = RequirementRole;

// As what the memory counts that a place takes.
Content content_of(const Graph& graph, const Place& place) {
  if (of_iteration(place.field)) return Content::weight_gradient;
  if (place.field == Field::state) return Content::optimizer_state;
  if (place.field == Field::node_sums || place.field == Field::reduced) {
    return Content::weight_gradient;
  }
  const TensorKind kind = graph.tensors[place.tensor].kind;
  const bool weight = kind == TensorKind::weight;
  if (place.field == Field::gradient) {
    return weight ? Content::weight_gradient : Content::gradient;
  }
  if (weight) return Content::weight;
  return kind == TensorKind::input ? Content::batch : Content::activation;
}

}  // namespace

// What tasks touch of a place, where it lies in the memories of their devices.
void FlowRules::box(const View& view) {
  const Use& use = *view.use;
  const bool written = use.privilege != Privilege::read;
  for (int k = 0; k < view.tasks(); ++k) {
    const Rect& rect = view.rect(k);
    if (rect.empty()) continue;
    const int device = (*view.devices)[k];
    if (use.field == Field::gradient || use.field == Field::node_sums) {
      box_gradient(view, k);
      continue;
    }
    const Slots slots = view.terms.of_task(k);
    if (slots.first == slots.last) continue;
    box(device, view.terms.slots > 1 ? rect.in_slots(slots.first, slots.last) : rect, written);
  }
}

// Partial values of a gradient, those of a node, or the sums of nodes.
void FlowRules::box_gradient(const View& view, int k) {
  const Use& use = *view.use;
  const int device = (*view.devices)[k], node = view.node(k);
  const Rect& rect = view.rect(k);
  if (use.role == R::node_sum) {
    box(device, rect.in_slots(node, node + 1), true);
    return;
  }
  if (use.sums_gradient() && node >= 0) {
    box(device, rect.in_slots(0, placements_.nodes(use.tensor).count()), false);
    return;
  }
  Rect stacked = contributions_.stacked(rect);
  Rect zeroed = stacked.in_all_slots(contributions_.slots());
  if (use.role == R::node_gradient) {
    const Slots its = contributions_.of_node(node);
    stacked = zeroed = rect.in_slots(its.first, its.last);
  }
  box(device, stacked, false);
  const Rect whole = Rect::of_shape(problem_.graph.tensors[use.tensor].shape);
  if (!contributions_.fully_written(whole.volume())) box(device, zeroed, true);
}

// What was contributed to a gradient that is summed inside nodes, when the slots have their
// numbers.
void FlowRules::box_contributions() {
  const std::vector<int> numbers = contributions_.numbers();
  for (std::size_t p = 0; p < contributions_.pieces().size(); ++p) {
    const Contributions::Piece& its = contributions_.pieces()[p];
    const Rect& rect = pieces_[p].tiles->parts.rects[pieces_[p].distinct];
    const int slot = numbers[its.slot];
    box(its.device, rect.in_slots(slot, slot + 1), true);
  }
}

// A box grows with each use. Which devices have any is listed, for hold() to walk.
void FlowRules::box(int device, const Rect& rect, bool written) {
  if (rect.empty()) return;
  Boxes& boxes = boxes_[device];
  if (boxes.empty()) boxed_.push_back(device);
  boxes.add(rect, written);
}

// By what a tenant shares its register (plan/registers.h), once its boxes are complete.
std::uint64_t FlowRules::tenant_key(const Place& place, const Buffers& buffers) {
  int slots = 1;
  if (place.field == Field::gradient) {
    const Rect whole = Rect::of_shape(problem_.graph.tensors[place.tensor].shape);
    if (!contributions_.fully_written(whole.volume())) return 0;
    slots = contributions_.slots();
  } else if (place.field == Field::partial) {
    slots = placements_.stack(place.tensor).slots;
  } else if (place.field == Field::node_sums) {
    slots = placements_.nodes(place.tensor).count();
  }
  if (boxed_.empty()) return 0;
  std::sort(boxed_.begin(), boxed_.end());
  const bool local = std::all_of(boxed_.begin(), boxed_.end(),
                                 [this](int device) { return boxes_[device].local(); });
  if (local && id_->registers.local >= 0) {
    const std::int64_t bytes = element_bytes(type_of(problem_.graph, place)) * buffers.held;
    for (int device : boxed_) {
      local_.emplace_back(device, aligned(boxes_[device].written.volume()) * bytes);
    }
    uniform_ = false;
    return TenantKey(buffers).value();
  }
  if (id_->registers.alike < 0) return 0;
  uniform_ = std::all_of(boxed_.begin(), boxed_.end(),
                         [this](int device) { return boxes_[device].uniform; });
  TenantKey key(slots, buffers, uniform_);
  for (int device : boxed_) key.add(device, boxes_[device].read, boxes_[device].written);
  return key.value();
}

// Counts the memory of a place, once its boxes are complete: devices of one memory share boxes. The
// plan's rule says which instances follow from the boxes (rect.h).
void FlowRules::hold(const PlaceUses& its) {
  const Content content = content_of(problem_.graph, its.place);
  const std::int64_t bytes = element_bytes(type_of(problem_.graph, its.place));
  const bool ahead =
      !its.uses.empty() && row_of(launch_graph_.key_of(its.uses.front().launch).pass).ahead;
  const Buffers buffers = placements_.buffers(its.place);
  buffers_ = buffers.held;
  if (has_register()) tenant_ = tenant_key(its.place, buffers);
  for (int device : boxed_) {
    const int memory = memory_of(device);
    Boxes &mine = boxes_[device], &all = in_memory_[memory];
    if (all.empty()) memories_.push_back(memory);
    all = {all.read.bounding(mine.read), all.written.bounding(mine.written)};
    mine = {};
  }
  for (int memory : memories_) {
    Boxes& boxes = in_memory_[memory];
    // The next batch is staged while the present one computes.
    const std::int64_t staged = ahead ? boxes.written.volume() * problem_.graph.micro_batches : 0;
    builder_.hold(memory, content,
                  (held_elements(boxes.read, boxes.written) * buffers_ + staged) * bytes);
    boxes = {};
  }
  boxed_.clear();
  memories_.clear();
}

}  // namespace flexlegion
