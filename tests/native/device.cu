#include "device.h"

#include "gpu/device.h"

namespace flexlegion::testing {

namespace {

constexpr std::int64_t kArenaBytes = 64 << 20;

// A stream and scratch memory for each thread that runs kernels.
struct Task {
  cudaStream_t stream = nullptr;
  void* arena = nullptr;

  Task() {
    gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gpu::check(cudaMalloc(&arena, kArenaBytes));
  }
  Task(const Task&) = delete;
  ~Task() {
    cudaFree(arena);
    cudaStreamDestroy(stream);
  }
};

}  // namespace

void* allocate_managed(std::size_t bytes) {
  void* memory = nullptr;
  gpu::check(cudaMallocManaged(&memory, bytes == 0 ? 1 : bytes));
  return memory;
}

void free_managed(void* memory) { cudaFree(memory); }

void on_device(const std::function<void()>& body) {
  thread_local Task task;
  gpu::begin_task(task.stream, task.arena, kArenaBytes);
  body();
  gpu::check(cudaStreamSynchronize(task.stream));
}

}  // namespace flexlegion::testing
