// Products of matrices by cuBLAS, and what has to be done for tensor cores to be fast; on the host,
// loops that tests compare with.
//
// cuBLAS calls a matrix what is stored by columns, which a row-major matrix is once it is
// transposed. So c = a b is asked for as c^T = b^T a^T, without moving an element.
//
// Tensor cores run at full speed only where all rows of a factor begin at a multiple of 16 bytes,
// and where extents are whole pieces of 16 bytes. Tiles that a strategy cuts often have neither.
// Two remedies, each only for products that are large enough to be worth it:
// 1. Align: a factor whose rows do not begin so is copied into scratch memory with padded rows; a
//    result is computed there and copied back. One pass over that matrix, against several times the
//    speed of the product.
// 2. Split: what is left over of an extent, fewer elements than a piece has, becomes a small
//    product of its own, and the rest is computed at full speed.
#include "gpu/blas.h"

#include <stdexcept>

namespace flexlegion::gpu {

namespace {

Matrix packed_matrix(void* data, const TensorView& view, DataType type) {
  const std::int64_t cols = view.extent(view.rank() - 1);
  return Matrix::row_major(data, cols == 0 ? 0 : view.volume() / cols, cols, cols, type);
}

// Then the tile is a matrix where it lies.
bool rows_at_equal_distances(const TensorView& view) {
  Matrix matrix;
  return matrix_in_place(view, matrix);
}

#if FLEXLEGION_CUDA

constexpr int kAlignedSlot = 4000, kResultSlot = 4002;  // two factors; the result
// Of so many rows or columns at least, products are worth a copy of a factor.
constexpr std::int64_t kWorthCopying = 128;

// to = or += from, of equal extents and alike in what of them is contiguous. Not both are aligned:
// what is read is read one by one.
void copy_rows(const Matrix& to, const Matrix& from, bool adds) {
  const bool rows = to.col == 1;
  const std::int64_t count = rows ? to.rows : to.cols, width = rows ? to.cols : to.rows;
  const std::int64_t to_step = rows ? to.row : to.col, from_step = rows ? from.row : from.col;
  const Reals results = reals(to), values = reals(from);
  for_each_team(count, width, [=] FL_BODY(const Team& team, std::int64_t r) {
    const Reals row = results + r * to_step, its = values + r * from_step;
    visit_row(team, width, head_of(row), [&](auto wide, std::int64_t i) {
      constexpr int W = decltype(wide)::value;
      Lanes<W> lanes;
      for (int k = 0; k < W; ++k) lanes[k] = its[i + k];
      put(row, i, lanes, adds);
    });
  });
}

// Whether products of such factors run on tensor cores, for which alignment matters.
bool on_tensor_cores(DataType factors) {
  return is_narrow(factors) || precision() != Precision::fp32;
}

// A matrix's elements that follow each other in memory: how many, how many such rows, and how far
// apart these are.
struct MemoryRows {
  std::int64_t length, count, stride;
  std::int64_t padded, floats;  // a length that keeps rows aligned, and the memory of all of them

  explicit MemoryRows(const Matrix& m)
      : length(m.col == 1 ? m.cols : m.rows),
        count(m.col == 1 ? m.rows : m.cols),
        stride(m.col == 1 ? m.row : m.col) {
    const std::int64_t vector = kPieceBytes / element_bytes(m.type);
    padded = (length + vector - 1) / vector * vector;
    floats = floats_for(count * padded, m.type);
  }
};

// Tensor cores are several times as fast where all rows begin at a multiple of 16 bytes. Whether a
// matrix whose rows do not is worth a copy: as many rows or columns of another matrix meet each of
// its elements, and there is scratch memory.
bool worth_aligning(const Matrix& m, std::int64_t met, int slot) {
  const MemoryRows rows(m);
  const bool aligned = begins_wide(reals(m)) &&
                       (rows.count == 1 || rows.stride * element_bytes(m.type) % kPieceBytes == 0);
  return !aligned && met >= kWorthCopying && rows.length >= kWorthCopying &&
         scratch_fits(slot, rows.floats);
}

// A matrix, or the copy of it in scratch memory that is worth it.
class Aligned {
 public:
  Aligned(const Matrix& m, std::int64_t met, int slot) : given_(m), matrix_(m) {
    if (!worth_aligning(m, met, slot)) return;
    const MemoryRows rows(m);
    matrix_.data = scratch(slot, rows.floats);
    (m.col == 1 ? matrix_.row : matrix_.col) = rows.padded;
  }
  const Matrix& matrix() const { return matrix_; }
  bool copied() const { return matrix_.data != given_.data; }
  void read() const {
    if (copied()) copy_rows(matrix_, given_, false);
  }
  void commit(bool adds) const {
    if (copied()) copy_rows(given_, matrix_, adds);
  }

