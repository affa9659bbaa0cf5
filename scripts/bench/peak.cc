// What a core can do at most: fp32 multiply-adds in registers, and its clock.
//   g++ -O2 -mavx512f -o build/peak scripts/bench/peak.cc && build/peak     (one process a core)
#include <immintrin.h>

#include <chrono>
#include <cstdio>

template <typename Body>
double seconds(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main() {
  constexpr long kRounds = 50'000'000, kAdds = 500'000'000;
  constexpr int kRegisters = 16;  // independent chains, enough to hide a multiply-add's latency
  __m512 sum[kRegisters];
  for (int i = 0; i < kRegisters; ++i)
    sum[i] = _mm512_set1_ps(1.0F + 1e-3F * static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999999F), term = _mm512_set1_ps(1e-7F);
  const double multiply_adds = seconds([&] {
    for (long n = 0; n < kRounds; ++n) {
#pragma GCC unroll 16
      for (int i = 0; i < kRegisters; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
    }
  });
  float used = 0;
  for (const __m512& s : sum) used += _mm512_reduce_add_ps(s);
  // Each addition waits for the one before it: one a cycle.
  unsigned long x = 1;
  const double additions = seconds([&] {
    for (long n = 0; n < kAdds; ++n) asm volatile("add $1, %0" : "+r"(x));
  });
  std::printf("%.1f GFLOP/s, %.2f GHz (%g)\n", kRounds * kRegisters * 32.0 / multiply_adds / 1e9,
              kAdds / additions / 1e9, used);
}
