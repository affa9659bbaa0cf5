// expression: a formula over the elements of several tensors, which are broadcast to the output.
//
// The program runs over blocks of elements, one instruction after the other, so that all values of
// a block stay in the first cache. The backward pass computes them again, and then the gradients,
// from the last instruction to the first.
//
// Fusing this way replaces one pass over the memory for each operation by one for all. An
// interpreter is enough: an instruction works on 512 elements, so that decoding it costs nothing,
// and each operation's loop is compiled separately and vectorised.
//
// Costs: forwards one pass over each input and the output; backwards over each input, dy and each
// gradient. Gradients of broadcast inputs are summed in double precision (Sink).
#include "ops/expression.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "ops/blocks.h"
#include "ops/simd.h"

namespace flexlegion {

namespace {

// In the order of Operation.
constexpr const char* kNames[] = {
    "number", "add",        "subtract", "multiply", "divide",     "minimum",  "maximum",
    "less",   "less_equal", "equal",    "where",    "clamp",      "hardtanh", "power",
    "negate", "abs",        "sign",     "floor",    "reciprocal", "sqrt",     "rsqrt",
    "exp",    "expm1",      "log",      "log1p",    "sin",        "cos",      "asin",
    "acos",   "atan",       "tanh",     "sigmoid",  "erf",        "relu",     "detach"};

// One instruction is its operation's name, a number's digits if it is one, and the numbers of
// earlier values.
Instruction instruction_of(const std::string& text, int values) {
  std::istringstream words(text);
  std::string name;
  words >> name;
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw std::invalid_argument("no operation '" + name + "'");
  Instruction result;
  result.operation = static_cast<Operation>(found - std::begin(kNames));
  if (result.operation == Operation::number) {
    words >> name;  // digits as Python writes them, whatever the locale
    const auto end = name.data() + name.size();
    if (std::from_chars(name.data(), end, result.number).ptr != end) {
      throw std::invalid_argument("'" + name + "' is no number");
    }
  }
  for (int i = 0; i < arguments_of(result.operation); ++i) {
    int value = -1;
    if (!(words >> value) || value < 0 || value >= values) {
      throw std::invalid_argument("'" + text + "' computes with values that there are not");
    }
    result.of[i] = static_cast<std::uint8_t>(value);
  }
  return result;
}

}  // namespace

// A program is text: instructions between semicolons. Inputs are the first values, and each
// instruction makes the next.
Program program_of(const Attributes& attributes) {
  Program program;
  program.inputs = static_cast<int>(attributes.integer("inputs"));
  if (program.inputs < 1 || program.inputs > Program::kMostInputs) {
    throw std::invalid_argument("too few or too many inputs");
  }
  std::istringstream integers(attributes.text("integers"));
  for (std::string text; std::getline(integers, text, ',');) {
    const int input = std::stoi(text);
    if (input < 0 || input >= program.inputs) throw std::invalid_argument("no input " + text);
    program.integers[input] = true;
  }
  std::istringstream instructions(attributes.text("program"));
  for (std::string text; std::getline(instructions, text, ';');) {
    if (program.values() == Program::kMostValues) throw std::invalid_argument("too long a program");
    program.code[program.size] = instruction_of(text, program.values());
    ++program.size;
  }
  return program;
}

// Both are found from the inputs forward: a value is known if all its arguments are; it is wanted
// if it has a slope by some wanted argument.
BackwardWork::BackwardWork(const Program& program, const KernelTask& task) {
  for (int v = 0; v < program.inputs; ++v) {
    known[v] = task.inputs[static_cast<std::size_t>(v)].present();
    wanted[v] = task.wants_input_grad(static_cast<std::size_t>(v));
  }
  for (int i = 0; i < program.size; ++i) {
    const Instruction& code = program.code[i];
    const int v = program.inputs + i;
    known[v] = true;
    for (int k = 0; k < arguments_of(code.operation); ++k) {
      known[v] = known[v] && known[code.of[k]];
      wanted[v] = wanted[v] || (has_slope(code.operation, k) && wanted[code.of[k]]);
    }
  }
}

namespace {

// Up to three arrays; an operation with fewer arguments does not look at the others.
struct Arguments {
  const float *a, *b, *c;
};

// y[i] = value(i), or the slope by one argument.
template <Operation kOperation>
FLEXLEGION_INLINE void run(const Arguments& x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = value_of<VectorMath>(kOperation, x.a[i], x.b[i], x.c[i]);
  }
}
// A loop for each argument, so that which it is is a constant inside.
template <Operation kOperation>
FLEXLEGION_INLINE void run_slope(int argument, const Arguments& x, const float* y, const float* dy,
                                 float* dx, std::int64_t n) {
  if (argument == 0) {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 0, x.a[i], x.b[i], x.c[i], y[i], dy[i]);
    }
  } else if (argument == 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 1, x.a[i], x.b[i], x.c[i], y[i], dy[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 2, x.a[i], x.b[i], x.c[i], y[i], dy[i]);
    }
  }
}

