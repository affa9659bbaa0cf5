// A dense layer's product with its bias in cuBLASLt's one kernel, or else a product and a pass for
// bias and activation (fused_product.h).
//
// The pass that is saved reads and writes the result once more; for layers with few inputs that
// takes as long as the product. cuBLASLt asks its heuristics for an algorithm by shape, strides,
// types and the alignment of all addresses. The answer is kept for each of these keys and thread.
//
// If the result is narrow and nothing fuses, the product's sums stay floats in scratch memory until
// bias and activation are done, and are rounded once.
#include "gpu/fused_product.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "gpu/activation.h"

namespace flexlegion::gpu {

#if FLEXLEGION_CUDA

namespace {

constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;  // bytes, as cuBLAS advises

// The largest power of two up to 256 that an address is a multiple of.
std::int64_t alignment_of(const void* address) {
  const auto value = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) | 256U);
  return value & -value;
}

// As cuBLASLt is told of it, whose matrices are stored by columns: c^T = b^T a^T, and the bias
// belongs to rows.
struct Shape {
  ColumnMajor left, right;
  int rows, columns, inner, ld;
  DataType factors, result;
  Precision precision;
  // Algorithms load up to 16 bytes at a time, so which of them may run depends on the addresses.
  std::array<std::int64_t, 3> alignment;

  Shape(const Matrix& a, const Matrix& b, const Matrix& c)
      : left(b),
        right(a),
        rows(static_cast<int>(c.cols)),
        columns(static_cast<int>(c.rows)),
        inner(static_cast<int>(a.cols)),
        ld(static_cast<int>(std::max<std::int64_t>({1, c.row, c.cols}))),
        factors(a.type),
        result(c.type),
        precision(is_narrow(a.type) ? Precision::fp32 : gpu::precision()),
        alignment{alignment_of(b.data), alignment_of(a.data), alignment_of(c.data)} {}

  using Key = std::array<std::int64_t, 14>;
  Key key() const {
    return {left.operation,
            left.ld,
            right.operation,
            right.ld,
            rows,
            columns,
            inner,
            ld,
            static_cast<std::int64_t>(factors),
            static_cast<std::int64_t>(result),
            static_cast<std::int64_t>(precision),
            alignment[0],
            alignment[1],
            alignment[2]};
  }
};

// What cuBLASLt needs to know of a shape, and the algorithm that its heuristics like best: asking
// them takes longer than many a product.
class FusedProduct {
 public:
  explicit FusedProduct(const Shape& shape) {
    const cublasComputeType_t compute = compute_type(shape.factors, shape.precision);
    check(cublasLtMatmulDescCreate(&product_, compute, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, shape.left.operation);
    set(CUBLASLT_MATMUL_DESC_TRANSB, shape.right.operation);
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    left_ = layout(shape.left, shape.factors, shape.rows, shape.inner);
    right_ = layout(shape.right, shape.factors, shape.inner, shape.columns);
    check(cublasLtMatrixLayoutCreate(&result_, cuda_type(shape.result),
                                     static_cast<std::uint64_t>(shape.rows),
                                     static_cast<std::uint64_t>(shape.columns), shape.ld));
    choose(shape);
  }
  FusedProduct(const FusedProduct&) = delete;
  ~FusedProduct() {
    cublasLtMatmulDescDestroy(product_);
    for (cublasLtMatrixLayout_t layout : {left_, right_, result_}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
  }

  // False if cuBLASLt has none, or there is not enough scratch memory for it.
  bool usable() const {
    return found_ && 2 * static_cast<std::int64_t>(best_.workspaceSize) < scratch_left();
  }

  void run(const Matrix& a, const Matrix& b, const Matrix& c, const void* bias, int slot) {
    const auto bytes = static_cast<std::int64_t>(best_.workspaceSize);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1.0f, zero = 0.0f;
    void* const workspace = scratch(slot, bytes / 4 + 1);
    check(cublasLtMatmul(blas_lt(), product_, &one, b.data, left_, a.data, right_, &zero, c.data,
                         result_, c.data, result_, &best_.algo, workspace, best_.workspaceSize,
                         stream()));
  }

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(product_, attribute, &value, sizeof(value)));
  }

