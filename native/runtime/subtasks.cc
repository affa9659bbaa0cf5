// Cutting one task into parts that threads compute side by side (subtasks.h).
//
// A part is a tile of the task's tile, so what it touches follows from the operator's access maps,
// as for tasks themselves; kernels need not know. A dimension is suitable if the parts write pieces
// of every result that do not overlap and leave nothing out. A weight's gradient, which all parts
// contribute to, is allowed as a sum if it is small beside the tiles: each thread sums into memory
// of its own, and the threads' sums are added at the end.
//
// There are two reasons to cut: as many parts as threads, for speed; and smaller parts where tiles
// have to be converted between two bytes and floats, so that the floats stay in the cache instead
// of going through memory. Sample dimensions come first, being the operator's first.
#include "runtime/subtasks.h"

#include <algorithm>

#include "ops/team.h"

namespace flexlegion {

namespace {

// Scratch slots of a thread: gradients of its own, of its parts and of one of them, + the weight's
// number; and tiles of another type, + the view's.
constexpr int kOwnSlot = 4000, kPartSlot = 5000, kGivenSlot = 6000;
constexpr std::int64_t kFew = 8;  // times as large a task is at least as the gradients added up
constexpr std::int64_t kBlock = 1 << 15;  // elements of a tile, of which several stay in the cache

// The part of a tile that a rectangle covers.
TensorView narrowed_to(const TensorView& view, const Rect& rect) {
  TensorView part = view;
  for (int d = 0; d < rect.rank; ++d) part = narrowed(part, d, rect.lo[d], rect.hi[d]);
  return part;
}

}  // namespace

// Where operands of a role stand in a KernelTask, values and gradients apart.
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

// Operands of each role are numbered by themselves.
std::size_t position_in_role(const Operator& op, int operand) {
  std::size_t position = 0;
  for (int i = 0; i < operand; ++i) position += op.operands[i].role == op.operands[operand].role;
  return position;
}

Subtasks::Subtasks(const Graph& graph, const Launch& launch)
    : forward_(runs_forward(launch.pass)),
      degrees_(launch.degrees),
      first_task_(launch.first_task) {
  const Operator& op = graph.operators[launch.op];
  space_ = space_of(graph, op);
  // Dimensions that the operator reduces are left out: their parts would all add to the same
  // output.
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
    const auto adds = o.role == Role::input ? &KernelTask::adds_input_grad
                      : weight              ? &KernelTask::adds_weight_grad
                                            : nullptr;
    touched_.push_back(
        {values_in(o.role), position, number, tensor.type, forward_ && writes, false, nullptr});
    touched_.push_back({gradients_in(o.role), position, number, tensor.gradient_type(),
                        !forward_ && writes, weight, adds});
  }
}

// Decides whether the task is cut: among the team's threads, if the kernel leaves them idle; and
// into blocks that stay in the cache, if tiles have to be converted for it.
void Subtasks::run(Kernel& kernel, KernelTask& task, int point,
                   const DeviceFunctions& device) const {
  const std::int64_t size = largest(task);
  // Kernels that share out by themselves, and GPUs, take the task as a whole.
  const bool cut = !kernel.shares_out() && &device == device_functions(DeviceKind::cpu);
  const int threads = cut && size >= worth_sharing() ? team_size() : 1;
  const std::int64_t blocks = cut && converts(kernel, task) ? (size + kBlock - 1) / kBlock : 1;
  const Parts parts =
      threads > 1 || blocks > 1
          ? split(task, tile_of(space_, degrees_, first_task_ + point), threads, blocks)
          : Parts();
  if (!parts.empty()) return run_parts(kernel, task, parts, threads, device);
  // Then the team has what the kernel gives to oneDNN, if anything; but not of small tasks.
  if (cut && threads < team_size()) {
    const Team alone(1);
    return compute(kernel, task, device);
  }
  compute(kernel, task, device);
}

void Subtasks::run_parts(Kernel& kernel, const KernelTask& task, const Parts& parts, int threads,
                         const DeviceFunctions& device) const {
  const auto count = static_cast<int>(parts.size());
  // Weights' gradients, of which each part computes a summand of the whole.
  std::vector<const Touched*> gradients;  // that are sums over the parts
  for (const Touched& t : touched_) {
    const TensorView& whole = (task.*t.list)[t.position];
    if (t.summed && whole.present() && !apart(whole, t, parts)) gradients.push_back(&t);
  }
  // Each thread adds up the gradients of its parts: the first in the task's own, the others in
  // scratch memory, from which they come to the first one's.
  std::vector<KernelTask> sums(static_cast<std::size_t>(threads), task);
  std::vector<Metrics> metrics(static_cast<std::size_t>(threads));
  const auto run_range = [&](int thread) {
    KernelTask& mine = sums[static_cast<std::size_t>(thread)];
    for (const Touched* t : gradients) {
      mine.adds_weight_grad.resize(mine.weight_grads.size());
      if (thread == 0) continue;
      TensorView& sum = mine.weight_grads[t->position];
      const int slot = kOwnSlot + static_cast<int>(t->position);
      sum = dense_view(scratch(slot, sum.volume()), sum.tile, sum.shape);
      mine.adds_weight_grad[t->position] = false;
    }
    // Neighbouring parts stay on one thread, whose caches hold what they share.
    const int first = thread * count / threads, last = (thread + 1) * count / threads;
    for (int k = first; k < last; ++k) {
      KernelTask part = part_of(mine, parts[static_cast<std::size_t>(k)]);
      if (task.metrics != nullptr) part.metrics = &metrics[static_cast<std::size_t>(thread)];
      std::vector<std::pair<TensorView, TensorView>> to_add;
      for (const Touched* t : gradients) {
        if (k == first) break;
        if (kernel.accumulates()) {
          part.adds_weight_grad[t->position] = true;
          continue;
        }
        TensorView& gradient = part.weight_grads[t->position];
        const TensorView sum = gradient;
        const int slot = kPartSlot + static_cast<int>(t->position);
        gradient = dense_view(scratch(slot, sum.volume()), sum.tile, sum.shape);
        to_add.emplace_back(sum, gradient);
      }
      compute(kernel, part, device);
      for (const auto& [sum, gradient] : to_add) add_view(sum, gradient);
    }
  };
  // The order of additions depends on the number of threads alone, not on which ends first.
  if (threads == 1) {
    run_range(0);
  } else {
    share_out(threads, run_range);
  }
  for (const Touched* t : gradients) {
    for (int thread = 1; thread < threads; ++thread) {
      const KernelTask& its = sums[static_cast<std::size_t>(thread)];
      add_view(task.weight_grads[t->position], its.weight_grads[t->position]);
    }
  }
  for (const Metrics& its : metrics) {
    if (task.metrics != nullptr) task.metrics->add(its);
  }
}

