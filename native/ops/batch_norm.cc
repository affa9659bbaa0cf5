// batch_norm: normalises by the moments that batch_norm_moments gives, and adds a residual if there
// is a third input; with the activation after it, that is one pass over the memory instead of
// three.
//
// A gradient goes back through the sums s of dz and t of dz (x - mean) of a channel, which the pass
// that writes dx and the residual's gradient takes along. What went into the activation is computed
// once more from x, which is read anyway: cheaper than reading the output as well. Only with a
// residual, which is not read again, does the output tell where a ReLU let a value through.
//
// The tile's rows are its pixels, the columns its channels. Parameters are fetched once for a chunk
// of columns and kept in registers for a block of rows (ops/channel_rows.h). Channels may be too
// few to fill a vector: then several rows are taken as one, and parameters and sums are repeated as
// often. Forward is one pass: x, the residual and y once each. Backward is one pass, too: x, dz and
// each gradient once each.
//
// Sums are added in single precision within a block of at most 64 rows, and in double precision
// from block to block, so that they stay accurate over millions of pixels.
#include "ops/batch_norm.h"

#include <cmath>
#include <stdexcept>

namespace flexlegion {
namespace {

// values = body(value of `first`, value of `second`), lane by lane. Epilogues other than ReLU are
// functions of one float. A vector goes through an array for them, whose loop the compiler can
// vectorise.
template <typename Body>
FLEXLEGION_INLINE void lane_by_lane(const Floats& first, const Floats& second, Floats& values,
                                    const Body& body) {
  float a[kLanes], b[kLanes];
  store(a, first);
  store(b, second);
  for (int i = 0; i < kLanes; ++i) a[i] = body(a[i], b[i]);
  load(values, a);
}
template <typename Body>
FLEXLEGION_INLINE void lane_by_lane(const float& first, const float& second, float& value,
                                    const Body& body) {
  value = body(first, second);
}

// z becomes its activation.
template <Epilogue kEpilogue, typename V>
FLEXLEGION_INLINE void end(V& z) {
  if (kEpilogue == Epilogue::none) return;
  if (kEpilogue == Epilogue::relu) return relu_of(z, z);
  lane_by_lane(z, z, z,
               [](float value, float) FLEXLEGION_INLINE_LAMBDA { return ended(kEpilogue, value); });
}

// The gradient of an activation of z becomes that of z.
template <Epilogue kEpilogue, typename V>
FLEXLEGION_INLINE void go_through(const V& z, V& grad) {
  if (kEpilogue == Epilogue::none) return;
  if (kEpilogue == Epilogue::relu) return where_positive(z, grad, grad);
  // Of two comparisons, the compiler makes branches for each lane, which takes twice as long.
  if (kEpilogue == Epilogue::relu6) {
    where_positive(z, grad, grad);
    return where_positive(6.0f - z, grad, grad);
  }
  if (kEpilogue == Epilogue::hardswish) {
    const V slanted = grad * (z * (1.0f / 3.0f) + 0.5f);
    choose(3.0f - z, slanted, grad, grad);
    return where_positive(z + 3.0f, grad, grad);
  }
  lane_by_lane(z, grad, grad, [](float value, float gradient) FLEXLEGION_INLINE_LAMBDA {
    return through(kEpilogue, value, gradient);
  });
}

// y = (x - center) * scale + offset, plus the addend, then the epilogue.
template <Epilogue kEpilogue, bool kAdds, typename Element>
struct AffinePass {
  const Element *x, *addend;
  const float *center, *scale, *offset;
  Element* y;
  Offsets<3> pitch;  // x, addend, y