// Calls body(std::integral_constant) for the operation: its loops are compiled one by one. A fold
// over all operations: of the comparisons one is true, and calls its loop.
template <typename Body, std::size_t... kAll>
FLEXLEGION_INLINE void with(Operation operation, const Body& body, std::index_sequence<kAll...>) {
  ((static_cast<std::size_t>(operation) == kAll
        ? body(std::integral_constant<Operation, static_cast<Operation>(kAll)>())
        : void()),
   ...);
}
using EachOperation = std::make_index_sequence<std::size(kNames)>;

FLEXLEGION_SIMD void evaluate(Operation operation, const Arguments& x, float* y, std::int64_t n) {
  const auto loop = [&](auto constant) FLEXLEGION_INLINE_LAMBDA { run<constant.value>(x, y, n); };
  with(operation, loop, EachOperation());
}

FLEXLEGION_SIMD void evaluate_slope(Operation operation, int argument, const Arguments& x,
                                    const float* y, const float* dy, float* dx, std::int64_t n) {
  const auto loop = [&](auto constant) FLEXLEGION_INLINE_LAMBDA {
    run_slope<constant.value>(argument, x, y, dy, dx, n);
  };
  with(operation, loop, EachOperation());
}

// The few arguments for which the vectorised sines are not made.
bool too_large(const float* x, std::int64_t n) {
  return std::any_of(x, x + n, [](float v) { return !(std::fabs(v) < kLargestAngle); });
}