// A kernel that does not take numbers of two bytes is given floats.
DataType Subtasks::given(const Touched& touched, const Kernel& kernel) const {
  const bool as_floats = is_narrow(touched.stored) && !kernel.takes(touched.stored);
  return as_floats ? DataType::float32 : touched.stored;
}

// Partial values, and contributions to gradients, may be floats where the tensor is stored narrow.
// Whether the kernel has to be given copies in another type.
bool Subtasks::converts(const Kernel& kernel, const KernelTask& task) const {
  return std::any_of(touched_.begin(), touched_.end(), [&](const Touched& t) {
    const TensorView& view = (task.*t.list)[t.position];
    return view.present() && view.type != given(t, kernel);
  });
}

// Where a term of the inputs is absent, outputs are zeros, to which kernels may add.
bool Subtasks::starts_as_zeros(const Touched& touched, const KernelTask& task) const {
  if (touched.list != &KernelTask::outputs) return false;
  return std::any_of(touched_.begin(), touched_.end(), [&](const Touched& t) {
    return t.list == &KernelTask::inputs && operands_[t.operand].first.linear &&
           !(task.*t.list)[t.position].present();
  });
}

// Gives the kernel its tiles as it wants them, and stores its results as they are kept.
void Subtasks::compute(Kernel& kernel, KernelTask& task, const DeviceFunctions& device) const {
  std::vector<std::pair<TensorView, TensorView>> to_store;
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    const Touched& t = touched_[i];
    TensorView& view = (task.*t.list)[t.position];
    const DataType type = given(t, kernel);
    if (!view.present() || view.type == type) continue;
    const TensorView kept = view;
    const std::int64_t floats = floats_for(view.volume(), type);
    float* const buffer = device.scratch(kGivenSlot + static_cast<int>(i), floats);
    view = dense_view(buffer, kept.tile, kept.shape, type);
    const bool adds =
        t.adds != nullptr && t.position < (task.*t.adds).size() && (task.*t.adds)[t.position];
    if (!t.written || adds || starts_as_zeros(t, task)) device.copy(view, kept);
    // Results are rounded once, when they are stored.
    if (t.written) to_store.emplace_back(kept, view);
  }
  forward_ ? kernel.forward(task) : kernel.backward(task);
  for (const auto& [kept, result] : to_store) device.copy(kept, result);
}

// The size of a task: its largest tile.
std::int64_t Subtasks::largest(const KernelTask& task) const {
  std::int64_t most = 0;
  for (const Touched& t : touched_) {
    most = std::max(most, (task.*t.list)[t.position].tile.volume());
  }
  return most;
}

// The tile in parts, along the first dimension that allows it; or none. There are as many as
// threads, or several times as many where so many blocks are wanted.
Subtasks::Parts Subtasks::split(const KernelTask& task, const Rect& tile, int threads,
                                std::int64_t blocks) const {
  const std::int64_t wanted = (blocks + threads - 1) / threads * threads;
  for (int d : dims_) {
    // Blocks of the last dimension would be rows of few elements each.
    const std::int64_t most = d + 1 == tile.rank ? threads : wanted;
    const std::int64_t count = std::min(most, tile.extent(d) / threads * threads);
    if (count < 2) continue;
    std::vector<int> degrees(static_cast<std::size_t>(tile.rank), 1);
    degrees[static_cast<std::size_t>(d)] = static_cast<int>(count);
    Parts parts;
    for (int k = 0; k < count; ++k) parts.push_back(tile_of(tile, degrees, k));
    if (writes_apart(task, parts)) return parts;
  }
  return {};
}

// Sums over the parts cost a pass over the gradient for each part; kFew keeps that small beside the
// task itself.
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

// The same task with all its tiles cut down to what one part of the operator's space touches.
KernelTask Subtasks::part_of(const KernelTask& task, const Rect& part) const {
  KernelTask mine = task;
  for (const Touched& t : touched_) {
    TensorView& view = (mine.*t.list)[t.position];
    if (view.present()) view = narrowed_to(view, rect_of(t, part).intersect(view.tile));
  }
  return mine;
}

}  // namespace flexlegion
