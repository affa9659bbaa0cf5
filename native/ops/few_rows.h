// Products in which a large matrix meets a few rows only, as in each step of a recurrent layer.
// They take as long as reading the large matrix does, so they read it once and where it lies:
// packing it, as libraries do, takes longer than the product.
#pragma once

#include "ops/products.h"

namespace flexlegion::few_rows {

// Whether the functions below are made for a product of `rows` rows with a large matrix, of floats,
// and beat oneDNN's on this machine.
bool suits(std::int64_t rows, const Matrix& large);

// c = a b, or c += a b, with a large b. All are row-major, or b is transposed. By oneDNN, if this
// does not suit.
void multiply(Products& products, const Matrix& a, const Matrix& b, const Matrix& c, bool adds);

// c = a^T b, or c += a^T b, with a large c. All are row-major. By oneDNN, if this does not suit.
void multiply_outer(Products& products, const Matrix& a, const Matrix& b, const Matrix& c,
                    bool adds);

}  // namespace flexlegion::few_rows
