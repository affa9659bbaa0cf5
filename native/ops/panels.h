// Products of floats on processors whose widest vectors are AVX2's. The right factor is copied into
// panels of 16 columns, each of which a tile of registers reads from its first row to its last.
//
// oneDNN's products do the same for many rows on the left. For fewer than 264 of them, though, they
// read a row-major factor where it lies: each row of a panel is then on another page, and all of
// them fall into the same few lines of the caches. That halves their speed.
#pragma once

#include "ops/matrix.h"

namespace flexlegion::panels {

// Whether multiply() is made for these matrices, and beats oneDNN's products on this machine.
bool suits(const Matrix& a, const Matrix& b, const Matrix& c);

// c = a b, or c += a b, of matrices that it suits().
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds);

// The same for a factor b that many products share: it is copied once, into `packed` of
// packed_size() floats, 64-byte aligned; of b_shape only the extents count. suits_packing() tells
// whether that is the fastest layout for products with so many rows on the left.
bool suits_packing(std::int64_t rows, const Matrix& b);
std::int64_t packed_size(const Matrix& b);
void pack(const Matrix& b, float* packed);
void multiply_packed(const Matrix& a, const Matrix& b_shape, const float* packed, const Matrix& c,
                     bool adds);

}  // namespace flexlegion::panels
