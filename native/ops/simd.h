// FLEXLEGION_SIMD in front of a function with hot loops: it is compiled once a generation of x86-64
// (v4: AVX-512, v3: AVX2 and FMA), and the one that fits the machine is chosen when the library is
// loaded. Not under sanitizers, whose runtime is not yet up when that choice is made.
#pragma once

#if defined(FLEXLEGION_NO_TARGET_CLONES) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) || defined(__clang__) || !defined(__x86_64__)
#define FLEXLEGION_SIMD
#else
#define FLEXLEGION_SIMD \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

// A part of such a function: compiled for the same machine as its caller, because inlined.
#define FLEXLEGION_INLINE inline __attribute__((always_inline))
// The same for a lambda, between its parameters and its body.
#define FLEXLEGION_LAMBDA __attribute__((always_inline))
