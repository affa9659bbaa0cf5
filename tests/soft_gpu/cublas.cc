// cuBLAS, as far as our kernels call it.
#include <cublas_v2.h>

#include <algorithm>
#include <vector>

#include "driver.h"
#include "gpu/real.h"
#include "rounding.h"

namespace {

struct Handle {
  soft_gpu::Stream* stream = nullptr;
};
Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

using flexlegion::DataType;
using flexlegion::gpu::Reals;
using soft_gpu::type_of;

Reals reals(const void* data, DataType type) { return {const_cast<void*>(data), type}; }

struct Factor {
  Reals data;
  long long ld, stride;
  bool transposed;

  float at(long long batch, long long row, long long column) const {
    return data[batch * stride + (transposed ? row * ld + column : column * ld + row)];
  }
};

// Of a row of the left factor and a column of the right one.
double dot(const float* a, const float* b, int n) {
  constexpr int kParts = 8;
  double parts[kParts] = {};
  int i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int p = 0; p < kParts; ++p) parts[p] += static_cast<double>(a[i + p]) * b[i + p];
  }
  for (; i < n; ++i) parts[0] += static_cast<double>(a[i]) * b[i];
  double sum = 0;
  for (double part : parts) sum += part;
  return sum;
}

}  // namespace

extern "C" {

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value"
                                                 : "an error of the software GPU";
}
cublasStatus_t cublasGetProperty(libraryPropertyType, int* value) {
  *value = 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  of(handle).stream = reinterpret_cast<soft_gpu::Stream*>(stream);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

// Matrices by columns: c = alpha op(a) op(b) + beta c, for each of a batch.
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType type_a,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool a_turned = op_a != CUBLAS_OP_N, b_turned = op_b != CUBLAS_OP_N;
  if (m < 0 || n < 0 || k < 0 || count < 0 || lda < std::max(1, a_turned ? k : m) ||
      ldb < std::max(1, b_turned ? n : k) || ldc < std::max(1, m)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto factors = type_of(type_a), result = type_of(type_c);
  if (!factors || !result || type_a != type_b) return CUBLAS_STATUS_INVALID_VALUE;
  // Floats become narrow in no product, and narrow numbers are multiplied as they are.
  const bool narrow = flexlegion::is_narrow(*factors);
  if (*result != *factors && (!narrow || *result != DataType::float32)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (narrow && compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_INVALID_VALUE;
  const Factor left{reals(a, *factors), lda, stride_a, a_turned};
  const Factor right{reals(b, *factors), ldb, stride_b, b_turned};
  const Reals product = reals(c, *result);
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const int bits = compute == CUBLAS_COMPUTE_32F_FAST_16BF   ? 7
                   : compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 10
                                                             : 23;
  of(handle).stream->issue(soft_gpu::By::device, [=] {
    const auto inner = static_cast<std::size_t>(k);
    std::vector<float> rows(static_cast<std::size_t>(m) * inner);
    std::vector<float> columns(static_cast<std::size_t>(n) * inner);
    const auto kept = [=](float value) {
      return bits < 23 ? soft_gpu::rounded_to(value, bits) : value;
    };
    for (long long i = 0; i < count; ++i) {
      std::size_t at = 0;
      for (int row = 0; row < m; ++row) {
        for (int j = 0; j < k; ++j) rows[at++] = kept(left.at(i, row, j));
      }
      at = 0;
      for (int column = 0; column < n; ++column) {
        for (int j = 0; j < k; ++j) columns[at++] = kept(right.at(i, j, column));
      }
      for (int column = 0; column < n; ++column) {
        for (int row = 0; row < m; ++row) {
          const double sum = dot(rows.data() + static_cast<std::size_t>(row) * inner,
                                 columns.data() + static_cast<std::size_t>(column) * inner, k);
          const auto to = product[i * stride_c + static_cast<long long>(column) * ldc + row];
          // With beta 0, what was there is not read.
          to = scale * static_cast<float>(sum) + (keep == 0 ? 0 : keep * to);
        }
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType type_a, int lda, const void* b, cudaDataType type_b,
                            int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b,
                                    type_b, ldb, 0, beta, c, type_c, ldc, 0, 1, compute, algorithm);
}
}