  template <typename V, int K>
  FLEXLEGION_INLINE void chunk(std::int64_t row, std::int64_t rows, std::int64_t col) const {
    constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
    V a[K], b[K], c[K];
    for (int k = 0; k < K; ++k) {
      load(a[k], center + col + k * kWidth);
      load(b[k], scale + col + k * kWidth);
      load(c[k], offset + col + k * kWidth);
    }
    for (std::int64_t r = row; r < row + rows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        const std::int64_t at = col + k * kWidth;
        V value;
        load(value, x + r * pitch[0] + at);
        value = (value - a[k]) * b[k] + c[k];
        if (kAdds) {
          V more;
          load(more, addend + r * pitch[1] + at);
          value += more;
        }
        end<kEpilogue>(value);
        store(y + r * pitch[2] + at, value);
      }
    }
  }
};

template <Epilogue kEpilogue, bool kAdds, typename Element>
FLEXLEGION_INLINE void affine_as(const Affine& f, const Element* x, const Element* addend,
                                 Element* y, const RowGroup<3>& g) {
  const AffinePass<kEpilogue, kAdds, Element> pass{x + g.at[0], addend + g.at[1], f.center, f.scale,
                                                   f.offset,    y + g.at[2],      g.pitch};
  for_each_chunk(pass, g.rows, g.cols);
}

// The epilogue and the addend are template parameters: a branch within the loop would be taken for
// each vector. With an addend, only none and ReLU occur (Affine).
template <typename Element>
FLEXLEGION_INLINE void affine_of(const Affine& f, const Element* x, const Element* addend,
                                 Element* y, const RowGroup<3>& g) {
  using E = Epilogue;
  if (f.adds) {
    return f.epilogue == E::relu ? affine_as<E::relu, true>(f, x, addend, y, g)
                                 : affine_as<E::none, true>(f, x, addend, y, g);
  }
  switch (f.epilogue) {
    case E::none:
      return affine_as<E::none, false>(f, x, addend, y, g);
    case E::relu:
      return affine_as<E::relu, false>(f, x, addend, y, g);
    case E::relu6:
      return affine_as<E::relu6, false>(f, x, addend, y, g);
    case E::silu:
      return affine_as<E::silu, false>(f, x, addend, y, g);
    case E::hardswish:
      return affine_as<E::hardswish, false>(f, x, addend, y, g);
  }
}

}  // namespace

FLEXLEGION_SIMD void affine(const Affine& f, const float* x, const float* addend, float* y,
                            const RowGroup<3>& g) {
  affine_of(f, x, addend, y, g);
}

FLEXLEGION_SIMD void affine(const Affine& f, const Bfloat16* x, const Bfloat16* addend, Bfloat16* y,
                            const RowGroup<3>& g) {
  affine_of(f, x, addend, y, g);
}

// The loops have one type for all tiles of a task.
void check_alike(const TensorView& a, const TensorView& b) {
  if (!a.fits(b.type)) throw std::logic_error("tiles that are stored differently");
}

namespace {

// An input's gradient. What to do with it is asked anew for each vector, which costs nothing beside
// the memory; as template parameters, two of them would make nine copies of the loop.
enum class Use { none, write, add };

// Where a gradient goes, and what is done with it.
template <typename Element>
struct InputGrad {
  Element* rows;
  Use use;

  template <typename V>
  FLEXLEGION_INLINE void put(std::int64_t at, const V& value) const {
    if (use == Use::none) return;
    if (use == Use::write) return store(rows + at, value);
    V sum;
    load(sum, rows + at);
    sum += value;
    store(rows + at, sum);
  }
};

// What a backward pass reads and writes, and a channel's parameters and sums for as many rows as
// are taken at once.
template <typename Element>
struct Backward {
  const Element *x, *dz, *z;
  InputGrad<Element> dx, d_residual;
  const float *mean, *scale, *beta;
  double *s, *t;
  Epilogue epilogue;
  bool output_tells;
};

// dz goes through the epilogue; then d_residual = dz; dx = dz * scale; s += dz;
// t += dz (x - mean). If the output tells, the epilogue is a ReLU.
template <Epilogue kEpilogue, bool kOutputTells, typename Element>
struct BackwardPass {
  Backward<Element> of;
  RowGroup<5> group;  // x, dz, z, dx, d_residual