  // Of a factor that has so many rows and columns once it is turned.
  static cublasLtMatrixLayout_t layout(const ColumnMajor& factor, DataType type, int rows,
                                       int columns) {
    if (factor.operation != CUBLAS_OP_N) std::swap(rows, columns);
    cublasLtMatrixLayout_t layout{};
    check(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), factor.ld));
    return layout;
  }

  // The first choice of the heuristics, of those that these addresses and so much workspace allow.
  void choose(const Shape& shape) {
    cublasLtMatmulPreference_t preference{};
    check(cublasLtMatmulPreferenceCreate(&preference));
    const auto prefer = [preference](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
    const auto aligned = [&shape](int i) {
      return static_cast<std::uint32_t>(shape.alignment[static_cast<std::size_t>(i)]);
    };
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(0));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(1));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(2));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(2));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        blas_lt(), product_, left_, right_, result_, result_, preference, 1, &best_, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    found_ = status == CUBLAS_STATUS_SUCCESS && count == 1;
  }

  cublasLtMatmulDesc_t product_{};
  cublasLtMatrixLayout_t left_{}, right_{}, result_{};
  cublasLtMatmulHeuristicResult_t best_{};
  bool found_ = false;
};

// A thread is one device's, so its products are, too.
FusedProduct& product_of(const Shape& shape) {
  thread_local std::map<Shape::Key, std::unique_ptr<FusedProduct> > products;
  std::unique_ptr<FusedProduct>& product = products[shape.key()];
  if (product == nullptr) product = std::make_unique<FusedProduct>(shape);
  return *product;
}

// A product and its bias in one kernel. A ReLU follows in another: cuBLASLt does not say that its
// own leaves NaN as it is, and one that does not would hide that training diverges.
bool fused(const Matrix& a, const Matrix& b, const Matrix& c, const Reals& bias,
           Activation activation, int slot) {
  if (activation != Activation::none && activation != Activation::relu) return false;
  // cuBLASLt takes no empty matrices. A sum over nothing is the bias alone.
  if (c.rows == 0 || c.cols == 0 || a.cols == 0) return false;
  FusedProduct& product = product_of(Shape(a, b, c));
  if (!product.usable()) return false;
  // Of the result's type.
  const void* beside = bias.data();
  if (bias.type() != c.type) {
    const Rect all = Rect::of_shape({c.cols});
    const TensorView floats = dense_view(bias.data(), all, {c.cols}, bias.type());
    const TensorView rounded = gpu::scratch_view(slot + 1, floats, c.type);
    gpu::copy_view(rounded, floats);
    beside = rounded.data;
  }
  product.run(a, b, c, beside, slot);
  if (activation != Activation::none) {
    add_bias_and_activate(reals(c), reals(c), Reals(), c.rows, c.cols, activation);
  }
  return true;
}

}  // namespace

#endif

void multiply_and_activate(const Matrix& a, const Matrix& b, const Matrix& c, const Reals& bias,
                           Activation activation, int slot) {
  const bool plain = !bias.present() && activation == Activation::none;
#if FLEXLEGION_CUDA
  if (bias.present() && !aligns_result(a, c) && fused(a, b, c, bias, activation, slot)) return;
#endif
  if (plain || c.type == DataType::float32) {
    multiply(a, b, c);
    if (!plain) add_bias_and_activate(reals(c), reals(c), bias, c.rows, c.cols, activation);
    return;
  }
  const Matrix sums = scratch_matrix(slot, c.rows, c.cols);
  multiply(a, b, sums);
  add_bias_and_activate(reals(sums), reals(c), bias, c.rows, c.cols, activation);
}

}  // namespace flexlegion::gpu
