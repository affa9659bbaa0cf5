// How GPUs' products and convolutions compute. Tensors in memory, and sums, are single precision
// throughout; what differs is to how many bits of mantissa factors are rounded first, and, in bf16,
// what comes out of convolutions. CPU processors always compute in single precision.
#pragma once

namespace flexlegion {

enum class Precision {
  fp32,
  tf32,  // 10 bits
  bf16,  // 7 bits
};

}  // namespace flexlegion
