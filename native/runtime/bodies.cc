// The bodies of forward, backward and sum launches, and those of the runtime's own launches.
//
// A forward or backward task hands its views to the operator's kernel by their role. It combines
// partial values before, and adds to earlier contributions afterwards.
//
// Why bindings: which requirement goes where is found once, when a program is built; a task then
// copies views to their places in a KernelTask and calls. The steps of a task of the forward or
// backward pass:
// 1. Stacks of partial values that it reads are combined into scratch memory: summed, or by a
//    maximum, or by log(e^a + e^b).
// 2. A slot of a gradient that it writes is the kernel's result itself, if the kernel can add or
//    nothing stands there; else scratch memory, which is added afterwards.
// 3. The kernel runs, in parts where the device has several cores (subtasks.h).
// 4. Contributions that the kernel did not add itself are added.
//
// A launch that is split along a linear input (parts > 1) has tasks that may lack some of these
// inputs; they compute the terms that they have, and nothing where they have none.
#include "runtime/bodies.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "ops/strided_loop.h"
#include "ops/team.h"
#include "runtime/pass_bodies.h"
#include "runtime/subtasks.h"

namespace flexlegion {

namespace {

// Scratch slots of this file, + operand; kernels use the lower ones.
constexpr int kSummedSlot = 1000;    // gradients
constexpr int kCombinedSlot = 1500;  // values
constexpr int kAddedSlot = 2000;
constexpr int kFirstSlot = 2500;  // three
constexpr int kStagedSlot = 2600;
constexpr int kMetricsSlot = 2700;

// Where a requirement's view goes in a KernelTask: a list, and a position in it.
struct Binding {
  ViewList list;
  std::vector<bool> KernelTask::*flags;  // where a kernel that accumulates is told to
  std::size_t position;
  int operand;
  std::vector<bool> adds;  // a gradient that is added to what is there, a task
  bool combines = false;   // partial values, before they are read
  bool shared = false;     // by the parts of the launch: a linear input
  bool writes_slot = false;
  Combine combine = Combine::sum;
  int scratch_slot = kSummedSlot;
};

// What follows from the requirement alone. Reading a stack means all of its slots; writing means
// the task's own slot.
Binding bind(const Operator& op, const Plan& plan, const Requirement& r, int parts) {
  const Role role = op.operands[r.operand].role;
  Binding binding{nullptr, nullptr, position_in_role(op, r.operand), r.operand, r.adds};
  if (r.field == Field::gradient) {
    binding.list = gradients_in(role);
    binding.flags =
        role == Role::input ? &KernelTask::adds_input_grad : &KernelTask::adds_weight_grad;
  } else {
    binding.list = values_in(role);
    binding.shared = parts > 1 && op.operands[r.operand].linear;
    binding.combine = plan.values[r.tensor].combine;
    binding.scratch_slot = kCombinedSlot;
  }
  if (r.field == Field::gradient || r.field == Field::partial) {
    binding.combines = r.privilege == Privilege::read;
    binding.writes_slot = !binding.combines;
  }
  return binding;
}

// A task of which all operands are absent. Their shapes are known all the same.
KernelTask blank_task(const Graph& graph, const Operator& op) {
  KernelTask task;
  for (const Operand& o : op.operands) {
    const auto add = [&](std::vector<TensorView>& values, std::vector<TensorView>& gradients) {
      const std::vector<std::int64_t>& shape = graph.tensors[o.tensor].shape;
      std::copy(shape.begin(), shape.end(), values.emplace_back().shape.begin());
      gradients.push_back(values.back());
    };
    if (o.role == Role::input) add(task.inputs, task.input_grads);
    if (o.role == Role::weight) add(task.weights, task.weight_grads);
    if (o.role == Role::output) add(task.outputs, task.output_grads);
  }
  task.adds_input_grad.resize(task.inputs.size());
  task.adds_weight_grad.resize(task.weights.size());
  return task;
}

// A task's part of the linear inputs. Of nothing, a linear operator computes zeros, and of a sum of
// which a term is nothing, what it computes of the other terms.
struct Part {
  bool absent = false, present = false;  // whether any of them is

