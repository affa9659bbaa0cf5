// A formula over the elements of several tensors, as a program: each instruction computes one value
// from values before it. The arithmetic, and its derivatives, of CPU and GPU kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/activation.h"
#include "ops/broadcast.h"
#include "ops/kernel.h"
#include "ops/vector_math.h"

namespace flexlegion {

// In the order of their names in expression.cc.
enum class Operation : std::uint8_t {
  number,
  add,
  subtract,
  multiply,
  divide,
  minimum,
  maximum,
  less,
  less_equal,
  equal,
  where,     // a != 0 ? b : c
  clamp,     // a between b and c; the slope at both is 1
  hardtanh,  // the same, but the slope at both is 0
  power,
  negate,
  absolute,
  sign,
  floor,
  reciprocal,
  square_root,
  reciprocal_square_root,
  exp,
  expm1,
  log,
  log1p,
  sine,
  cosine,
  arcsine,
  arccosine,
  arctangent,
  tanh,
  sigmoid,
  erf,
  relu,
  detach,  // a, without a slope
};

struct Instruction {
  Operation operation = Operation::number;
  std::uint8_t of[3] = {};  // the values that it computes with
  float number = 0;
};

// Values are numbered: first the inputs, then what the instructions compute, in their order. The
// last of all is the result.
struct Program {
  static constexpr int kMostInputs = 8, kMostValues = 64;

  int inputs = 0, size = 0;         // size: how many instructions
  bool integers[kMostInputs] = {};  // inputs of 32-bit integers
  Instruction code[kMostValues] = {};