  template <typename V, int K>
  FLEXLEGION_INLINE void chunk(std::int64_t row, std::int64_t rows, std::int64_t col) const {
    constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
    V center[K], factor[K], offset[K], sums[K]{}, products[K]{}, grad[K];
    for (int k = 0; k < K; ++k) {
      load(center[k], of.mean + col + k * kWidth);
      load(factor[k], of.scale + col + k * kWidth);
      if (!kOutputTells) load(offset[k], of.beta + col + k * kWidth);
    }
    for (std::int64_t r = row; r < row + rows; ++r) {
      Offsets<5> at;
      for (int v = 0; v < 5; ++v) at[v] = group.at[v] + r * group.pitch[v] + col;
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        V x;
        load(x, of.x + at[0] + k * kWidth);
        load(grad[k], of.dz + at[1] + k * kWidth);
        x -= center[k];
        V z;
        if (kOutputTells) {
          load(z, of.z + at[2] + k * kWidth);
        } else {
          z = x * factor[k] + offset[k];
        }
        go_through<kEpilogue>(z, grad[k]);
        sums[k] += grad[k];
        products[k] += grad[k] * x;
        of.dx.put(at[3] + k * kWidth, grad[k] * factor[k]);
      }
      // By itself, because stores that change between two streams take a quarter longer.
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) of.d_residual.put(at[4] + k * kWidth, grad[k]);
    }
    for (int k = 0; k < K; ++k) {
      add_to(of.s + col + k * kWidth, sums[k]);
      add_to(of.t + col + k * kWidth, products[k]);
    }
  }
};

template <Epilogue kEpilogue, bool kOutputTells, typename Element>
FLEXLEGION_INLINE void backward_as(const Backward<Element>& of, const RowGroup<5>& g) {
  for_each_chunk(BackwardPass<kEpilogue, kOutputTells, Element>{of, g}, g.rows, g.cols);
}

template <typename Element>
FLEXLEGION_INLINE void backward_of(const Backward<Element>& of, const RowGroup<5>& g) {
  using E = Epilogue;
  if (of.output_tells) return backward_as<E::relu, true>(of, g);
  switch (of.epilogue) {
    case E::none:
      return backward_as<E::none, false>(of, g);
    case E::relu:
      return backward_as<E::relu, false>(of, g);
    case E::relu6:
      return backward_as<E::relu6, false>(of, g);
    case E::silu:
      return backward_as<E::silu, false>(of, g);
    case E::hardswish:
      return backward_as<E::hardswish, false>(of, g);
  }
}

FLEXLEGION_SIMD void backward_rows(const Backward<float>& of, const RowGroup<5>& g) {
  backward_of(of, g);
}

FLEXLEGION_SIMD void backward_rows(const Backward<Bfloat16>& of, const RowGroup<5>& g) {
  backward_of(of, g);
}