  bool lacks_all() const { return absent && !present; }
};

Part part_of(const std::vector<Binding>& bindings, const std::vector<TensorView>& views) {
  Part part;
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    if (bindings[i].shared) (views[i].present() ? part.present : part.absent) = true;
  }
  return part;
}

// What a kernel is not asked for, as its task has nothing of its linear inputs. What others have
// contributed before stays.
void zero_results(const KernelTask& task, const DeviceFunctions& device) {
  const auto zero = [&device](const std::vector<TensorView>& views, const std::vector<bool>& adds) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].present() && !(i < adds.size() && adds[i])) device.zero(views[i]);
    }
  };
  zero(task.input_grads, task.adds_input_grad);
  zero(task.weight_grads, task.adds_weight_grad);
}

}  // namespace

// How two partial values become one.
Merge merge_of(Combine combine, const DeviceFunctions& device) {
  switch (combine) {
    case Combine::max:
      return device.max;
    case Combine::log_sum_exp:
      return device.log_add_exp;
    default:
      return device.add;
  }
}

int loss_number(const Graph& graph, OpId op) {
  if (!graph.operators[op].is_loss) return -1;
  return static_cast<int>(std::count_if(graph.operators.begin(), graph.operators.begin() + op.value,
                                        [](const Operator& before) { return before.is_loss; }));
}

void OperatorKernels::provide(const Operator& op, const std::vector<int>& devices) {
  fill(devices,
       [&](DeviceKind kind) { return make_kernel(op.type, Attributes(op.attributes), kind); });
}

namespace {

// The body of an operator's launch. It is made once: which requirement goes where in a KernelTask.
// Then each task
// 1. puts its views there: partial values are combined first, contributions go to the task's slot;
// 2. calls the kernel, unless it has nothing of its linear inputs, or another part runs for all;
// 3. adds what the kernel could not add itself.
Body kernel_body(const Graph& graph, const Plan& plan, const Launch& planned,
                 const OperatorKernels& kernels) {
  const Operator& op = graph.operators[planned.op];
  std::vector<Binding> bindings;
  for (const Requirement& r : planned.requirements) {
    bindings.push_back(bind(op, plan, r, planned.parts));
  }
  const KernelTask blank = blank_task(graph, op);
  const bool forward = runs_forward(planned.pass);
  const int parts = planned.parts;
  // Whether the first part runs backward for all. Then the other parts' tasks have nothing to do,
  // and only keep the launch's shape.
  const bool idle = !forward && parts > 1 && first_part_alone(op, planned);
  std::vector<std::pair<std::size_t, std::size_t>> maxima;  // (output, binding of its stack)
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    const Binding& b = bindings[i];
    const bool output = b.list == &KernelTask::outputs;
    if (output && b.combines && b.combine == Combine::max) maxima.emplace_back(b.position, i);
  }
  const int loss = loss_number(graph, planned.op);
  // Everything up to here is found once, when the program is built. What follows runs in every
  // iteration.
  const auto subtasks = std::make_shared<const Subtasks>(graph, planned);
  return [bindings, blank, forward, parts, idle, maxima, loss, kernels,
          subtasks](LeafContext& context) {
    const DeviceFunctions& device = *context.device;
    Kernel& kernel = kernels.on(context.kind);
    KernelTask task = blank;
    // A copy of the blank task: bodies run on all processors at once, and share nothing that
    // changes.
    task.run = context.arguments->run;
    if (loss >= 0 && loss < context.arguments->rows) {
      std::memcpy(&task.run.label_share, context.rows + loss, sizeof(double));
    }
    task.metrics = &context.metrics;
    // A GPU's loss has one more requirement than the plan says, which the program added
    // (add_loss_answer).
    if (context.views.size() > bindings.size()) {  // a place for them on the device
      device.zero(context.views.back());
      task.metrics = static_cast<Metrics*>(context.views.back().data);
    } else if (context.kind == DeviceKind::gpu) {  // which cannot reach ours
      constexpr auto kFloats = static_cast<std::int64_t>(sizeof(Metrics) / sizeof(float));
      task.metrics =
          loss < 0 ? nullptr : reinterpret_cast<Metrics*>(device.scratch(kMetricsSlot, kFloats));
    }
    std::vector<std::pair<TensorView, TensorView>> to_add;  // (accumulated, contribution)
    for (std::size_t i = 0; i < bindings.size(); ++i) {
      const Binding& b = bindings[i];
      TensorView view = context.views[i];
      if (b.combines) {
        view = combined(view, merge_of(b.combine, device), b.scratch_slot + b.operand, device);
      }
      if (b.writes_slot) {
        view = slot_of(view, view.tile.lo[0]);
        const auto point = static_cast<std::size_t>(context.point);
        const bool adds = point < b.adds.size() && b.adds[point];
        if (adds && kernel.accumulates()) {
          (task.*b.flags)[b.position] = true;
        } else if (adds) {
          // The kernel overwrites, so it gets a tile of its own, and the sum is taken afterwards.
          const TensorView fresh = dense_view(device.scratch(kAddedSlot + b.operand, view.volume()),
                                              view.tile, view.shape);
          to_add.emplace_back(view, fresh);
          view = fresh;
        }
      }
      (task.*b.list)[b.position] = view;
    }
    // Of a linear operator whose input is cut into parts, a task may have none of it.
    const Part part = part_of(bindings, context.views);
    if (forward) {
      for (const TensorView& output : task.outputs) {
        if (part.absent) device.zero(output);
      }
      if (!part.lacks_all()) subtasks->run(kernel, task, context.point, device);
    } else if (part.lacks_all()) {
      zero_results(task, device);
    } else if (!idle || context.point % parts == 0) {
      for (const auto& [output, binding] : maxima) {
        TensorView& gradient = task.output_grads[output];
        const TensorView& stack = context.views[binding];
        // A maximum that several parts have reached rewards the first of them alone.
        gradient =
            gradient_of_first(gradient, stack, context.point % stack.extent(0), kFirstSlot, device);
      }
      subtasks->run(kernel, task, context.point, device);
    }
    for (const auto& [accumulated, contribution] : to_add) device.add(accumulated, contribution);
  };
}

