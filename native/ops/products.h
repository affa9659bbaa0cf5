// Matrix products for all kernels that need them, by whichever of four ways is the fastest for a
// shape on this CPU: oneDNN's primitives, prepared once a shape; its product after the BLAS; and
// our own, of a few rows (few_rows.h) and by way of panels (panels.h).
#pragma once

#include <cstdint>

#include "ops/activation.h"
#include "ops/matrix.h"
#include "ops/onednn_support.h"
#include "ops/tensor_view.h"

namespace flexlegion {

// All dimensions but the last as rows; packed into scratch `slot` where they do not lie at equal
// distances, or are not of that type.
Matrix input_matrix(const TensorView& view, int slot, DataType type = DataType::float32);

// The counterpart for a result: multiply into view(), with adds(), then call commit(). With `add`,
// the result is added to what stands in the tile. If not `in_place`, or of another type, view() is
// dense scratch memory.
class OutputTile {
 public:
  OutputTile(const TensorView& tile, int slot, bool add, bool in_place,
             DataType type = DataType::float32);
  const TensorView& view() const { return view_; }
  bool adds() const { return add_ && in_place_; }  // what ProductOptions::adds has to be
  void commit() const;

 private:
  TensorView tile_, view_;
  bool add_, in_place_;
};

// The same, with all dimensions but the last as rows.
//
// Only a dense tile is written in place: oneDNN writes rows that lie apart (a tile of the columns)
// a tenth slower than it computes them, far more than copying them takes.
class OutputMatrix : public OutputTile {
 public:
  OutputMatrix(const TensorView& tile, int slot, bool add = false,
               DataType type = DataType::float32);
  const Matrix& matrix() const { return matrix_; }

 private:
  Matrix matrix_;
};

// What a product does beside multiplying. oneDNN has only reference loops, a hundred times slower,
// for a bias together with a scale, and in a transposed result: these are refused.
struct ProductOptions {
  float* bias = nullptr;  // one a column of the result
  Activation activation = Activation::none;
  bool adds = false;   // c += scale * a b (then neither bias nor activation)
  float scale = 1.0f;  // of a b
};
inline ProductOptions adding(bool adds) {
  ProductOptions options;
  options.adds = adds;
  return options;
}

// c = activation(scale * a b + bias). The factors are of one type, c and bias of that or floats;
// sums are floats. Which way a product is computed depends on types, shapes and layouts alone, so
// that it gives the same bits whenever it is computed on a machine. Any number of threads may use
// one object at once.
class Products {
 public:
  // Any of the three may be transposed. A batch of matrices has as many of a, b and c, but a or b
  // may be one for all (batch 1).
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c,
                const ProductOptions& options = {});

  // a b, written to a tile or added to it, by way of scratch `slot` if need be: all dimensions but
  // the last are rows.
  void multiply_into(const TensorView& tile, int slot, bool adds, const Matrix& a, const Matrix& b);

  // A right factor that is used again and again (a recurrent kernel over the steps of a sequence)
  // in the layout that is the fastest for products with `rows` rows on the left: pack() writes b so
  // into `packed` of packed_size() floats, 64-byte aligned; c = a b or c += a b, floats, is then
  // multiply_packed() with the same rows of a, where of b_shape only the extents and the type
  // count. An a or c in another order than the product needs goes through scratch memory.
  //
  // b is one matrix. packing_pays() tells whether so many products are faster so.
  bool packing_pays(const Matrix& b, std::int64_t rows, std::int64_t products);
  std::int64_t packed_size(const Matrix& b, std::int64_t rows);
  void pack(const Matrix& b, std::int64_t rows, float* packed);
  void multiply_packed(const Matrix& a, const Matrix& b_shape, const float* packed, const Matrix& c,
                       bool adds);

 private:
  void multiply_prepared(const Matrix& a, const Matrix& b, const Matrix& c,
                         const ProductOptions& options);
  dnnl::memory::desc packed_layout(const Matrix& b, std::int64_t rows);
  const onednn::Prepared& liking(const Matrix& b, std::int64_t rows);

  onednn::Cache cache_;
};

}  // namespace flexlegion
