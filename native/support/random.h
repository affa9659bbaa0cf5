// Random numbers that are the same on every platform (the standard library's distributions are
// not).
#pragma once

#include <cstdint>
#include <random>

namespace flexlegion {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // 0 .. n-1, n >= 1. The bias of 2^-64 * n does not matter here.
  int below(int n) {
    return static_cast<int>(
        (static_cast<unsigned __int128>(engine_()) * static_cast<unsigned>(n)) >> 64);
  }

  // In (0, 1]: its logarithm exists.
  double unit() { return (static_cast<double>(engine_() >> 11) + 1.0) * 0x1p-53; }

  bool chance(double probability) { return unit() <= probability; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace flexlegion