// Whether GPUs' tasks of such a launch can be recorded. Those of a loss tell the host what they
// found.
Recordable recordable_kernel(const Operator& op, const Launch& planned,
                             const OperatorKernels& kernels) {
  const bool tells = op.is_loss && planned.pass == Pass::forward;
  return !tells && kernels.repeat_on(planned.devices) ? Recordable::always : Recordable::never;
}

// A sum task combines shards of an operator's partial values. A launch may sum several outputs of
// one operator; each is a stack that it reads and a value that it writes.
Body combine_body(const Plan& plan, const Launch& planned) {
  struct Output {
    std::size_t partial = 0, summed = 0;  // requirements
    Combine combine = Combine::sum;
  };
  std::map<TensorId, Output> found;
  for (std::size_t i = 0; i < planned.requirements.size(); ++i) {
    const Requirement& r = planned.requirements[i];
    Output& output = found[r.tensor];
    output.combine = plan.values[r.tensor].combine;
    (r.role == RequirementRole::partial ? output.partial : output.summed) = i;
  }
  return [found](LeafContext& context) {
    const DeviceFunctions& device = *context.device;
    for (const auto& [tensor, output] : found) {
      const TensorView& value = context.views[output.summed];
      if (!value.present()) continue;
      const TensorView& stack = context.views[output.partial];
      const Merge merge = merge_of(output.combine, device);
      if (value.narrow()) {  // which is rounded once
        device.copy(value, combined(stack, merge, kCombinedSlot, device));
      } else {
        combine(stack, merge, value, device);
      }
    }
  };
}

LaunchBody operator_body(const PlannedWork& work) {
  const Operator& op = work.graph.operators[work.launch.op];
  // Forward and backward share the kernel object, and so what it keeps from call to call.
  work.kernels.provide(op, work.launch.devices);
  return {kernel_body(work.graph, work.plan, work.launch, work.kernels),
          recordable_kernel(op, work.launch, work.kernels)};
}

LaunchBody sum_launch_body(const PlannedWork& work) {
  return {combine_body(work.plan, work.launch), Recordable::always};
}

const RegisterPassBody kForward(Pass::forward, KernelsOf::operators, operator_body);
const RegisterPassBody kAgain(Pass::again, KernelsOf::operators, operator_body);
const RegisterPassBody kBackward(Pass::backward, KernelsOf::operators, operator_body);
const RegisterPassBody kSum(Pass::sum, KernelsOf::none, sum_launch_body);
const RegisterPassBody kAgainSum(Pass::again_sum, KernelsOf::none, sum_launch_body);

}  // namespace

