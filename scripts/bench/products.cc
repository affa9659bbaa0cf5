// The ways in which products of a dense layer can be computed, GFLOP/s of one device: the forward
// pass's (x w^T), and the backward pass's with respect to the input (dy w) and the weights (dy^T
// x).
//   cmake -S . -B build/native -G Ninja -DFLEXLEGION_TESTS=ON -DFLEXLEGION_RUNTIME=OFF
//   ninja -C build/native bench_products && build/native/bench_products [threads]
//
// "prepared" is oneDNN's matrix product as a primitive, "gemm" its product after the BLAS, "few"
// our own of few rows and "panels" by way of panels, where they are made for the shape; "chosen" is
// what Products::multiply() takes, and "packed" a product with a factor that is kept packed.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "ops/few_rows.h"
#include "ops/panels.h"
#include "ops/products.h"
#include "ops/team.h"
#include "support/huge_pages.h"

namespace flexlegion {
namespace {

using Memory = std::unique_ptr<float, decltype(&std::free)>;

// As the runtime's: in huge pages.
Memory floats(std::int64_t count) {
  const std::size_t bytes = (count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  Memory memory(static_cast<float*>(std::aligned_alloc(kHugePage, bytes)), &std::free);
  use_huge_pages(memory.get(), bytes);
  for (std::int64_t i = 0; i < count; ++i) memory.get()[i] = static_cast<float>(i % 7);
  return memory;
}

// The fastest of seven runs, in GFLOP/s.
double rate(double flops, const std::function<void()>& product) {
  using Clock = std::chrono::steady_clock;
  product();
  const int times = std::max(1, static_cast<int>(1e9 / flops));
  double best = 0;
  for (int run = 0; run < 7; ++run) {
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) product();
    const std::chrono::duration<double> taken = Clock::now() - start;
    best = std::max(best, flops * times / taken.count() * 1e-9);
  }
  return best;
}

void prepared(const Matrix& a, const Matrix& b, const Matrix& c, dnnl::matmul& product) {
  const auto memory = [](const Matrix& m) {
    return dnnl::memory(
        {{m.rows, m.cols}, dnnl::memory::data_type::f32, dnnl::memory::dims{m.row, m.col}},
        onednn::engine(), m.data);
  };
  product.execute(
      onednn::stream(),
      {{DNNL_ARG_SRC, memory(a)}, {DNNL_ARG_WEIGHTS, memory(b)}, {DNNL_ARG_DST, memory(c)}});
}

void gemm(const Matrix& a, const Matrix& b, const Matrix& c) {
  dnnl_sgemm(a.col == 1 ? 'N' : 'T', b.col == 1 ? 'N' : 'T', c.rows, c.cols, a.cols, 1.0F, a.f32(),
             std::max(a.row, a.col), b.f32(), std::max(b.row, b.col), 0.0F, c.f32(), c.row);
}

void show(const char* name, const Matrix& a, const Matrix& b, const Matrix& c) {
  const double flops =
      2.0 * static_cast<double>(c.rows) * static_cast<double>(c.cols) * static_cast<double>(a.cols);
  const auto desc = [](const Matrix& m) {
    return dnnl::memory::desc({m.rows, m.cols}, dnnl::memory::data_type::f32,
                              dnnl::memory::dims{m.row, m.col});
  };
  dnnl::matmul product({onednn::engine(), desc(a), desc(b), desc(c)});
  Products products;
  std::printf("  %-4s prepared %4.0f  gemm %4.0f", name,
              rate(flops, [&] { prepared(a, b, c, product); }),
              rate(flops, [&] { gemm(a, b, c); }));
  const auto ours = [&](const char* its, bool suits, auto& multiply) {
    if (suits) {
      std::printf("  %s %4.0f", its, rate(flops, [&] { multiply(a, b, c, false); }));
    } else {
      std::printf("  %*s", static_cast<int>(std::strlen(its)) + 5, "");
    }
  };
  ours("few", few_rows::suits(a, b, c), few_rows::multiply);
  ours("panels", panels::suits(a, b, c), panels::multiply);
  std::printf("  chosen %4.0f", rate(flops, [&] { products.multiply(a, b, c); }));
  if (a.col == 1) {
    const Memory packed = floats(products.packed_size(b, a.rows));
    products.pack(b, a.rows, packed.get());
    std::printf("  packed %4.0f",
                rate(flops, [&] { products.multiply_packed(a, b, packed.get(), c, false); }));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void show_layer(std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  const Memory x = floats(rows * inputs), w = floats(outputs * inputs), y = floats(rows * outputs);
  const Matrix in = Matrix::row_major(x.get(), rows, inputs, inputs);
  const Matrix kernel = Matrix::row_major(w.get(), outputs, inputs, inputs);
  const Matrix out = Matrix::row_major(y.get(), rows, outputs, outputs);
  std::printf("%ld rows, %ld -> %ld\n", rows, inputs, outputs);
  show("y", in, kernel.transposed(), out);
  show("dx", out, kernel, in);
  show("dw", out.transposed(), in, kernel);
}

}  // namespace
}  // namespace flexlegion

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  const flexlegion::Team team(threads, 1 << 14);
  for (const auto& [inputs, outputs] : {std::pair{512, 512},
                                        {768, 768},
                                        {768, 3072},
                                        {3072, 768},
                                        {1024, 4096},
                                        {9216, 4096},
                                        {4096, 4096},
                                        {2048, 1000}}) {
    for (const int rows : {4, 8, 16, 32, 64, 256, 512}) {
      flexlegion::show_layer(rows, inputs, outputs);
    }
  }
}