 private:
  Matrix given_, matrix_;
};

// One call of cuBLAS, whose matrices are stored by columns.
void multiply_on_device(const Matrix& a, const Matrix& b, const Matrix& c, float beta,
                        float scale) {
  // c^T = b^T a^T
  const ColumnMajor left(b), right(a);
  const cublasComputeType_t compute = compute_type(a.type, precision());
  const cudaDataType_t factors = cuda_type(a.type), result = cuda_type(c.type);
  const int rows = static_cast<int>(c.cols), columns = static_cast<int>(c.rows);
  const int inner = static_cast<int>(a.cols);
  const int ld = static_cast<int>(std::max<std::int64_t>({1, c.row, c.cols}));
  if (c.batch == 1) {
    check(cublasGemmEx(blas(), left.operation, right.operation, rows, columns, inner, &scale,
                       b.data, factors, left.ld, a.data, factors, right.ld, &beta, c.data, result,
                       ld, compute, CUBLAS_GEMM_DEFAULT));
    return;
  }
  // A factor that all matrices of a batch share does not move on.
  const auto stride = [](const Matrix& m) { return m.batch == 1 ? 0 : m.batch_stride; };
  check(cublasGemmStridedBatchedEx(blas(), left.operation, right.operation, rows, columns, inner,
                                   &scale, b.data, factors, left.ld, stride(b), a.data, factors,
                                   right.ld, stride(a), &beta, c.data, result, ld, c.batch_stride,
                                   static_cast<int>(c.batch), compute, CUBLAS_GEMM_DEFAULT));
}

// Of so many multiplications at least, tensor cores save more time than a second product takes: on
// an H100, products ran at 700 TFLOP/s, and at 96 where an extent had a rest.
constexpr std::int64_t kWorthSplitting = std::int64_t{1} << 30;

// Rows are the columns of the transposed matrix.
Matrix some_rows(const Matrix& m, std::int64_t first, std::int64_t count) {
  return columns(m.transposed(), first, count).transposed();
}

// Tensor cores' fast kernels take whole pieces of 16 bytes along every dimension whose elements
// follow each other in memory, of a factor or of the result. So what is left of such an extent,
// fewer elements than a piece has, is a product of its own:
//   c[:, :n] = a b[:, :n] and c[:, n:] = a b[:, n:] (the same with rows), or
//   c = a[:, k:] b[k:, :], and then c += a[:, :k] b[:k, :].
// Of a sum, the small part comes first: c may be rounded to two bytes, and this rounds a few terms.
void multiply_in_pieces(const Matrix& a, const Matrix& b, const Matrix& c, float beta,
                        float scale) {
  const std::int64_t piece = kPieceBytes / element_bytes(a.type);
  const auto splits = [&](std::int64_t extent, bool contiguous) {
    return contiguous && extent > piece && extent % piece != 0;
  };
  if (c.rows * c.cols >= kWorthSplitting / std::max<std::int64_t>(1, a.cols)) {
    if (splits(a.cols, a.col == 1 || b.col != 1)) {
      const std::int64_t rest = a.cols % piece, whole = a.cols - rest;
      multiply_on_device(columns(a, whole, rest), some_rows(b, whole, rest), c, beta, scale);
      return multiply_in_pieces(columns(a, 0, whole), some_rows(b, 0, whole), c, 1.0f, scale);
    }
    if (splits(c.cols, true)) {
      const std::int64_t rest = c.cols % piece, whole = c.cols - rest;
      multiply_on_device(a, columns(b, whole, rest), columns(c, whole, rest), beta, scale);
      return multiply_in_pieces(a, columns(b, 0, whole), columns(c, 0, whole), beta, scale);
    }
    if (splits(a.rows, a.col != 1)) {
      const std::int64_t rest = a.rows % piece, whole = a.rows - rest;
      multiply_on_device(some_rows(a, whole, rest), b, some_rows(c, whole, rest), beta, scale);
      return multiply_in_pieces(some_rows(a, 0, whole), b, some_rows(c, 0, whole), beta, scale);
    }
  }
  multiply_on_device(a, b, c, beta, scale);
}

#else

// Sums in double precision: what kernels for the device are tested against.
void multiply_on_host(const Matrix& a, const Matrix& b, const Matrix& c, bool adds, float scale) {
  const auto element = [](const Matrix& m, std::int64_t batch, std::int64_t r, std::int64_t k) {
    return reals(m)[(m.batch == 1 ? 0 : batch * m.batch_stride) + r * m.row + k * m.col];
  };
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t k = 0; k < c.cols; ++k) {
        double sum = 0;
        for (std::int64_t j = 0; j < a.cols; ++j) {
          sum += static_cast<double>(element(a, i, r, j)) * element(b, i, j, k);
        }
        put(element(c, i, r, k), scale * static_cast<float>(sum), adds);
      }
    }
  }
}

