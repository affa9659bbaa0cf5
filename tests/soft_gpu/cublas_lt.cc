// cuBLASLt, as far as our kernels call it: a product, a bias for each of its rows, and a ReLU.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdint>
#include <cstring>

#include "driver.h"
#include "gpu/real.h"
#include "rounding.h"

namespace {

using flexlegion::DataType;
using flexlegion::gpu::Reals;

constexpr std::size_t kWorkspace = 1000;

struct Product {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t ld;
};

struct Preference {
  std::size_t workspace = 0;
};

template <typename Struct, typename Descriptor>
Struct& of(Descriptor descriptor) {
  return *reinterpret_cast<Struct*>(descriptor);
}

template <typename Value>
cublasStatus_t set(Value& value, const void* from, std::size_t bytes) {
  if (bytes != sizeof(value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool has_bias(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}
bool has_relu(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  auto* const made = new Product;
  made->compute = compute;
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete &of<Product>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  Product& its = of<Product>(product);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(its.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(its.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(its.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(its.bias, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &of<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return set(of<Preference>(preference).workspace, value, bytes);
  }
  const auto alignment = static_cast<const std::uint32_t*>(value);
  const bool power = bytes == sizeof(*alignment) && (*alignment & (*alignment - 1)) == 0;
  return power ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// It has no products of an odd number of rows, so that the way without it is taken, too.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  const cublasLtEpilogue_t epilogue = of<Product>(product).epilogue;
  if (!has_bias(epilogue) && !has_relu(epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = 0;
  if (of<Layout>(c).rows % 2 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (asked < 1 || of<Preference>(preference).workspace < kWorkspace) return CUBLAS_STATUS_SUCCESS;
  *count = 1;
  *found = {};
  found->workspaceSize = kWorkspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const Product its = of<Product>(product);
  const Layout left = of<Layout>(a_layout), right = of<Layout>(b_layout),
               result = of<Layout>(d_layout);
  const auto turned = [](cublasOperation_t operation) { return operation != CUBLAS_OP_N; };
  const std::uint64_t m = turned(its.a) ? left.columns : left.rows;
  const std::uint64_t k = turned(its.a) ? left.rows : left.columns;
  const std::uint64_t n = turned(its.b) ? right.rows : right.columns;
  const bool fits = k == (turned(its.b) ? right.columns : right.rows) && m == result.rows &&
                    n == result.columns && c == d && c_layout == d_layout;
  if (!fits || algorithm == nullptr || workspace == nullptr || workspace_bytes < kWorkspace ||
      (has_bias(its.epilogue) && its.bias == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  cublasHandle_t handle{};
  cublasCreate_v2(&handle);
  cublasSetStream_v2(handle, stream);
  const cublasStatus_t status = cublasGemmEx(
      handle, its.a, its.b, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a,
      left.type, static_cast<int>(left.ld), b, right.type, static_cast<int>(right.ld), beta, d,
      result.type, static_cast<int>(result.ld), its.compute, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  reinterpret_cast<soft_gpu::Stream*>(stream)->issue(soft_gpu::By::device, [=] {
    std::memset(workspace, 0xff, kWorkspace);
    const DataType type = *soft_gpu::type_of(result.type);  // or the product was refused
    const Reals values(d, type), bias(const_cast<void*>(its.bias), type);
    for (std::uint64_t column = 0; column < n; ++column) {
      for (std::uint64_t row = 0; row < m; ++row) {
        const auto value =
            values[static_cast<std::int64_t>(column) * result.ld + static_cast<std::int64_t>(row)];
        float sum = value;
        if (has_bias(its.epilogue)) sum += bias[static_cast<std::int64_t>(row)];
        value = has_relu(its.epilogue) && !(sum > 0) ? 0.0f : sum;
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}
}
