// Loops over a task's elements, on the device or, compiled without CUDA, on the host.
//
// Bodies are lambdas that capture by value: [=] FL_BODY(std::int64_t i) { ... }. They may call
// functions marked FL_DEVICE, and constexpr ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "gpu/device.h"

namespace flexlegion::gpu {

// Threads that work on one row together. Elements are dealt out: for (j = team.rank; j < n;
// j += team.size). Each of a team's threads has to call sum() and maximum() as often.
struct Team {
  int rank = 0, size = 1;
  double* shared = nullptr;  // a number a warp; null: the team is at most a warp

  // Of floats or doubles.
  template <typename Number>
  FL_DEVICE Number sum(Number mine) const {
    return combined(mine, [](Number a, Number b) { return a + b; });
  }
  template <typename Number>
  FL_DEVICE Number maximum(Number mine) const {
    // A NaN wins, on whichever side it comes.
    return combined(mine, [](Number a, Number b) { return a > b || a != a ? a : b; });
  }

 private:
  template <typename Number, typename Combine>
  FL_DEVICE Number combined(Number value, Combine combine) const {
#ifdef __CUDA_ARCH__
    constexpr unsigned kAll = 0xffffffffU;
    for (int distance = 16; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(kAll, value, distance));
    }
    if (shared != nullptr) {
      const int warps = size / 32;
      __syncthreads();  // who still reads the last result
      if (rank % 32 == 0) shared[rank / 32] = value;
      __syncthreads();
      value = static_cast<Number>(shared[0]);
      for (int w = 1; w < warps; ++w) value = combine(value, static_cast<Number>(shared[w]));
    }
#else
    (void)combine;
#endif
    return value;
  }
};

#ifdef __CUDACC__

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1 << 16;

template <typename Body>
__global__ void run_each(std::int64_t n, Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    body(i);
  }
}

template <typename Body>
__global__ void run_teams(std::int64_t teams, int size, Body body) {
  __shared__ double shared[kThreads / 32];
  const int per_block = blockDim.x / size;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * per_block;
  Team team;
  team.rank = threadIdx.x % size;
  team.size = size;
  team.shared = size > 32 ? shared : nullptr;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * per_block + threadIdx.x / size;
       i < teams; i += step) {
    body(team, i);
  }
}

#elif FLEXLEGION_CUDA

// Without a compiler for devices, the stream's own host does the work (tests/soft_gpu/runtime.cc).
void issue_to_host(cudaStream_t stream, std::function<void()> work);

#endif

// body(i) for each i of [0, n), in no order.
template <typename Body>
void for_each(std::int64_t n, const Body& body) {
  if (n <= 0) return;
#ifdef __CUDACC__
  const std::int64_t blocks = std::min((n + kThreads - 1) / kThreads, kMostBlocks);
  run_each<<<static_cast<unsigned>(blocks), kThreads, 0, stream()>>>(n, body);
  check(cudaGetLastError());
#elif FLEXLEGION_CUDA
  issue_to_host(stream(), [=] {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  });
#else
  for (std::int64_t i = 0; i < n; ++i) body(i);
#endif
}

// body(team, i) for each i of [0, teams): a team of threads for a row of `width` elements.
template <typename Body>
void for_each_team(std::int64_t teams, std::int64_t width, const Body& body) {
  if (teams <= 0) return;
#ifdef __CUDACC__
  const int size = width > 1024 ? kThreads : 32;
  const std::int64_t per_block = kThreads / size;
  const std::int64_t blocks = std::min((teams + per_block - 1) / per_block, kMostBlocks);
  run_teams<<<static_cast<unsigned>(blocks), kThreads, 0, stream()>>>(teams, size, body);
  check(cudaGetLastError());
#elif FLEXLEGION_CUDA
  (void)width;
  issue_to_host(stream(), [=] {
    for (std::int64_t i = 0; i < teams; ++i) body(Team(), i);
  });
#else
  (void)width;
  for (std::int64_t i = 0; i < teams; ++i) body(Team(), i);
#endif
}

FL_DEVICE inline void add_atomically(float* to, float value) {
#ifdef __CUDA_ARCH__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}
FL_DEVICE inline void add_atomically(double* to, double value) {
#ifdef __CUDA_ARCH__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

FL_DEVICE inline void add_atomically(std::int64_t* to, std::int64_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
#else
  *to += value;
#endif
}

}  // namespace flexlegion::gpu
