// How GPUs' products and convolutions compute. Operands, results, weights and sums are single
// precision throughout; what differs is to how many bits of mantissa factors are rounded first. CPU
// processors always compute in single precision.
#pragma once

namespace flexlegion {

enum class Precision {
  fp32,
  tf32,  // 10 bits
  bf16,  // 7 bits
};

}  // namespace flexlegion