void feed_body(LeafContext& context) { context.device->copy(context.views[0], context.views[1]); }

void zero_body(LeafContext& context) {
  if (context.views[0].present()) context.device->zero(context.views[0]);
}

// Numbers for what a measured task reads: sensible magnitudes, cheap to draw, the same at each run.
void fill_body(LeafContext& context, const Values& values) {
  const TensorView& view = context.views[0];
  if (!view.present()) return;
  std::uint32_t state = 1;
  const auto draw = [&](std::int32_t& number) {
    state = state * 1664525U + 1013904223U;  // Numerical Recipes' generator: cheap, and no pattern
    number = static_cast<std::int32_t>((state >> 8) % values.bound);
  };
  const auto draw_real = [&] {
    state = state * 1664525U + 1013904223U;
    const float share = 0.25f + 0.75f * static_cast<float>(state >> 8) * 0x1p-24f;
    const float magnitude = share * values.largest;
    return values.positive || (state & 0x80U) != 0 ? magnitude : -magnitude;
  };
  for_each_run<1>({&view}, [&](const Offsets<1>& at, std::int64_t n) {
    for (std::int64_t i = at[0]; i < at[0] + n; ++i) {
      if (view.type == DataType::int32) {
        draw(view.i32()[i]);
      } else if (view.narrow()) {
        const float value = draw_real();
        view.bits()[i] = rounded(view.type, value);
      } else {
        view.f32()[i] = draw_real();
      }
    }
  });
}

void sum_body(LeafContext& context) { summed(context.views[0], kSummedSlot, *context.device); }

void stage_rows(const TensorView& tile, const HostArray& array, const std::int64_t* rows,
                std::int64_t count) {
  std::int64_t elements = 1;
  for (int d = 1; d < tile.rank(); ++d) elements *= tile.shape[d];
  const auto row_bytes = static_cast<std::size_t>(elements * element_bytes(tile.type));
  const bool bytes = array.byte_values != nullptr;
  // Host arrays hold floats or 32-bit integers, which are as large, or bytes that stand for floats.
  const std::int64_t host_bytes = elements * (bytes ? 1 : element_bytes(DataType::float32));
  const auto stage_row = [&](std::int64_t i) {
    void* const to = tile.at((i - tile.tile.lo[0]) * tile.stride[0]);
    // Rows beyond the batch are padding: zeros, which no loss counts.
    if (i >= count) {
      std::memset(to, 0, row_bytes);
      return;
    }
    const char* const row = array.base + rows[i] * host_bytes;
    if (!bytes && !tile.narrow()) {
      std::memcpy(to, row, row_bytes);
    } else if (!bytes) {
      round_off(tile.type, reinterpret_cast<const float*>(row), static_cast<Narrow*>(to), elements);
    } else {
      auto* const values = tile.narrow() ? scratch(kStagedSlot, elements) : static_cast<float*>(to);
      const auto* const first = reinterpret_cast<const unsigned char*>(row);
      std::transform(first, first + elements, values,
                     [&](unsigned char byte) { return (*array.byte_values)[byte]; });
      if (tile.narrow()) round_off(tile.type, values, static_cast<Narrow*>(to), elements);
    }
  };
  const std::int64_t first = tile.tile.lo[0], staged = tile.tile.hi[0] - first;
  share_range(staged, staged * elements, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t i = first + lo; i < first + hi; ++i) stage_row(i);
  });
}

// A tile of a weight, from the host's array of all of it.
void store_tile(const TensorView& tile, const char* base) {
  if (!tile.present()) return;
  Rect whole = tile.tile;
  for (int d = 0; d < whole.rank; ++d) {
    whole.lo[d] = 0;
    whole.hi[d] = tile.shape[d];
  }
  // The host array has the whole tensor: the tile's part of it has the same coordinates.
  TensorView host = dense_view(const_cast<char*>(base), whole, tile.shape);
  for (int d = 0; d < whole.rank; ++d) {
    host.data = host.at(tile.tile.lo[d] * host.stride[d]);
  }
  host.tile = tile.tile;
  copy_view(tile, host);
}

}  // namespace flexlegion
