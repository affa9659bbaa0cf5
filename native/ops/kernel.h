// What a leaf kernel is: the computation of one task, on one device, over tiles of the operator's
// tensors.
//
// A kernel is made once an operator, from the operator's attributes; its methods are called from
// several threads at once, one a task. It knows nothing of Legion, of the plan, or of the other
// tiles: a tile's views carry its global coordinates, from which e.g. a convolution finds out which
// sides of the tile are padded.
//
// Rules of a kernel:
// - forward() writes every element of the output tiles; backward() writes every element of each
// gradient tile that is present(). The sum over tasks is the runtime's (plan.h, "partial values"),
// but for a kernel that says it accumulates(): where task.adds_... is true, that one adds the
// gradient to what stands in the tile, which spares a pass over it.
// - States (running averages) are the operator's own: forward() reads and writes them. Other
// weights are only read.
// - backward() may read only what the operator declares as `saved_for_backward` (flexlegion/ops);
// other views are absent.
// - A tile may cover a part of what the operator reduces: then the output is a partial value, and
// an operand that is to be added once (a bias) is absent in all parts but one. Inputs in which the
// operator is linear may be absent, but not all: then the outputs' tiles start as zeros.
// - Tiles that are stored in two bytes (ops/narrow.h) are brought as floats, and results rounded
// (runtime/subtasks.h); but to a kernel that says that it takes them as they are. What it computes
// is float32 all the same.
// - On a device of several cores, a task is cut into one for each thread (runtime/subtasks.h), so a
// kernel computes with the calling thread alone; but for one that says that it shares out what it
// does among the threads itself, as those do that spend their time in oneDNN's primitives (team.h).
// - It keeps primitives and scratch memory from call to call, and reports failure by an exception
// that names the operator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/tensor_view.h"

namespace flexlegion {

enum class DeviceKind { cpu, gpu };

// An operator's attributes, as the layer API gave them: names and texts.
class Attributes {
 public:
  Attributes() = default;
  explicit Attributes(std::vector<std::pair<std::string, std::string>> entries)
      : entries_(std::move(entries)) {}
  std::int64_t integer(const std::string& name) const;
  std::int64_t integer(const std::string& name, std::int64_t if_absent) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;  // throws std::invalid_argument if absent

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
};

// What changes from one iteration to the next.
struct RunState {
  std::int64_t step = 0;  // iterations done so far: dropout's counter, Adam's bias correction
  std::int64_t valid_samples = 0;  // samples of this batch that count; the rest is padding
  // Of the iteration's batch: how many samples count, of all micro-batches together; the first one
  // of this micro-batch.
  std::int64_t batch_samples = 0, first_sample = 0;
  // For a loss: what each of its values that count adds to the goal, the weighted sum of the means
  // over these values.
  double label_share = 0;
  double learning_rate = 0;
  // What all gradients are multiplied with, so that float16 holds them: in the losses' label_share,
  // and again, the other way round, before they are used. 0: they are not.
  double loss_scale = 0;
  std::uint64_t seed = 0;
  std::int32_t training = 0;
};

// Sums over the losses of a loss task's tile that count, one a sample, or a sample and step; the
// trainer adds the tasks' sums and divides.
struct Metrics {
  double loss = 0;
  double correct = 0;
  double correct_top5 = 0;
  double squared_error = 0;
  double absolute_error = 0;
  std::int64_t labels = 0;     // losses that count
  std::int64_t samples = 0;    // each counted by the task that has its first step
  std::int64_t overflows = 0;  // iterations whose scaled gradients were not finite

  // A label's loss, and how many classes are likelier than its own.
  void add_class(double its_loss, std::int64_t rank) {
    loss += its_loss;
    correct += rank == 0 ? 1 : 0;
    correct_top5 += rank < 5 ? 1 : 0;
    ++labels;
  }

