// What the runtime asks of a kind of device beside kernels: to move tiles, to add them up, to
// update weights. CPU processors' are part of the runtime, GPUs' come with their kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/kernel.h"
#include "ops/precision.h"
#include "ops/table_gradient.h"
#include "ops/tensor_view.h"

namespace flexlegion {

// The gradient of a weight's shard: the stack of its partial values (slot, ...), or, of a table,
// what was looked up, already summed, and which rows the shard has.
struct WeightGradient {
  bool of_table = false;
  TensorView stack;
  std::vector<Lookup> lookups;
  TableRows rows;
};

struct WeightUpdate {
  UpdateKernel& kernel;
  TensorView value;
  std::vector<TensorView> states;
  WeightGradient gradient;
  const RunState& run;
  // One element, or absent: the norm of all gradients, which is to be at most `clip_norm`; 0: any.
  // Scaled gradients (RunState::loss_scale) of a norm that is not finite change nothing.
  TensorView norm;
  double clip_norm = 0;
  // Where the new value is rounded to, if it is stored in two bytes as well.
  TensorView rounded;
  // A moving average of the value, or absent; and its factor.
  TensorView average = {};
  double ema = 0;

  bool scaled() const { return run.loss_scale > 0; }
  // The share of the new value in the average: all of it in the first iteration.
  float new_share() const { return run.step == 0 ? 1.0f : static_cast<float>(1.0 - ema); }
};

// The average that follows a value. As PyTorch's lerp: from the nearer end, so that a share of one
// gives the value itself.
FL_DEVICE inline float followed(float average, float value, float share) {
  return share < 0.5f ? average + share * (value - average)
                      : value - (value - average) * (1.0f - share);
}

// What gradients of that norm are multiplied with before they are used, so that they are not scaled
// any more and their norm is at most `clip_norm`. As in PyTorch, a small number keeps a norm of
// zero from dividing.
FL_DEVICE inline float gradient_factor(float norm, double clip_norm, double loss_scale) {
  const double scale = loss_scale > 0 ? 1.0 / loss_scale : 1.0;
  if (!(clip_norm > 0)) return static_cast<float>(scale);
  const double bound = clip_norm / (static_cast<double>(norm) * scale + 1e-6);
  return static_cast<float>(bound < 1.0 ? bound * scale : scale);
}

// What a GPU is, as its driver tells it.
struct GpuFacts {
  std::string name;          // "NVIDIA H200"
  std::string software;      // libraries and their versions
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int clock_khz = 0, memory_clock_khz = 0;  // the highest; 0: it does not tell
  int memory_bus_bits = 0;
};

// Work of a GPU, to be done again and again; null: of none.
using Recording = std::shared_ptr<void>;

struct DeviceFunctions {
  // As ops/tensor_view.h's.
  void (*copy)(const TensorView& to, const TensorView& from) = nullptr;
  void (*add)(const TensorView& to, const TensorView& from) = nullptr;
  void (*max)(const TensorView& to, const TensorView& from) = nullptr;
  void (*log_add_exp)(const TensorView& to, const TensorView& from) = nullptr;
  void (*zero)(const TensorView& to) = nullptr;
  void (*zero_where_equal)(const TensorView& to, const TensorView& a,
                           const TensorView& b) = nullptr;
  float* (*scratch)(int slot, std::int64_t elements) = nullptr;

  void (*update)(const WeightUpdate& update) = nullptr;
  // *norm becomes the root of the sum of the squares of all elements.
  void (*find_norm)(const std::vector<WeightGradient>& gradients, float* norm) = nullptr;

  // Of devices whose tasks only issue work, to a stream. What follows on the calling thread uses
  // that stream and that precision, and an arena of device memory for scratch().
  void (*begin_task)(void* stream, void* arena, std::int64_t bytes, Precision precision) = nullptr;
  void (*end_task)() = nullptr;
  // Records what issue(i) issues for each i below `parts`, each as a task of its own, instead of
  // doing it; null if some of it cannot be recorded. Absent of devices that record nothing.
  Recording (*record)(void* arena, std::int64_t bytes, Precision precision, int parts,
                      const std::function<void(int)>& issue) = nullptr;
  // Issues what was recorded, to the running task's stream.
  void (*replay)(const Recording& recording) = nullptr;
  // Notes the moment at which the stream comes to this point; a number to name it by.
  int (*mark)() = nullptr;
  // When that was, in ns of the host's steady clock; waits for it. Forgets the moment.
  std::int64_t (*time_of)(int mark) = nullptr;

  // Of GPUs, by CUDA's numbers.
  GpuFacts (*describe)(int ordinal) = nullptr;
  // How `from` reaches the memory of `to` without the host: 1 for the fastest way that there is
  // between GPUs, higher numbers for others; 0 if it does not.
  int (*peer_class)(int from, int to) = nullptr;
};

// The sizes of what passes between the runtime and a library of such functions and kernels, as one
// number. Raise the first factor where a meaning changes and no size does.
constexpr std::uint64_t device_interface() {
  std::uint64_t number = 6;
  for (const std::size_t size :
       {sizeof(DeviceFunctions), sizeof(WeightUpdate), sizeof(GpuFacts), sizeof(KernelTask),
        sizeof(TensorView), sizeof(RunState), sizeof(Lookup)}) {
    number = number * 1009 + size;
  }
  return number;
}

// GPUs' functions come from a library of its own, which may be older than the runtime. So it says
// by which interface it was compiled; a default argument is compiled where the call stands.
struct RegisterDeviceFunctions {
  RegisterDeviceFunctions(
      const DeviceFunctions& functions, DeviceKind kind,
      std::uint64_t interface = std::integral_constant<std::uint64_t, device_interface()>::value);
};

// Null if there are none, or they were compiled by another interface than the runtime.
const DeviceFunctions* device_functions(DeviceKind kind);

}  // namespace flexlegion
