// Which way a product of matrices goes (products.h), and oneDNN's two ways.
//
// In this order, the first that suits:
// 1. A transposed result: compute the transposed product, b^T a^T.
// 2. A few rows with a large matrix: few_rows.h.
// 3. Some rows, without AVX-512: panels.h.
// 4. Floats with a row-major right factor and nothing fused: oneDNN's sgemm.
// 5. All else: a primitive, prepared for the two factors' shapes, strides and types, and for what
//    is fused into it. oneDNN takes batches, bfloat16 factors, biases and activations.
//
// The choice depends on the shapes and the machine alone, never on what ran before: a product gives
// the same bits each time.
#include "ops/products.h"

#include <oneapi/dnnl/dnnl.h>
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops/few_rows.h"
#include "ops/panels.h"

namespace flexlegion {
namespace {

using dnnl::memory;
using onednn::desc;

// The scratch slots that multiply_packed() uses for itself.
constexpr int kLeftSlot = kKernelSlots + 1, kResultSlot = kKernelSlots + 2;

enum Primitive { kPlain, kPacked, kLiking, kPack };  // first in each key

// A dense tile's dimensions but the last, as rows.
Matrix packed_matrix(void* data, const TensorView& view, DataType type) {
  const std::int64_t cols = view.extent(view.rank() - 1);
  return Matrix::row_major(data, cols == 0 ? 0 : view.volume() / cols, cols, cols, type);
}

memory::desc desc_of(const Matrix& m) {
  if (m.batch == 1) return desc(m.type, {m.rows, m.cols}, memory::dims{m.row, m.col});
  return desc(m.type, {m.batch, m.rows, m.cols}, memory::dims{m.batch_stride, m.row, m.col});
}

// A factor of a product of `batch` matrices: as many dimensions as the result. A factor that is one
// for all matrices of a batch has a batch of 1, which oneDNN repeats.
memory::desc factor_desc(const Matrix& m, std::int64_t batch) {
  if (m.batch == batch) return desc_of(m);
  return desc(m.type, {1, m.rows, m.cols}, memory::dims{m.rows * m.cols, m.row, m.col});
}

memory::desc bias_desc(const Matrix& c) {
  const DataType type = DataType::float32;
  if (c.batch == 1) return desc(type, {1, c.cols}, memory::format_tag::ab);
  return desc(type, {1, 1, c.cols}, memory::format_tag::abc);
}

// A scale in a key of whole numbers: its bits, so that equal keys mean equal scales.
std::int64_t bits_of(float value) {
  std::int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Addresses stand in no key: a primitive works on any.
void append(onednn::Cache::Key& key, const Matrix& m) {
  key.insert(key.end(), {m.rows, m.cols, m.row, m.col, m.batch, m.batch_stride,
                         static_cast<std::int64_t>(m.type)});
}

onednn::Cache::Key key_of(Primitive primitive, const Matrix& a, const Matrix& b, const Matrix& c,
                          const ProductOptions& options) {
  onednn::Cache::Key key{primitive, options.bias != nullptr,
                         static_cast<std::int64_t>(options.activation), options.adds,
                         bits_of(options.scale)};
  key.reserve(key.size() + 21);
  append(key, a);
  append(key, b);
  append(key, c);
  return key;
}

void check(const Matrix& a, const Matrix& b, const Matrix& c, const ProductOptions& options) {
  const auto fits = [&](const Matrix& m) { return m.batch == c.batch || m.batch == 1; };
  if (a.rows != c.rows || a.cols != b.rows || b.cols != c.cols || !fits(a) || !fits(b)) {
    throw std::invalid_argument("a product of matrices that do not fit");
  }
  if (options.adds && (options.bias != nullptr || options.activation != Activation::none)) {
    throw std::invalid_argument("a product that adds has neither bias nor activation");
  }
  if (options.bias != nullptr && (options.scale != 1.0f || c.col != 1)) {
    throw std::invalid_argument(
        "a product with a bias has neither a scale nor a transposed result");
  }
}

// oneDNN computes eltwise(sum_scale * c + a b): with the sum before the scale, c has to be divided
// by the scale first, so that c + scale a b results.
dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const Matrix& c,
                                      const ProductOptions& options) {
  dnnl::post_ops post_ops;  // the sum has to come first to be fast
  if (options.adds) post_ops.append_sum(1.0f / options.scale);
  if (options.scale != 1.0f) {
    post_ops.append_eltwise(dnnl::algorithm::eltwise_linear, options.scale, 0.0f);
  }
  const auto attributes = onednn::attributes(options.activation, post_ops);
  if (options.bias == nullptr) return {onednn::engine(), a, b, desc_of(c), attributes};
  return {onednn::engine(), a, b, bias_desc(c), desc_of(c), attributes};
}

// c = activation(a b + bias), or c += a b, by a product of our own.
void multiply_ours(void (*product)(const Matrix&, const Matrix&, const Matrix&, bool),
                   const Matrix& a, const Matrix& b, const Matrix& c,
                   const ProductOptions& options) {
  for (std::int64_t row = 0; row < c.rows && options.bias != nullptr; ++row) {
    std::copy_n(options.bias, c.cols, c.f32() + row * c.row);
  }
  product(a, b, c, options.adds || options.bias != nullptr);
  activate(options.activation, view_of(c));
}

// Whether oneDNN's product after the BLAS computes this. It is the faster one where b is row-major,
// as in both products of a dense layer's backward pass: there the primitive, made for inference,
// spends up to half of its time on moving the factors into its own layout.
bool suits_gemm(const Matrix& a, const Matrix& b, const Matrix& c, const ProductOptions& options) {
  return a.type == DataType::float32 && c.type == DataType::float32 && c.batch == 1 && b.col == 1 &&
         c.col == 1 && options.bias == nullptr && options.activation == Activation::none;
}

void multiply_gemm(const Matrix& a, const Matrix& b, const Matrix& c,
                   const ProductOptions& options) {
  onednn::engine();  // holds oneDNN to the team's threads
  // Of a factor that is stored by columns, the BLAS reads the transposed one.
  const bool transposed = a.col != 1;
  const auto status = dnnl_sgemm(
      transposed ? 'T' : 'N', 'N', c.rows, c.cols, a.cols, options.scale, a.f32(),
      transposed ? std::max(a.col, a.rows) : std::max(a.row, a.cols), b.f32(),
      std::max(b.row, b.cols), options.adds ? 1.0f : 0.0f, c.f32(), std::max(c.row, c.cols));
  if (status != dnnl_success) throw std::runtime_error("oneDNN refused a product of matrices");
}

// A missing bias is a null pointer, which no primitive without one looks at.
void execute(const onednn::Prepared& product, void* a, void* b, const Matrix& c,
             const ProductOptions& options) {
  product.execute({{DNNL_ARG_SRC, a},
                   {DNNL_ARG_WEIGHTS, b},
                   {DNNL_ARG_BIAS, options.bias},
                   {DNNL_ARG_DST, c.data}});
}

// Without gaps between rows, or between the matrices of a batch.
bool dense(const Matrix& m) {
  return m.col == 1 && (m.rows == 1 || m.row == m.cols) &&
         (m.batch == 1 || m.batch_stride == m.rows * m.cols);
}

// A matrix of the same extents without gaps.
Matrix dense_matrix(void* data, const Matrix& extents) {
  const std::int64_t rows = extents.rows, cols = extents.cols;
  return {data, rows, cols, cols, 1, extents.batch, rows * cols, extents.type};
}

// The same, in scratch memory.
Matrix scratch_matrix(int slot, const Matrix& extents) {
  const std::int64_t elements = extents.batch * extents.rows * extents.cols;
  return dense_matrix(scratch(slot, floats_for(elements, extents.type)), extents);
}

bool empty(const Matrix& m) { return m.rows == 0 || m.cols == 0 || m.batch == 0; }

}  // namespace

Matrix input_matrix(const TensorView& view, int slot, DataType type) {
  Matrix matrix;
  if (view.fits(type) && matrix_in_place(view, matrix)) return matrix;
  return packed_matrix(DenseInput(view, slot, type).memory(), view, type);
}

OutputTile::OutputTile(const TensorView& tile, int slot, bool add, bool in_place, DataType type)
    : tile_(tile), view_(tile), add_(add), in_place_(in_place && tile.fits(type)) {
  if (!in_place_) view_ = scratch_view(slot, tile, type);
}

void OutputTile::commit() const {
  if (in_place_) return;
  if (add_) {
    add_view(tile_, view_);
  } else {
    copy_view(tile_, view_);
  }
}

OutputMatrix::OutputMatrix(const TensorView& tile, int slot, bool add, DataType type)
    : OutputTile(tile, slot, add, tile.dense(), type),
      matrix_(packed_matrix(view().data, tile, type)) {}

void Products::multiply(const Matrix& a, const Matrix& b, const Matrix& c,
                        const ProductOptions& options) {
  if (c.row == 1 && c.col != 1 && options.bias == nullptr) {  // oneDNN has no fast one
    return multiply(b.transposed(), a.transposed(), c.transposed(), options);
  }
  check(a, b, c, options);
  if (empty(c)) return;
  if (a.cols == 0 && options.bias == nullptr) {  // an empty sum
    if (!options.adds) zero_view(view_of(c));
    return;
  }
  if (options.scale == 1.0f && few_rows::suits(a, b, c)) {
    return multiply_ours(few_rows::multiply, a, b, c, options);
  }
  if (options.scale == 1.0f && panels::suits(a, b, c)) {
    return multiply_ours(panels::multiply, a, b, c, options);
  }
  if (suits_gemm(a, b, c, options)) return multiply_gemm(a, b, c, options);
  multiply_prepared(a, b, c, options);
}

void Products::multiply_into(const TensorView& tile, int slot, bool adds, const Matrix& a,
                             const Matrix& b) {
  const OutputMatrix result(tile, slot, adds, product_type(a.type, tile.type));
  multiply(a, b, result.matrix(), adding(result.adds()));
  result.commit();
}

void Products::multiply_prepared(const Matrix& a, const Matrix& b, const Matrix& c,
                                 const ProductOptions& options) {
  const onednn::Prepared& product = cache_.get(key_of(kPlain, a, b, c, options), [&] {
    return describe(factor_desc(a, c.batch), factor_desc(b, c.batch), c, options);
  });
  execute(product, a.data, b.data, c, options);
}

// A primitive that is asked for its favourite layout of b and never executed.
const onednn::Prepared& Products::liking(const Matrix& b, std::int64_t rows) {
  return cache_.get({kLiking, rows, b.rows, b.cols, static_cast<std::int64_t>(b.type)}, [&] {
    return dnnl::matmul::primitive_desc(
        onednn::engine(), desc(b.type, {rows, b.rows}, memory::format_tag::ab),
        desc(b.type, {b.rows, b.cols}, memory::format_tag::any),
        desc(DataType::float32, {rows, b.cols}, memory::format_tag::ab), onednn::attributes());
  });
}

memory::desc Products::packed_layout(const Matrix& b, std::int64_t rows) {
  return liking(b, rows).layout(DNNL_ARG_WEIGHTS);
}

bool Products::packing_pays(const Matrix& b, std::int64_t rows, std::int64_t products) {
  constexpr std::int64_t kMany = 8, kFewRows = 16;
  if (products < kMany) return false;
  return panels::suits_packing(rows, b) || rows > kFewRows || !few_rows::suits(rows, b);
}

std::int64_t Products::packed_size(const Matrix& b, std::int64_t rows) {
  if (panels::suits_packing(rows, b)) return panels::packed_size(b);
  return static_cast<std::int64_t>(packed_layout(b, rows).get_size() + sizeof(float) - 1) /
         static_cast<std::int64_t>(sizeof(float));
}

// A factor that many products share is brought once into the layout in which they read it.
void Products::pack(const Matrix& b, std::int64_t rows, float* packed) {
  if (panels::suits_packing(rows, b)) return panels::pack(b, packed);
  onednn::Cache::Key key{kPack, rows};
  append(key, b);
  const memory::desc to = packed_layout(b, rows);
  const onednn::Prepared& reorder = cache_.get(key, [&] {
    return dnnl::reorder::primitive_desc(onednn::engine(), desc_of(b), onednn::engine(), to,
                                         onednn::attributes());
  });
  reorder.execute({{DNNL_ARG_FROM, b.data}, {DNNL_ARG_TO, packed}});
}

// The product with a packed factor. A factor or result that does not lie as the chosen way needs it
// goes through a copy.
void Products::multiply_packed(const Matrix& a, const Matrix& b_shape, const float* packed,
                               const Matrix& c, bool adds) {
  const ProductOptions options = adding(adds);
  check(a, b_shape, c, options);
  if (empty(c)) return;
  const bool ours = panels::suits_packing(a.rows, b_shape);
  if (ours ? a.col != 1 : !dense(a)) {
    const Matrix copy = scratch_matrix(kLeftSlot, a);
    copy_view(view_of(copy), view_of(a));
    return multiply_packed(copy, b_shape, packed, c, adds);
  }
  if (ours ? c.col != 1 : !dense(c)) {
    const Matrix copy = scratch_matrix(kResultSlot, c);
    multiply_packed(a, b_shape, packed, copy, false);
    return write_or_add_view(view_of(c), view_of(copy), adds);
  }
  if (ours) return panels::multiply_packed(a, b_shape, packed, c, adds);
  const Matrix left = dense_matrix(a.data, a), right = dense_matrix(nullptr, b_shape),
               result = dense_matrix(c.data, c);
  const memory::desc layout = packed_layout(right, a.rows);
  const onednn::Prepared& product = cache_.get(key_of(kPacked, left, right, result, options), [&] {
    return describe(desc_of(left), layout, result, options);
  });
  execute(product, left.data, const_cast<float*>(packed), result, options);
}

}  // namespace flexlegion
