// expression: a formula over the elements of several tensors, which are broadcast to the output.
//
// Each thread runs the whole program for an element. The gradient of a broadcast input is a sum
// over elements, each of whose terms is computed anew: nothing of the output's size is kept.
//
// Costs: forwards one launch, which reads each input once and writes the result; values stay in the
// thread's own memory, so the program's length is arithmetic and not traffic. Backwards one launch
// for all gradients of the output's shape, and one more for each broadcast input, which repeats the
// arithmetic instead of writing terms down.
#include "ops/expression.h"

#include "gpu/column_sums.h"
#include "gpu/folded.h"

namespace flexlegion::gpu {
namespace {

// What a body needs to read the inputs of an element.
struct Operands {
  Program program;
  Reals data[Program::kMostInputs];
  Spread spread[Program::kMostInputs];

  FL_DEVICE float operator()(int v, std::int64_t i) const {
    const std::int64_t at = spread[v](i);
    return program.integers[v]
               ? static_cast<float>(static_cast<const std::int32_t*>(data[v].data())[at])
               : static_cast<float>(data[v][at]);
  }
};

// The program for one element: inputs first, then each instruction's value.
FL_DEVICE float result_of(const Operands& x, std::int64_t i) {
  const Program& program = x.program;
  float value[Program::kMostValues], last = 0.0f;
  for (int v = 0; v < program.inputs; ++v) last = value[v] = x(v, i);
  for (int k = 0; k < program.size; ++k) {
    const Instruction& code = program.code[k];
    last = code.operation == Operation::number
               ? code.number
               : value_of<LibraryMath>(code.operation, value[code.of[0]], value[code.of[1]],
                                       value[code.of[2]]);
    value[program.inputs + k] = last;
  }
  return last;
}

// The gradients of all inputs that are wanted, of element i.
FL_DEVICE void differentiate(const Operands& x, const BackwardWork& work, std::int64_t i, float dy,
                             float* gradient) {
  const Program& program = x.program;
  float value[Program::kMostValues];
  for (int v = 0; v < program.inputs; ++v) value[v] = work.known[v] ? x(v, i) : NAN;
  for (int k = 0; k < program.size; ++k) {
    const Instruction& code = program.code[k];
    const int v = program.inputs + k;
    if (code.operation == Operation::number) {
      value[v] = code.number;
    } else {
      // A value that the backward pass does not need may lack its inputs: NaN stands for it, and
      // would show if it were used.
      value[v] = work.known[v] ? value_of<LibraryMath>(code.operation, value[code.of[0]],
                                                       value[code.of[1]], value[code.of[2]])
                               : NAN;
    }
  }
  for (int v = 0; v < program.values(); ++v) gradient[v] = 0.0f;
  gradient[program.values() - 1] = dy;
  // Reverse mode: each instruction hands its gradient on to its arguments.
  for (int k = program.size - 1; k >= 0; --k) {
    const Instruction& code = program.code[k];
    const int v = program.inputs + k;
    if (!work.wanted[v]) continue;
    for (int n = 0; n < arguments_of(code.operation); ++n) {
      if (!work.wanted[code.of[n]] || !has_slope(code.operation, n)) continue;
      gradient[code.of[n]] +=
          slope_of<LibraryMath>(code.operation, n, value[code.of[0]], value[code.of[1]],
                                value[code.of[2]], value[v], gradient[v]);
    }
  }
}

// The gradients that are not sums, at once.
struct Sinks {
  int count = 0;
  int value[Program::kMostInputs] = {};
  Reals data[Program::kMostInputs];
  Spread spread[Program::kMostInputs];
  bool adds[Program::kMostInputs] = {};
};

// The gradient of a broadcast input.
void sum_gradient(const Operands& x, const BackwardWork& work, int v, const TensorView& dx,
                  const TensorView& dy, bool adds) {
  // A column is an element of the input; its rows are the output's elements that it was repeated
  // for.
  const Folded folded(dx, dy);
  const Strided from(dy);
  const Reals to(dx.data, dx.type);
  sum_columns<1>(
      folded.rows.volume, folded.columns.volume, 0,
      [=] FL_BODY(std::int64_t row, std::int64_t column) {
        const std::int64_t i = folded.rows(row) + folded.columns(column);
        float gradient[Program::kMostValues];
        differentiate(x, work, i, from[i], gradient);
        return Sums<1>{{gradient[v]}};
      },
      [=] FL_BODY(std::int64_t column, const Sums<1>& sum) {
        put(to[folded.kept(column)], static_cast<float>(sum.of[0]), adds);
      });
}

class Expression : public Kernel {
 public:
  explicit Expression(const Attributes& attributes) : program_(program_of(attributes)) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const Operands x = operands(task, y);
    const Strided to(y);
    for_each(y.volume(), [=] FL_BODY(std::int64_t i) { to[i] = result_of(x, i); });
  }

  // Inputs of the output's shape share one launch; each that is broadcast takes one of its own.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    const BackwardWork work(program_, task);
    const Operands x = operands(task, dy);
    Sinks sinks;
    for (int v = 0; v < program_.inputs; ++v) {
      const auto i = static_cast<std::size_t>(v);
      if (!task.wants_input_grad(i)) continue;
      const TensorView& dx = task.input_grads[i];
      const bool adds = task.adds_to_input_grad(i);
      // An input of the output's shape has one term for each element, which its thread writes. A
      // broadcast one is a sum, in a launch of its own.
      const Spread spread(dx, dy);
      if (dy.tile.empty()) {
        if (!adds) gpu::zero_view(dx);
      } else if (spread.broadcast) {
        sum_gradient(x, work, v, dx, dy, adds);
      } else {
        sinks.value[sinks.count] = v;
        sinks.data[sinks.count] = {dx.data, dx.type};
        sinks.spread[sinks.count] = spread;
        sinks.adds[sinks.count++] = adds;
      }
    }
    if (sinks.count == 0) return;
    const Strided from(dy);
    for_each(dy.volume(), [=] FL_BODY(std::int64_t i) {
      float gradient[Program::kMostValues];
      differentiate(x, work, i, from[i], gradient);
      for (int s = 0; s < sinks.count; ++s) {
        put(sinks.data[s][sinks.spread[s](i)], gradient[sinks.value[s]], sinks.adds[s]);
      }
    });
  }

 private:
  Operands operands(const KernelTask& task, const TensorView& output) const {
    Operands x;
    x.program = program_;
    for (int v = 0; v < program_.inputs; ++v) {
      const TensorView& input = task.inputs[static_cast<std::size_t>(v)];
      if (!input.present()) continue;
      x.data[v] = {input.data, input.type};
      x.spread[v] = Spread(input, output);
    }
    return x;
  }

  Program program_;
};

const RegisterKernel registered(
    "expression", [](const Attributes& a) { return std::make_unique<Expression>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