  void add(const Metrics& other) {
    loss += other.loss;
    correct += other.correct;
    correct_top5 += other.correct_top5;
    squared_error += other.squared_error;
    absolute_error += other.absolute_error;
    labels += other.labels;
    samples += other.samples;
    overflows += other.overflows;
  }
};

struct KernelTask {
  std::vector<TensorView> inputs, weights, outputs;
  std::vector<TensorView> input_grads, weight_grads, output_grads;
  // Only if the kernel accumulates(); a list that is too short asks for nothing.
  std::vector<bool> adds_input_grad, adds_weight_grad;
  RunState run;
  Metrics* metrics = nullptr;  // loss operators add into it in forward()

  // Whether somebody needs the gradient of an operand.
  bool wants_input_grad(std::size_t i) const {
    return i < input_grads.size() && input_grads[i].present();
  }
  bool wants_weight_grad(std::size_t i) const {
    return i < weight_grads.size() && weight_grads[i].present();
  }
  // Whether a gradient is added to what stands in its tile.
  bool adds_to_input_grad(std::size_t i) const {
    return i < adds_input_grad.size() && adds_input_grad[i];
  }
  bool adds_to_weight_grad(std::size_t i) const {
    return i < adds_weight_grad.size() && adds_weight_grad[i];
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void forward(KernelTask& task) = 0;
  virtual void backward(KernelTask& task) = 0;
  virtual bool accumulates() const { return false; }
  virtual bool shares_out() const { return false; }
  virtual bool takes(DataType) const { return false; }  // of two bytes
  // Whether a GPU is asked for the same work whatever the step is: then that can be recorded
  // (runtime/recorded_work.h). Not so if the host waits for what was computed.
  virtual bool repeats() const { return true; }
};

using KernelFactory = std::function<std::unique_ptr<Kernel>(const Attributes&)>;

// An optimizer's update of one shard of a weight. `gradient` is dense; `states` are the optimizer's
// fields. A GPU's changes nothing if there is a number in its memory, `only_if_finite`, that is not
// finite: the host does not know it.
class UpdateKernel {
 public:
  virtual ~UpdateKernel() = default;
  virtual void update(const TensorView& value, const TensorView& gradient,
                      const std::vector<TensorView>& states, const RunState& run,
                      const float* only_if_finite) = 0;
  // Whether of a table it changes the rows alone that were looked up, and their states. So it may
  // if an update by a gradient of zeros changes nothing.
  virtual bool lazy() const { return false; }
  // Whether a GPU is asked for the same work as long as the learning rate stays.
  virtual bool repeats() const { return false; }
};

using UpdateKernelFactory = std::function<std::unique_ptr<UpdateKernel>(const Attributes&)>;

// Kernels register themselves, by the operator type's name, while the library is loaded:
//   static const RegisterKernel registered("conv2d", [](const Attributes& a) { ... });
// Each kind of device has kernels of its own.
struct RegisterKernel {
  RegisterKernel(const std::string& operator_type, KernelFactory factory,
                 DeviceKind kind = DeviceKind::cpu);
};
struct RegisterUpdateKernel {
  RegisterUpdateKernel(const std::string& optimizer, UpdateKernelFactory factory,
                       DeviceKind kind = DeviceKind::cpu);
};

// A name that was registered twice, as a sentence; empty: none was. The first kernel stays.
const std::string& registration_mistake();

std::unique_ptr<Kernel> make_kernel(const std::string& operator_type, const Attributes& attributes,
                                    DeviceKind kind = DeviceKind::cpu);
std::unique_ptr<UpdateKernel> make_update_kernel(const std::string& optimizer,
                                                 const Attributes& attributes,
                                                 DeviceKind kind = DeviceKind::cpu);
// Sorted.
std::vector<std::string> kernel_names(DeviceKind kind = DeviceKind::cpu);
std::vector<std::string> update_kernel_names(DeviceKind kind = DeviceKind::cpu);

}  // namespace flexlegion
