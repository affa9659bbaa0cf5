#include "runtime/subtasks.h"

#include <algorithm>

#include "ops/team.h"

namespace flexlegion {

namespace {

// Scratch slots of gradients of a thread's own, + its number and the weight's.
constexpr int kOwnSlot = 4000, kMostWeights = 64;
constexpr std::int64_t kFew = 8;  // times as large a task is at least as the gradients added up

TensorView narrowed_to(const TensorView& view, const Rect& rect) {
  TensorView part = view;
  for (int d = 0; d < rect.rank; ++d) part = narrowed(part, d, rect.lo[d], rect.hi[d]);
  return part;
}

}  // namespace

ViewList values_in(Role role) {
  return role == Role::input    ? &KernelTask::inputs
         : role == Role::weight ? &KernelTask::weights
                                : &KernelTask::outputs;
}

ViewList gradients_in(Role role) {
  return role == Role::input    ? &KernelTask::input_grads
         : role == Role::weight ? &KernelTask::weight_grads
                                : &KernelTask::output_grads;
}

std::size_t position_in_role(const Operator& op, int operand) {
  std::size_t position = 0;
  for (int i = 0; i < operand; ++i) position += op.operands[i].role == op.operands[operand].role;
  return position;
}

Subtasks::Subtasks(const Graph& graph, const Launch& launch)
    : forward_(launch.pass == Pass::forward),
      degrees_(launch.degrees),
      first_task_(launch.first_task) {
  const Operator& op = graph.operators[launch.op];
  space_ = space_of(graph, op);
  for (int d = 0; d < static_cast<int>(op.dims.size()) && launch.parts == 1; ++d) {
    const DimKind kind = op.dims[static_cast<std::size_t>(d)];
    if (kind == DimKind::sample || kind == DimKind::attribute || kind == DimKind::parameter) {
      dims_.push_back(d);
    }
  }
  for (int i = 0; i < static_cast<int>(op.operands.size()); ++i) {
    const Operand& o = op.operands[i];
    const Tensor& tensor = graph.tensors[o.tensor];
    const bool output = o.role == Role::output, weight = o.role == Role::weight;
    const bool writes = forward_ ? output || tensor.is_state : !output;
    const std::size_t position = position_in_role(op, i), number = operands_.size();
    operands_.emplace_back(o, tensor);
    touched_.push_back({values_in(o.role), position, number, forward_ && writes, false});
    touched_.push_back({gradients_in(o.role), position, number, !forward_ && writes, weight});
  }
}

void Subtasks::run(Kernel& kernel, KernelTask& task, int point) const {
  const int threads = team_size();
  if (threads == 1 || kernel.shares_out()) return compute(kernel, task);
  if (!is_large(task)) {
    const Team alone(1);
    return compute(kernel, task);
  }
  const Parts parts = split(task, tile_of(space_, degrees_, first_task_ + point), threads);
  // Then the team has what the kernel gives to oneDNN, if anything.
  if (parts.empty()) return compute(kernel, task);
  std::vector<KernelTask> tasks;
  std::vector<Metrics> metrics(parts.size());
  for (int k = 0; k < threads; ++k) {
    tasks.push_back(part_of(task, parts, k));
    if (task.metrics != nullptr) tasks.back().metrics = &metrics[static_cast<std::size_t>(k)];
  }
  share_out(threads, [&](int k) {
    KernelTask& mine = tasks[static_cast<std::size_t>(k)];
    for (const Touched& t : touched_) {  // in this thread's scratch memory
      if (!t.summed || k == 0) continue;
      TensorView& gradient = (mine.*t.list)[t.position];
      if (!gradient.present() || apart((task.*t.list)[t.position], t, parts)) continue;
      const int slot = kOwnSlot + k * kMostWeights + static_cast<int>(t.position);
      gradient = dense_view(scratch(slot, gradient.volume()), gradient.tile, gradient.shape);
    }
    compute(kernel, mine);
  });
  for (const Touched& t : touched_) {
    const TensorView& whole = (task.*t.list)[t.position];
    if (!t.summed || !whole.present() || apart(whole, t, parts)) continue;
    for (std::size_t k = 1; k < parts.size(); ++k) add_view(whole, (tasks[k].*t.list)[t.position]);
  }
  for (const Metrics& its : metrics) {
    if (task.metrics != nullptr) task.metrics->add(its);
  }
}

bool Subtasks::is_large(const KernelTask& task) const {
  return std::any_of(touched_.begin(), touched_.end(), [&](const Touched& t) {
    return (task.*t.list)[t.position].tile.volume() >= worth_sharing();
  });
}

// The tile in as many parts, along the first dimension that allows it; or nothing.
Subtasks::Parts Subtasks::split(const KernelTask& task, const Rect& tile, int threads) const {
  for (int d : dims_) {
    if (tile.extent(d) < threads) continue;
    std::vector<int> degrees(static_cast<std::size_t>(tile.rank), 1);
    degrees[static_cast<std::size_t>(d)] = threads;
    Parts parts;
    for (int k = 0; k < threads; ++k) parts.push_back(tile_of(tile, degrees, k));
    if (writes_apart(task, parts)) return parts;
  }
  return {};
}

bool Subtasks::writes_apart(const KernelTask& task, const Parts& parts) const {
  std::int64_t added = 0, largest = 0;
  for (const Touched& t : touched_) {
    const TensorView& view = (task.*t.list)[t.position];
    largest = std::max(largest, view.tile.volume());
    if (!t.written || !view.present() || apart(view, t, parts)) continue;
    if (!t.summed) return false;
    for (const Rect& part : parts) {
      if (rect_of(t, part) != view.tile) return false;
    }
    added += view.tile.volume() * static_cast<std::int64_t>(parts.size());
  }
  return added * kFew <= largest;
}

// Whether what the parts write of a view are pieces of it, which no two share.
bool Subtasks::apart(const TensorView& view, const Touched& touched, const Parts& parts) const {
  std::int64_t elements = 0;
  Rect before;
  for (const Rect& part : parts) {
    const Rect rect = rect_of(touched, part);
    if (!view.tile.contains(rect) || before.overlaps(rect)) return false;
    elements += rect.volume();
    before = rect;
  }
  return elements == view.tile.volume();
}

KernelTask Subtasks::part_of(const KernelTask& task, const Parts& parts, int k) const {
  KernelTask mine = task;
  for (const Touched& t : touched_) {
    TensorView& view = (mine.*t.list)[t.position];
    if (!view.present()) continue;
    const Rect rect = rect_of(t, parts[static_cast<std::size_t>(k)]);
    view = narrowed_to(view, rect.intersect(view.tile));
    // A gradient of a thread's own is written, whatever stands in the task's.
    const bool own = k > 0 && t.summed && rect == (task.*t.list)[t.position].tile;
    if (own && t.position < mine.adds_weight_grad.size()) {
      mine.adds_weight_grad[t.position] = false;
    }
  }
  return mine;
}

}  // namespace flexlegion
