// Products in which a large matrix meets a few rows only, as in each step of a recurrent layer.
// They take as long as reading the large matrix does, so they read it once and where it lies:
// packing it, as libraries do, takes longer than the product.
#pragma once

#include "ops/matrix.h"

namespace flexlegion::few_rows {

// Whether multiply() is made for these matrices, and beats oneDNN's products on this machine.
bool suits(const Matrix& a, const Matrix& b, const Matrix& c);

// The same of a product of `rows` rows with a right factor, whose result is row-major.
bool suits(std::int64_t rows, const Matrix& factor);

// c = a b, or c += a b, of matrices that it suits().
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds);

}  // namespace flexlegion::few_rows
