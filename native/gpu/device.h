// What a GPU task computes with: the calling thread's device, its stream, library handles, and
// scratch memory. All work of a task goes to that stream, in order, and nothing waits for it.
#pragma once

#include <cstdint>

#include "gpu/portable.h"
#include "ops/precision.h"

#if FLEXLEGION_CUDA
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#endif

namespace flexlegion::gpu {

// How products and convolutions that the calling thread issues from now on compute.
void set_precision(Precision precision);
Precision precision();

// Device memory of the running task, as ops/tensor_view.h's scratch() is a CPU kernel's: `slot`
// tells apart buffers that live at the same time; 256-byte aligned. Valid until the task ends, or
// asks for the same slot again. Throws std::runtime_error if the device's scratch memory is too
// small.
float* scratch(int slot, std::int64_t elements);

// Doubles in scratch memory.
inline double* scratch_doubles(int slot, std::int64_t elements) {
  return reinterpret_cast<double*>(scratch(slot, 2 * elements));
}

// Copies whole numbers out of device memory. Waits for what the stream has to do until then: for
// the rare task whose work depends on what it computes.
void read_integers(const std::int32_t* from, std::int64_t n, std::int32_t* to);

#if FLEXLEGION_CUDA

// Says what the calling thread's next task uses. `arena` is device memory for scratch().
void begin_task(cudaStream_t stream, void* arena, std::int64_t arena_bytes);

cudaStream_t stream();
cublasHandle_t blas();  // set to the stream and the precision
cublasLtHandle_t blas_lt();
cudnnHandle_t dnn();          // set to the stream
std::int64_t scratch_left();  // bytes
// Whether scratch() has that memory already, or as much again is left besides it.
bool scratch_fits(int slot, std::int64_t elements);

// Throw std::runtime_error with the library's own text.
void check(cudaError_t status);
void check(cublasStatus_t status);
void check(cudnnStatus_t status);

#endif

}  // namespace flexlegion::gpu