#endif

}  // namespace

#if FLEXLEGION_CUDA

ColumnMajor::ColumnMajor(const Matrix& m)
    : operation(m.col == 1 ? CUBLAS_OP_N : CUBLAS_OP_T),
      ld(static_cast<int>(
          std::max<std::int64_t>({1, m.col == 1 ? m.row : m.col, m.col == 1 ? m.cols : m.rows}))) {}

cudaDataType_t cuda_type(DataType type) {
  return type == DataType::bfloat16  ? CUDA_R_16BF
         : type == DataType::float16 ? CUDA_R_16F
                                     : CUDA_R_32F;
}

bool aligns_result(const Matrix& a, const Matrix& c) {
  return on_tensor_cores(a.type) && c.batch == 1 && worth_aligning(c, a.cols, kResultSlot);
}

// Factors of two bytes are what tensor cores take.
cublasComputeType_t compute_type(DataType factors, Precision precision) {
  return is_narrow(factors)             ? CUBLAS_COMPUTE_32F
         : precision == Precision::bf16 ? CUBLAS_COMPUTE_32F_FAST_16BF
         : precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                        : CUBLAS_COMPUTE_32F;
}

#endif

// For a factor that several products share: it is copied once.
Matrix aligned_factor(const Matrix& m, std::int64_t met, int slot) {
#if FLEXLEGION_CUDA
  if (on_tensor_cores(m.type) && m.batch == 1) {
    const Aligned factor(m, met, slot);
    factor.read();
    return factor.matrix();
  }
#endif
  static_cast<void>(met), static_cast<void>(slot);
  return m;
}

// c = or += scale a b. On tensor cores, factors and results whose rows begin anywhere are worked on
// as aligned copies where that pays, and extents that are no whole pieces are cut
// (multiply_in_pieces).
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds, float scale) {
  if (a.cols != b.rows || c.rows != a.rows || c.cols != b.cols || a.type != b.type ||
      (c.type != a.type && c.type != DataType::float32)) {
    throw std::logic_error("factors and product do not fit");
  }
  if (c.col != 1) {
    return multiply(b.transposed(), a.transposed(), c.transposed(), adds, scale);
  }
  if (c.rows == 0 || c.cols == 0 || c.batch == 0) return;
#if FLEXLEGION_CUDA
  // In single precision, and for batches, neither remedy is used.
  if (!on_tensor_cores(a.type) || c.batch > 1) {
    return multiply_on_device(a, b, c, adds ? 1.0f : 0.0f, scale);
  }
  const Aligned left(a, c.cols, kAlignedSlot), right(b, c.rows, kAlignedSlot + 1),
      result(c, a.cols, kResultSlot);
  left.read();
  right.read();
  // A copied result is computed by itself, and added when it is copied back.
  const bool in_place = adds && !result.copied();
  multiply_in_pieces(left.matrix(), right.matrix(), result.matrix(), in_place ? 1.0f : 0.0f, scale);
  result.commit(adds);
#else
  multiply_on_host(a, b, c, adds, scale);
#endif
}

Matrix input_matrix(const TensorView& view, int slot, DataType type) {
  Matrix matrix;
  if (view.fits(type) && matrix_in_place(view, matrix)) return matrix;
  return packed_matrix(DenseInput(view, slot, type).memory(), view, type);
}

Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols, DataType type) {
  const std::int64_t floats = floats_for(rows * cols, type);
  return Matrix::row_major(scratch(slot, floats), rows, cols, cols, type);
}

OutputTile::OutputTile(const TensorView& tile, int slot, bool add, bool in_place, DataType type)
    : tile_(tile), view_(tile), add_(add), in_place_(in_place && tile.fits(type)) {
  if (!in_place_) view_ = gpu::scratch_view(slot, tile, type);
}

void OutputTile::commit() const {
  if (!in_place_) gpu::write_or_add_view(tile_, view_, add_);
}

OutputMatrix::OutputMatrix(const TensorView& tile, int slot, bool add, DataType type)
    : OutputTile(tile, slot, add, rows_at_equal_distances(tile), type) {
  matrix_in_place(view(), matrix_);
}

void multiply_into(const TensorView& tile, int slot, bool adds, const Matrix& a, const Matrix& b) {
  const OutputMatrix result(tile, slot, adds, product_type(a.type, tile.type));
  multiply(a, b, result.matrix(), result.adds());
  result.commit();
}

}  // namespace flexlegion::gpu