  constexpr int values() const { return inputs + size; }
};

// Throws std::invalid_argument if the attributes "inputs", "integers" and "program" make none.
Program program_of(const Attributes& attributes);

FL_DEVICE constexpr int arguments_of(Operation operation) {
  if (operation == Operation::number) return 0;
  if (operation >= Operation::where && operation <= Operation::hardtanh) return 3;
  return operation >= Operation::negate ? 1 : 2;
}

// How the functions are computed: in loops that the CPU's compiler vectorises.
struct VectorMath {
  static FLEXLEGION_INLINE float exp(float x) { return vector_whole_exp(x); }
  static FLEXLEGION_INLINE float expm1(float x) { return vector_expm1(x); }
  static FLEXLEGION_INLINE float log(float x) { return vector_log(x); }
  static FLEXLEGION_INLINE float log1p(float x) { return vector_log1p(x); }
  static FLEXLEGION_INLINE float sine(float x) { return vector_sine(x, 0.0f); }
  static FLEXLEGION_INLINE float cosine(float x) { return vector_sine(x, 1.0f); }
  static FLEXLEGION_INLINE float arcsine(float x) { return vector_arcsine(x); }
  static FLEXLEGION_INLINE float arccosine(float x) { return vector_arccosine(x); }
  static FLEXLEGION_INLINE float arctangent(float x) { return vector_arctangent(x); }
  static FLEXLEGION_INLINE float tanh(float x) { return vector_tanh(x); }
  static FLEXLEGION_INLINE float sigmoid(float x) { return vector_sigmoid(x); }
  static FLEXLEGION_INLINE float erf(float x) { return vector_erf(x); }
};

// By the device's own functions, or the C library's.
struct LibraryMath {
  static FL_DEVICE inline float exp(float x) { return expf(x); }
  static FL_DEVICE inline float expm1(float x) { return expm1f(x); }
  static FL_DEVICE inline float log(float x) { return logf(x); }
  static FL_DEVICE inline float log1p(float x) { return log1pf(x); }
  static FL_DEVICE inline float sine(float x) { return sinf(x); }
  static FL_DEVICE inline float cosine(float x) { return cosf(x); }
  static FL_DEVICE inline float arcsine(float x) { return asinf(x); }
  static FL_DEVICE inline float arccosine(float x) { return acosf(x); }
  static FL_DEVICE inline float arctangent(float x) { return atanf(x); }
  static FL_DEVICE inline float tanh(float x) { return tanhf(x); }
  static FL_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
  static FL_DEVICE inline float erf(float x) { return erff(x); }
};

FL_DEVICE FLEXLEGION_INLINE float sign_of(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
}

// What an operation makes of its arguments. A loop over elements, in which the operation is a
// constant, holds nothing of the others.
template <typename Math>
FL_DEVICE FLEXLEGION_INLINE float value_of(Operation operation, float a, float b, float c) {
  switch (operation) {
    case Operation::add:
      return a + b;
    case Operation::subtract:
      return a - b;
    case Operation::multiply:
      return a * b;
    case Operation::divide:
      return a / b;
    case Operation::minimum:
      return a < b || a != a ? a : b;
    case Operation::maximum:
      return a > b || a != a ? a : b;
    case Operation::less:
      return a < b ? 1.0f : 0.0f;
    case Operation::less_equal:
      return a <= b ? 1.0f : 0.0f;
    case Operation::equal:
      return a == b ? 1.0f : 0.0f;
    case Operation::where:
      return a != 0.0f ? b : c;
    case Operation::clamp:
    case Operation::hardtanh: {  // NaN stays NaN
      const float low = a < b ? b : a;
      return low > c ? c : low;
    }
    case Operation::power:
      return powf(a, b);
    case Operation::negate:
      return -a;
    case Operation::absolute:
      return fabsf(a);
    case Operation::sign:
      return sign_of(a);
    case Operation::floor:
      return floorf(a);
    case Operation::reciprocal:
      return 1.0f / a;
    case Operation::square_root:
      return sqrtf(a);
    case Operation::reciprocal_square_root:
      return 1.0f / sqrtf(a);
    case Operation::exp:
      return Math::exp(a);
    case Operation::expm1:
      return Math::expm1(a);
    case Operation::log:
      return Math::log(a);
    case Operation::log1p:
      return Math::log1p(a);
    case Operation::sine:
      return Math::sine(a);
    case Operation::cosine:
      return Math::cosine(a);
    case Operation::arcsine:
      return Math::arcsine(a);
    case Operation::arccosine:
      return Math::arccosine(a);
    case Operation::arctangent:
      return Math::arctangent(a);
    case Operation::tanh:
      return Math::tanh(a);
    case Operation::sigmoid:
      return Math::sigmoid(a);
    case Operation::erf:
      return Math::erf(a);
    case Operation::relu:
      return relu_of(a);
    case Operation::detach:
      return a;
    default:
      return 0.0f;
  }
}

// The gradient of an operation's argument, by that of its result y. Of equal arguments, minimum and
// maximum give each a half.
template <typename Math>
FL_DEVICE FLEXLEGION_INLINE float slope_of(Operation operation, int argument, float a, float b,
                                           float c, float y, float dy) {
  constexpr float kTwoByRootPi = 1.1283791670955126f;
  const float half = a == b ? 0.5f * dy : 0.0f;
  switch (operation) {
    case Operation::add:
      return dy;
    case Operation::subtract:
      return argument == 0 ? dy : -dy;
    case Operation::multiply:
      return argument == 0 ? dy * b : dy * a;
    case Operation::divide:
      return argument == 0 ? dy / b : -dy * a / (b * b);
    case Operation::minimum:
      return (argument == 0 ? a < b : b < a) ? dy : half;
    case Operation::maximum:
      return (argument == 0 ? a > b : b > a) ? dy : half;
    case Operation::where:
      return (argument == 1) == (a != 0.0f) ? dy : 0.0f;
    case Operation::clamp:
      if (argument == 0) return a >= b && a <= c ? dy : 0.0f;
      return (argument == 1 ? a < b && b < c : a > c || b > c) ? dy : 0.0f;
    case Operation::hardtanh:
      if (argument == 0) return a <= b || a >= c ? 0.0f : dy;
      return (argument == 1 ? a <= b && b < c : a >= c || b > c) ? dy : 0.0f;
    case Operation::power:
      if (argument == 0) return b == 0.0f ? 0.0f : dy * b * powf(a, b - 1.0f);
      return a > 0.0f ? dy * powf(a, b) * logf(a) : 0.0f;
    case Operation::negate:
      return -dy;
    case Operation::absolute:
      return dy * sign_of(a);
    case Operation::reciprocal:
      return -dy * y * y;
    case Operation::square_root:
      return 0.5f * dy / y;
    case Operation::reciprocal_square_root:
      return -0.5f * dy * y * y * y;
    case Operation::exp:
      return dy * y;
    case Operation::expm1:
      return dy * (y + 1.0f);
    case Operation::log:
      return dy / a;
    case Operation::log1p:
      return dy / (1.0f + a);
    case Operation::sine:
      return dy * Math::cosine(a);
    case Operation::cosine:
      return -dy * Math::sine(a);
    case Operation::arcsine:
      return dy / sqrtf((1.0f - a) * (1.0f + a));
    case Operation::arccosine:
      return -dy / sqrtf((1.0f - a) * (1.0f + a));
    case Operation::arctangent:
      return dy / (1.0f + a * a);
    case Operation::tanh:
      return dy * (1.0f - y * y);
    case Operation::sigmoid:
      return dy * y * (1.0f - y);
    case Operation::erf:
      return dy * kTwoByRootPi * Math::exp(-a * a);
    case Operation::relu:
      return a <= 0.0f ? 0.0f : dy;
    default:
      return 0.0f;
  }
}

// Whether an operation's result has a slope by that argument.
FL_DEVICE constexpr bool has_slope(Operation operation, int argument) {
  switch (operation) {
    case Operation::number:
    case Operation::less:
    case Operation::less_equal:
    case Operation::equal:
    case Operation::sign:
    case Operation::floor:
    case Operation::detach:
      return false;
    case Operation::where:
      return argument > 0;
    default:
      return true;
  }
}

// What a backward pass has to do of a program: which values it can compute, of the inputs that are
// there, and which have a gradient that leads to a wanted one.
struct BackwardWork {
  bool known[Program::kMostValues] = {}, wanted[Program::kMostValues] = {};

  BackwardWork(const Program& program, const KernelTask& task);
};

}  // namespace flexlegion