class BatchNorm : public Kernel {
 public:
  explicit BatchNorm(const Attributes& attributes)
      : epsilon_(attributes.number("epsilon")), epilogue_(epilogue_of(attributes)) {}
  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  // Without a residual, x stands in for it: the loops need a view of the same extents, and do not
  // touch it.
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    const Parameters p(task, epsilon_, task.weights[1].f32());
    const bool adds = task.inputs.size() > kResidual;
    const TensorView& residual = adds ? task.inputs[kResidual] : x;
    const Affine f{p.mean, p.scale, p.beta, epilogue_, adds};
    for (const TensorView* view : {&residual, &y}) check_alike(x, *view);
    with_element(x.type, [&](auto element) {
      using Element = decltype(element);
      for_each_row_group<3>({&x, &residual, &y}, p.at_once, [&](const RowGroup<3>& group) {
        affine(f, x.as<Element>(), residual.as<Element>(), y.as<Element>(), group);
      });
    });
  }

  // One pass over the tile for dx, the residual's gradient and both sums; then a pass over the
  // channels, which makes the parameters' gradients of the sums.
  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &dz = task.output_grads[0];
    if (dz.tile.empty()) return;
    const bool output_tells = epilogue_ != Epilogue::none && task.inputs.size() > kResidual;
    // Without a residual, z follows from x, so it is computed again. With one, z is the output,
    // which for a ReLU tells enough.
    const bool again = epilogue_ != Epilogue::none && !output_tells;
    const Parameters p(task, epsilon_, again ? task.weights[1].f32() : nullptr);
    double *const s = doubles(1, 2 * p.width), *const t = s + p.width;
    std::fill_n(s, 2 * p.width, 0.0);
    // What is not there is not touched; anything of x's extents stands in.
    const TensorView& z = output_tells ? task.outputs[0] : x;
    const TensorView& dx = task.wants_input_grad(0) ? task.input_grads[0] : x;
    const TensorView& d_residual =
        task.wants_input_grad(kResidual) ? task.input_grads[kResidual] : x;
    const Views<5> views{&x, &dz, &z, &dx, &d_residual};
    for (const TensorView* view : views) check_alike(x, *view);
    with_element(x.type, [&](auto element) {
      using Element = decltype(element);
      const Backward<Element> of{x.as<Element>(),
                                 dz.as<Element>(),
                                 z.as<Element>(),
                                 {dx.as<Element>(), use(task, 0)},
                                 {d_residual.as<Element>(), use(task, kResidual)},
                                 p.mean,
                                 p.scale,
                                 p.beta,
                                 s,
                                 t,
                                 epilogue_,
                                 output_tells};
      for_each_row_group<5>(views, p.at_once,
                            [&](const RowGroup<5>& group) { backward_rows(of, group); });
    });
    // Where several rows were taken as one, each channel has as many sums.
    fold(s, p.channels, p.at_once);
    fold(t, p.channels, p.at_once);
    write_gradients(task, p, s, t);
  }

 private:
  static constexpr std::size_t kResidual = 2;  // among the inputs, after x and the moments

  static Use use(const KernelTask& task, std::size_t input) {
    if (!task.wants_input_grad(input)) return Use::none;
    return task.adds_to_input_grad(input) ? Use::add : Use::write;
  }

  // Each channel's, for as many rows as are taken at once (scratch slot 0).
  struct Parameters {
    std::int64_t channels, at_once, width;
    float *mean, *scale, *beta;

    Parameters(const KernelTask& task, double epsilon, const float* betas)
        : channels(task.inputs[0].extent(task.inputs[0].rank() - 1)),
          at_once(rows_at_once(channels)),
          width(channels * at_once),
          mean(scratch(0, 3 * width)),
          scale(mean + width),
          beta(scale + width) {
      const MeanAndVariance moments(task.inputs[1], 0);
      std::copy_n(moments.mean, channels, mean);
      for (std::int64_t c = 0; c < channels; ++c) {
        scale[c] =
            static_cast<float>(task.weights[0].f32()[c] / std::sqrt(moments.variance[c] + epsilon));
      }
      std::fill_n(beta, channels, 0.0f);
      if (betas != nullptr) std::copy_n(betas, channels, beta);
      for (float* values : {mean, scale, beta}) repeat(values, channels, at_once);
    }
  };

  // With r = 1 / sqrt(variance + epsilon): dgamma = r t, dbeta = s, dmean = -gamma r s, and
  // dvariance = -gamma r^3 t / 2.
  void write_gradients(const KernelTask& task, const Parameters& p, double* s, double* t) const {
    const std::int64_t n = p.channels;
    const MeanAndVariance moments(task.inputs[1], 0);
    if (task.weight_grads[1].present()) {
      write_totals(task.weight_grads[1].f32(), s, n, adds(task.adds_weight_grad, 1));
    }
    // From here on t is dgamma; below, s and t become the moments' gradients. Each is scaled in
    // place.
    for (std::int64_t c = 0; c < n; ++c) t[c] /= std::sqrt(moments.variance[c] + epsilon_);
    if (task.weight_grads[0].present()) {
      write_totals(task.weight_grads[0].f32(), t, n, adds(task.adds_weight_grad, 0));
    }
    if (!task.input_grads[1].present()) return;
    const MeanAndVariance gradient(task.input_grads[1], 0);
    for (std::int64_t c = 0; c < n; ++c) {
      s[c] *= -p.scale[c];
      t[c] *= -0.5 * p.scale[c] / std::sqrt(moments.variance[c] + epsilon_);
    }
    const bool adds_grad = adds(task.adds_input_grad, 1);
    write_totals(gradient.mean, s, n, adds_grad);
    write_totals(gradient.variance, t, n, adds_grad);
  }

  double epsilon_;
  Epilogue epilogue_;
};

const RegisterKernel registered("batch_norm",
                                [](const Attributes& a) { return std::make_unique<BatchNorm>(a); });

}  // namespace
}  // namespace flexlegion
