// What bodies of launches are made of: kernels, and what the runtime itself does with views. Those
// of the plan's passes are registered (pass_bodies.h).
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel.h"
#include "ops/partial_values.h"
#include "plan/graph.h"
#include "plan/plan.h"
#include "runtime/launch.h"
#include "runtime/machine.h"

namespace flexlegion {

using Body = std::function<void(LeafContext&)>;

// One kernel a kind of device that tasks run on.
template <typename AnyKernel>
class KernelsOfKinds {
 public:
  AnyKernel& on(DeviceKind kind) const { return *of_[static_cast<int>(kind)]; }
  // Whether that of those devices that are GPUs repeats.
  bool repeat_on(const std::vector<int>& devices) const {
    return std::all_of(devices.begin(), devices.end(), [this](int device) {
      const auto& all = MachineState::get().devices();
      const DeviceKind kind = all[static_cast<std::size_t>(device)].kind;
      return kind != DeviceKind::gpu || on(kind).repeats();
    });
  }

 protected:
  // Makes what `devices` (numbers) lack.
  template <typename Make>
  void fill(const std::vector<int>& devices, Make make) {
    for (int device : devices) {
      const DeviceKind kind = MachineState::get().devices()[static_cast<std::size_t>(device)].kind;
      std::shared_ptr<AnyKernel>& kernel = of_[static_cast<int>(kind)];
      if (!kernel) kernel = make(kind);
    }
  }

 private:
  std::shared_ptr<AnyKernel> of_[2];
};

// An operator's.
class OperatorKernels : public KernelsOfKinds<Kernel> {
 public:
  void provide(const Operator& op, const std::vector<int>& devices);
};

// Which of the graph's losses an operator is, or -1.
int loss_number(const Graph& graph, OpId op);

// A device's function that combines partial values so.
Merge merge_of(Combine combine, const DeviceFunctions& device);

// views[0] = views[1]
void feed_body(LeafContext& context);
// views[0] = 0
void zero_body(LeafContext& context);
// Numbers between a quarter of the largest and the largest, of either sign or positive; of int32,
// from 0 to bound - 1.
struct Values {
  float largest = 1.0f;
  bool positive = false;
  std::int32_t bound = 1;
};
// views[0] becomes such numbers. None of them is tiny; see that no results are, either: arithmetic
// with denormal numbers takes many times as long.
void fill_body(LeafContext& context, const Values& values);
// The partial values in views[0] are summed as before their reader computes.
void sum_body(LeafContext& context);
// A row-major host array, of the tensor's elements or of bytes that stand for them.
struct HostArray {
  const char* base = nullptr;
  std::shared_ptr<const std::array<float, 256>> byte_values = nullptr;  // null: not of bytes
};
// Rows of a host array into a tile: row i of the batch is array row `rows[i]`; rows beyond are
// zero.
void stage_rows(const TensorView& tile, const HostArray& array, const std::int64_t* rows,
                std::int64_t count);
// A tile's part of a row-major host array of the whole tensor.
void store_tile(const TensorView& tile, const char* base);

}  // namespace flexlegion
