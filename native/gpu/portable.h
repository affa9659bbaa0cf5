// GPU kernels are written once and compiled twice: by nvcc, for the device, and by the C++
// compiler, where the same functions run as loops on the host. So their arithmetic (tiles, strides,
// halos, accumulation) is tested on machines without a GPU, by the very cases that CPU kernels
// pass. Tests compile them once more, with FLEXLEGION_SOFT_GPU: by the C++ compiler, but for CUDA's
// interfaces, which tests/soft_gpu provides.
#pragma once

#ifdef __CUDACC__
#define FLEXLEGION_CUDA 1
#define FL_DEVICE __host__ __device__  // a function for both sides
#define FL_BODY __device__             // a lambda that for_each() and its like run
#else
#ifdef FLEXLEGION_SOFT_GPU
#define FLEXLEGION_CUDA 1
#else
#define FLEXLEGION_CUDA 0
#endif
#define FL_DEVICE
#define FL_BODY
#endif
