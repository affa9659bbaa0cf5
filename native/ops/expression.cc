// expression: a formula over the elements of several tensors, which are broadcast to the output.
//
// The program runs over blocks of elements, one instruction after the other, so that all values of
// a block stay in the first cache. The backward pass computes them again, and then the gradients,
// from the last instruction to the first.
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

#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {

namespace {

constexpr const char* kNames[] = {
    "number",     "add",   "subtract", "multiply", "divide", "minimum", "maximum", "less",
    "less_equal", "equal", "where",    "power",    "negate", "abs",     "sign",    "floor",
    "reciprocal", "sqrt",  "rsqrt",    "exp",      "expm1",  "log",     "log1p",   "sin",
    "cos",        "tanh",  "sigmoid",  "erf",      "relu"};

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

Spread::Spread(const TensorView& operand, const TensorView& output, bool packed) {
  std::array<std::int64_t, kMaxRegionRank> strides = operand.stride;
  if (packed) strides = dense_view(nullptr, operand.tile, operand.shape).stride;
  for (int d = 0; d < output.rank(); ++d) {
    const std::int64_t n = output.extent(d);
    const int mine = matching_dim(d, operand.rank(), output.rank());
    const bool spreads = mine < 0 || (operand.shape[mine] == 1 && output.shape[d] != 1);
    broadcast = broadcast || spreads;
    if (n == 1) continue;
    const std::int64_t step = spreads ? 0 : strides[mine];
    if (rank > 0 && stride[rank - 1] == n * step) {
      extent[rank - 1] *= n;
    } else {
      extent[rank++] = n;
    }
    stride[rank - 1] = step;
  }
}

namespace {

constexpr std::int64_t kBlock = 512;

// Calls body(offset, at, n, step) for the elements [first, first + count) of the output's tile, in
// pieces that are `step` apart in the operand: `at` is the piece's place in the range.
template <typename Body>
void for_each_piece(const Spread& spread, std::int64_t first, std::int64_t count, Body&& body) {
  if (spread.rank == 0) return body(std::int64_t{0}, std::int64_t{0}, count, std::int64_t{0});
  const int last = spread.rank - 1;
  std::array<std::int64_t, kMaxRegionRank> index{};
  std::int64_t rest = first, offset = 0;
  for (int d = last; d >= 0; --d) {
    index[d] = d > 0 ? rest % spread.extent[d] : rest;
    rest /= spread.extent[d];
    offset += index[d] * spread.stride[d];
  }
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t n = std::min(count - at, spread.extent[last] - index[last]);
    body(offset, at, n, spread.stride[last]);
    at += n;
    offset += n * spread.stride[last];
    index[last] += n;
    for (int d = last; d > 0 && index[d] == spread.extent[d]; --d) {
      offset += spread.stride[d - 1] - index[d] * spread.stride[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

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
template <Operation kOperation>
FLEXLEGION_INLINE void run_slope(int argument, const Arguments& x, const float* y, const float* dy,
                                 float* dx, std::int64_t n) {
  if (argument == 0) {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 0, x.a[i], x.b[i], y[i], dy[i]);
    }
  } else if (argument == 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 1, x.a[i], x.b[i], y[i], dy[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = slope_of<VectorMath>(kOperation, 2, x.a[i], x.b[i], y[i], dy[i]);
    }
  }
}

// Calls body(std::integral_constant) for the operation: its loops are compiled one by one.
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

FLEXLEGION_SIMD void accumulate(float* to, const float* more, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += more[i];
}
FLEXLEGION_SIMD void add_doubles(double* to, const float* more, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += more[i];
}
FLEXLEGION_SIMD void give(float* to, const float* from, std::int64_t n, bool adds) {
  write_or_add(adds, to, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return from[i]; });
}
FLEXLEGION_SIMD float sum_of(const float* x, std::int64_t n) {
  float lanes[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int k = 0; k < 16; ++k) lanes[k] += x[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

// An operand that is read: a block's elements, in place if they are dense, or gathered.
class Source {
 public:
  Source() = default;
  Source(const TensorView& view, const TensorView& output, bool integers, float* buffer)
      : data_(view.f32()), spread_(view, output), buffer_(buffer), integers_(integers) {}

  const float* block(std::int64_t first, std::int64_t n) const {
    if (spread_.dense() && !integers_) return data_ + first;
    for_each_piece(spread_, first, n,
                   [this](std::int64_t offset, std::int64_t at, std::int64_t count,
                          std::int64_t step) { gather(offset, buffer_ + at, count, step); });
    return buffer_;
  }

 private:
  void gather(std::int64_t offset, float* to, std::int64_t n, std::int64_t step) const {
    if (integers_) {
      const auto* from = reinterpret_cast<const std::int32_t*>(data_) + offset;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i * step]);
      return;
    }
    const float* const from = data_ + offset;
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    } else if (step == 0) {
      std::fill_n(to, n, *from);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = from[i * step];
    }
  }

  const float* data_ = nullptr;
  Spread spread_;
  float* buffer_ = nullptr;
  bool integers_ = false;
};

// An operand that is written: the output, or a gradient. Of a broadcast one, the sums are kept in
// double precision until the end.
class Sink {
 public:
  Sink(const TensorView& view, const TensorView& output, bool adds, int slot)
      : view_(view), spread_(view, output), adds_(adds) {
    if (!spread_.broadcast) return;
    spread_ = Spread(view, output, true);
    const std::int64_t volume = view.volume();
    sums_ = reinterpret_cast<double*>(scratch(slot, 2 * volume));
    std::fill_n(sums_, volume, 0.0);
  }

  // Where a block may be written at once; null: by put().
  float* block(std::int64_t first) const {
    return spread_.dense() && sums_ == nullptr && !adds_ ? view_.f32() + first : nullptr;
  }

  void put(const float* from, std::int64_t first, std::int64_t n) const {
    for_each_piece(
        spread_, first, n,
        [&](std::int64_t offset, std::int64_t at, std::int64_t count, std::int64_t step) {
          if (sums_ == nullptr) {
            store(view_.f32() + offset, from + at, count, step);
          } else if (step == 1) {
            add_doubles(sums_ + offset, from + at, count);
          } else if (step == 0) {
            sums_[offset] += sum_of(from + at, count);
          } else {
            for (std::int64_t i = 0; i < count; ++i) sums_[offset + i * step] += from[at + i];
          }
        });
  }

  void finish() const {
    if (sums_ == nullptr) return;
    std::int64_t i = 0;
    for_each_index<1>({&view_}, view_.rank(), [&](const Offsets<1>& at) {
      float& to = view_.f32()[at[0]];
      to = (adds_ ? to : 0.0f) + static_cast<float>(sums_[i++]);
    });
  }

 private:
  void store(float* to, const float* from, std::int64_t n, std::int64_t step) const {
    if (step == 1) return give(to, from, n, adds_);
    for (std::int64_t i = 0; i < n; ++i) {
      to[i * step] = adds_ ? to[i * step] + from[i] : from[i];
    }
  }

  TensorView view_;
  Spread spread_;
  double* sums_ = nullptr;
  bool adds_;
};

class Expression : public Kernel {
 public:
  explicit Expression(const Attributes& attributes) : program_(program_of(attributes)) {}

  bool accumulates() const override { return true; }

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
          slope[i] =
              slope_of<LibraryMath>(code.operation, k, x.a[i], x.b[i], y[i], gradient_[v][i]);
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