// A second contribution to a gradient.
FLEXLEGION_SIMD void accumulate(float* to, const float* more, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += more[i];
}
class Expression : public Kernel {
 public:
  explicit Expression(const Attributes& attributes) : program_(program_of(attributes)) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  // Block by block, in place if the output is dense floats.
  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    Block block(*this, task, y, nullptr);
    const Sink sink(y, y, false, kSums);
    const std::int64_t volume = y.volume();
    for (std::int64_t first = 0; first < volume; first += kBlock) {
      const std::int64_t n = std::min(kBlock, volume - first);
      float* const in_place = sink.block(first);
      const float* const result = block.evaluate(first, n, in_place);
      if (result != in_place) sink.put(result, first, n);
    }
  }

  // Each block: values again, gradients from the last to the first, and the inputs' gradients to
  // where they belong.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    std::vector<std::pair<int, Sink>> sinks;
    for (int v = 0; v < program_.inputs; ++v) {
      const auto i = static_cast<std::size_t>(v);
      if (!task.wants_input_grad(i)) continue;
      if (dy.tile.empty()) {
        if (!task.adds_to_input_grad(i)) zero_view(task.input_grads[i]);
      } else {
        sinks.emplace_back(v, Sink(task.input_grads[i], dy, task.adds_to_input_grad(i), kSums + v));
      }
    }
    // An input's gradient may be nobody's business: indices, say.
    if (sinks.empty()) return;
    const BackwardWork work(program_, task);
    Block block(*this, task, dy, &work);
    const Source gradient(dy, dy, false, block.gathered(program_.inputs));
    const std::int64_t volume = dy.volume();
    for (std::int64_t first = 0; first < volume; first += kBlock) {
      const std::int64_t n = std::min(kBlock, volume - first);
      block.evaluate(first, n, nullptr);
      block.differentiate(gradient.block(first, n), n);
      for (const auto& [v, sink] : sinks) sink.put(block.gradient(v, n), first, n);
    }
    for (const auto& [v, sink] : sinks) sink.finish();
  }

 private:
  // Scratch slots. Sums take one an input.
  enum Slot { kValues, kGradients, kGathered, kSums };

  // The values of a block of elements, and their gradients. The forward pass has no `work`.
  class Block {
   public:
    Block(const Expression& kernel, const KernelTask& task, const TensorView& output,
          const BackwardWork* work)
        : program_(kernel.program_), work_(work) {
      const std::int64_t values = program_.values();
      values_ = scratch(kValues, values * kBlock);
      gathered_ = scratch(kGathered, (program_.inputs + 1) * kBlock);
      if (work_ != nullptr) {
        gradients_ = scratch(kGradients, (values + 2) * kBlock);
        std::fill_n(unknown(), kBlock, std::numeric_limits<float>::quiet_NaN());
      }
      for (int v = 0; v < program_.inputs; ++v) {
        const TensorView& input = task.inputs[static_cast<std::size_t>(v)];
        if (!input.present()) continue;
        sources_[v] = Source(input, output, program_.integers[v], gathered(v));
      }
      for (int i = 0; i < program_.size; ++i) {  // numbers stay from block to block
        const Instruction& code = program_.code[i];
        const int v = program_.inputs + i;
        if (code.operation != Operation::number) continue;
        std::fill_n(values_ + v * kBlock, kBlock, code.number);
        value_[v] = values_ + v * kBlock;
      }
    }

    float* gathered(int v) const { return gathered_ + v * kBlock; }

    // Of the elements [first, first + n); the last value to `result`, if given. Returns it.
    const float* evaluate(std::int64_t first, std::int64_t n, float* result) {
      for (int v = 0; v < program_.inputs; ++v) {
        if (known(v)) value_[v] = sources_[v].block(first, n);
      }
      for (int i = 0; i < program_.size; ++i) {
        const Instruction& code = program_.code[i];
        const int v = program_.inputs + i;
        if (code.operation == Operation::number || !known(v)) continue;
        float* const to =
            result != nullptr && i + 1 == program_.size ? result : values_ + v * kBlock;
        const Arguments x = arguments(code);
        if (sines(code) && too_large(x.a, n)) {
          // The vectorised sines subtract multiples of pi in three floats, which hold too few bits
          // of it for large angles. The C library's hold enough.
          const auto f = code.operation == Operation::sine ? sinf : cosf;
          std::transform(x.a, x.a + n, to, f);
        } else {
          flexlegion::evaluate(code.operation, x, to, n);
        }
        value_[v] = to;
      }
      return value_[program_.values() - 1];
    }

    // After evaluate(): from the result's gradient, those of the inputs that are wanted.
    // Reverse-mode differentiation over the block: from the last value to the first, each adds what
    // it contributes to its arguments' gradients. A pointer per value tells where its gradient
    // stands: null for none yet, dy itself while nothing but sums lies between.
    void differentiate(const float* dy, std::int64_t n) {
      std::fill_n(gradient_, program_.values(), nullptr);
      gradient_[program_.values() - 1] = dy;
      for (int i = program_.size - 1; i >= 0; --i) {
        const Instruction& code = program_.code[i];
        const int v = program_.inputs + i;
        if (!work_->wanted[v] || gradient_[v] == nullptr) continue;
        for (int k = 0; k < arguments_of(code.operation); ++k) {
          if (!work_->wanted[code.of[k]] || !has_slope(code.operation, k)) continue;
          contribute(code, k, v, n);
        }
      }
    }

    // Of an input: zeros, if nothing depends on it.
    const float* gradient(int v, std::int64_t n) {
      if (gradient_[v] == nullptr) {
        std::fill_n(own(v), n, 0.0f);
        gradient_[v] = own(v);
      }
      return gradient_[v];
    }

   private:
    bool known(int v) const { return work_ == nullptr || work_->known[v]; }
    static bool sines(const Instruction& code) {
      return code.operation == Operation::sine || code.operation == Operation::cosine;
    }
    float* own(int v) const { return gradients_ + v * kBlock; }
    float* spare() const { return own(program_.values()); }
    float* unknown() const { return own(program_.values() + 1); }

    // What a one-sided operation does not read is any value that is there.
    Arguments arguments(const Instruction& code) const {
      const float* x[3];
      const int count = arguments_of(code.operation);
      for (int k = 0; k < 3; ++k) x[k] = value_[code.of[k < count ? k : 0]];
      return {x[0], x[1], x[2]};
    }

    // A sum passes its gradient on as it is, without a copy. The first contribution to a value is
    // written to its own place or aliased; a second one is added, after the alias, if it is one,
    // was copied.
    void contribute(const Instruction& code, int k, int v, std::int64_t n) {
      const int to = code.of[k];
      const float* more = gradient_[v];
      if (code.operation != Operation::add && !(code.operation == Operation::subtract && k == 0)) {
        float* const slope = gradient_[to] == nullptr ? own(to) : spare();
        find_slope(code, k, v, slope, n);
        more = slope;
      }
      if (gradient_[to] == nullptr) {
        gradient_[to] = more;
        return;
      }
      float* const sum = own(to);
      if (gradient_[to] != sum) std::copy_n(gradient_[to], n, sum);
      accumulate(sum, more, n);
      gradient_[to] = sum;
    }

    void find_slope(const Instruction& code, int k, int v, float* slope, std::int64_t n) const {
      Arguments x = arguments(code);
      const float* y = value_[v];
      // What the slope needs is saved, and so known (flexlegion/ops/expression.py).
      for (const float** value : {&x.a, &x.b, &x.c, &y}) {
        if (*value == nullptr) *value = unknown();
      }
      if (sines(code) && too_large(x.a, n)) {
        for (std::int64_t i = 0; i < n; ++i) {
          slope[i] = slope_of<LibraryMath>(code.operation, k, x.a[i], x.b[i], x.c[i], y[i],
                                           gradient_[v][i]);
        }
        return;
      }
      evaluate_slope(code.operation, k, x, y, gradient_[v], slope, n);
    }

    const Program& program_;
    const BackwardWork* const work_;
    float *values_ = nullptr, *gradients_ = nullptr, *gathered_ = nullptr;
    std::array<Source, Program::kMostInputs> sources_;
    const float* value_[Program::kMostValues] = {};
    const float* gradient_[Program::kMostValues] = {};
  };

  Program program_;
};

const RegisterKernel registered("expression", [](const Attributes& a) {
  return std::make_unique<Expression>(a);
});

}  // namespace
}  // namespace flexlegion
