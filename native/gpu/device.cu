// The state of a thread that issues work to a GPU: stream, library handles, and the arena that
// scratch memory is cut from.
//
// A thread belongs to one GPU processor, so all of it is thread-local and needs no lock. Work is
// only issued: a task returns before its kernels have run, and its scratch memory is used by the
// next task's kernels, which come after them (device_functions.cu orders the streams). So the arena
// starts empty with each task: a slot is the next free piece of it, and pieces are not given back
// within a task.
//
// Handles are made when they are first asked for, and never destroyed: they may be used until the
// process ends.
#include "gpu/device.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/tensor_view.h"

namespace flexlegion::gpu {

namespace {

thread_local Precision chosen = Precision::fp32;

}  // namespace

void set_precision(Precision precision) { chosen = precision; }
Precision precision() { return chosen; }

#if !FLEXLEGION_CUDA

float* scratch(int slot, std::int64_t elements) { return flexlegion::scratch(slot, elements); }

void read_integers(const std::int32_t* from, std::int64_t n, std::int32_t* to) {
  std::copy_n(from, n, to);
}

#else

namespace {

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;  // what cuBLAS takes on Hopper GPUs

// A thread is one GPU processor's: it keeps one device's handles.
struct State {
  cudaStream_t stream = nullptr;
  cublasHandle_t blas = nullptr;
  void* blas_memory = nullptr;
  cublasLtHandle_t blas_lt = nullptr;
  cudnnHandle_t dnn = nullptr;
  char* arena = nullptr;
  std::int64_t bytes = 0, used = 0;
  std::map<int, std::pair<float*, std::int64_t> > slots;  // of this task: memory, elements
};

State& state() {
  thread_local State mine;
  return mine;
}

[[noreturn]] void fail(const char* library, const char* text) {
  throw std::runtime_error(std::string(library) + ": " + text);
}

}  // namespace

void check(cudaError_t status) {
  if (status != cudaSuccess) fail("CUDA", cudaGetErrorString(status));
}
void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) fail("cuBLAS", cublasGetStatusString(status));
}
void check(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) fail("cuDNN", cudnnGetErrorString(status));
}

// Scratch slots are a task's own: each task begins with an empty arena. A device's tasks follow
// each other (device_functions.cu), so two never use it at once.
void begin_task(cudaStream_t stream, void* arena, std::int64_t arena_bytes) {
  State& mine = state();
  mine.stream = stream;
  mine.arena = static_cast<char*>(arena);
  mine.bytes = arena_bytes;
  mine.used = 0;
  mine.slots.clear();
}

// The stream of the task that this thread runs: Realm waits for it alone.
cudaStream_t stream() { return state().stream; }

// Made when it is first needed: handles take memory and time.
cublasHandle_t blas() {
  State& mine = state();
  if (mine.blas == nullptr) {
    check(cublasCreate(&mine.blas));
    check(cudaMalloc(&mine.blas_memory, kBlasBytes));
  }
  check(cublasSetStream(mine.blas, mine.stream));
  // Not its own, which it would give each stream, and allocate while work is recorded.
  check(cublasSetWorkspace(mine.blas, mine.blas_memory, kBlasBytes));
  const Precision p = precision();
  check(cublasSetMathMode(mine.blas,
                          p == Precision::fp32 ? CUBLAS_DEFAULT_MATH : CUBLAS_TF32_TENSOR_OP_MATH));
  return mine.blas;
}

cublasLtHandle_t blas_lt() {
  State& mine = state();
  if (mine.blas_lt == nullptr) check(cublasLtCreate(&mine.blas_lt));
  return mine.blas_lt;
}

cudnnHandle_t dnn() {
  State& mine = state();
  if (mine.dnn == nullptr) check(cudnnCreate(&mine.dnn));
  check(cudnnSetStream(mine.dnn, mine.stream));
  return mine.dnn;
}

// How algorithms with a workspace learn how much of it they may ask for.
std::int64_t scratch_left() { return state().bytes - state().used; }

// With as much again left over for what else the task needs.
bool scratch_fits(int slot, std::int64_t elements) {
  const State& mine = state();
  const auto its = mine.slots.find(slot);
  if (its != mine.slots.end() && elements <= its->second.second) return true;
  return 2 * elements * static_cast<std::int64_t>(sizeof(float)) <= scratch_left();
}

float* scratch(int slot, std::int64_t elements) {
  State& mine = state();
  auto& [memory, size] = mine.slots[slot];
  if (memory != nullptr && elements <= size) return memory;
  // Rounded up beyond `elements`, so that a slot of none has memory, too.
  constexpr std::int64_t kLine = 64;  // floats in 256 bytes
  const std::int64_t rounded = (elements + kLine) / kLine * kLine;
  const std::int64_t bytes = rounded * static_cast<std::int64_t>(sizeof(float));
  if (bytes > mine.bytes - mine.used) {
    throw std::runtime_error("a task needs more than the " + std::to_string(mine.bytes >> 20) +
                             " MiB of scratch memory that its GPU has");
  }
  memory = reinterpret_cast<float*>(mine.arena + mine.used);
  size = rounded;
  mine.used += bytes;
  return memory;
}

void read_integers(const std::int32_t* from, std::int64_t n, std::int32_t* to) {
  // The one place where the host waits for the device within a task.
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(n) * sizeof(*to), cudaMemcpyDefault,
                        stream()));
  check(cudaStreamSynchronize(stream()));
}

#endif

}  // namespace flexlegion::gpu
