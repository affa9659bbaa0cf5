// FLEXLEGION_SIMD in front of a function with hot loops: it is compiled once an instruction set,
// and the one that fits the machine is chosen when the library is loaded. Not under sanitizers,
// whose runtime is not yet up when that choice is made.
#pragma once

#if defined(FLEXLEGION_NO_TARGET_CLONES) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define FLEXLEGION_SIMD
#else
#define FLEXLEGION_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
