// luong_attention: tanh(W_c [context; h]), where context is the mean of the encoder's states s
// weighted by softmax(h W_a s), for every kind of device.
//
// The backward pass computes the weights and contexts again: of their products only the one with
// W_a is large.
//
// The factors of products are of h's type, where the device multiplies that; scores, softmaxes and
// what is added up are floats.
#pragma once

#include "ops/kernel.h"
#include "ops/matrix.h"

namespace flexlegion {

// A Device has a class OutputMatrix, an Output (DenseOutput), and functions for what is done to all
// elements or rows. multiply() is for matrices, and for batches of them.
template <typename Device>
class LuongAttention : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return Device::takes(type); }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Attention attention(task, device_);
    const typename Device::Output y(task.outputs[0], kResult);
    const std::int64_t units = attention.kernel.rows;
    const Matrix to = Matrix::row_major(y.data(), attention.joined.rows, units, units);
    device_.multiply(attention.joined, attention.kernel.transposed(), to);
    device_.tanh(to);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const Attention attention(task, device_);
    const Matrix dz = device_.scratch_matrix(kOutputGrad, attention.joined.rows,
                                             attention.kernel.rows, attention.type);
    device_.tanh_backward(dy, task.outputs[0], dense_view(dz.data, dy.tile, dy.shape, dz.type));
    weight_gradient(task, 1, dz, attention.joined);
    if (!task.wants_input_grad(0) && !task.wants_input_grad(1) && !task.wants_weight_grad(0)) {
      return;
    }
    const Matrix joined_grad =
        device_.scratch_matrix(kJoinedGrad, dz.rows, attention.joined.cols, dz.type);
    device_.multiply(dz, attention.kernel, joined_grad);
    const Matrix score_grads = score_gradients(attention, joined_grad);
    memory_gradient(task, attention, joined_grad, score_grads);
    if (!task.wants_input_grad(0) && !task.wants_weight_grad(0)) return;
    const Matrix query_grads = device_.scratch_matrix(kQueryGrads, dz.rows, attention.e, dz.type);
    device_.multiply(by_sample(score_grads, attention.n), by_sample(attention.memory, attention.n),
                     by_sample(query_grads, attention.n));
    weight_gradient(task, 0, attention.h, query_grads);
    state_gradient(task, attention, joined_grad, query_grads);
  }

 private:
  enum Slot {
    kStates,
    kMemory,
    kScoreKernel,
    kKernel,
    kQueries,
    kWeights,
    kJoined,
    kOutputGrad,
    kJoinedGrad,
    kWeightGrads,
    kQueryGrads,
    kWeightFactor,
    kScoreFactor,
    kResult
  };

  // A dense matrix as a factor of that type.
  static Matrix factor(Device& device, const Matrix& m, Slot slot, DataType type) {
    if (m.type == type) return m;
    const Matrix result = device.scratch_matrix(slot, m.rows, m.cols, type);
    device.write(view_of(result), view_of(m), false);
    return result;
  }

  // The columns from `first` on of a matrix of all steps, as a tensor like the states `like`.
  static TensorView columns_view(const Matrix& m, std::int64_t first, const TensorView& like) {
    TensorView view = dense_view(m.at(first), like.tile, like.shape, m.type);
    view.stride[1] = m.row;
    view.stride[0] = like.extent(1) * m.row;
    return view;
  }

  // A task's operands, and what both passes compute: rows are steps of samples.
  struct Attention {
    std::int64_t n, steps, source, d, e;
    DataType type;                // of factors
    Matrix h, memory;             // (n steps, d), (n source, e)
    Matrix score_kernel, kernel;  // (d, e), (units, e + d)
    Matrix queries, weights;      // h W_a, (n steps, e); softmax, (n steps, source)
    Matrix weight_factor;         // the same weights
    Matrix joined;                // [context; h], (n steps, e + d)

    Attention(const KernelTask& task, Device& device)
        : n(task.inputs[0].extent(0)),
          steps(task.inputs[0].extent(1)),
          source(task.inputs[1].extent(1)),
          d(task.inputs[0].extent(2)),
          e(task.inputs[1].extent(2)),
          type(task.inputs[0].type),
          h(device.input_matrix(task.inputs[0], kStates, type)),
          memory(device.input_matrix(task.inputs[1], kMemory, type)),
          score_kernel(device.input_matrix(task.weights[0], kScoreKernel, type)),
          kernel(device.input_matrix(task.weights[1], kKernel, type)),
          queries(device.scratch_matrix(kQueries, n * steps, e, type)),
          weights(device.scratch_matrix(kWeights, n * steps, source)),
          joined(device.scratch_matrix(kJoined, n * steps, e + d, type)) {
      device.multiply(h, score_kernel, queries);
      device.multiply(by_sample(queries, n), by_sample(memory, n).transposed(),
                      by_sample(weights, n));
      device.softmax_rows(weights);
      weight_factor = factor(device, weights, kWeightFactor, type);
      device.multiply(by_sample(weight_factor, n), by_sample(memory, n),
                      by_sample(columns(joined, 0, e), n));
      device.write(columns_view(joined, e, task.inputs[0]), task.inputs[0], false);
    }
  };

  // a^T b
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& a, const Matrix& b) {
    if (!task.wants_weight_grad(i)) return;
    const typename Device::OutputMatrix dw(task.weight_grads[i], kResult,
                                           task.adds_to_weight_grad(i));
    device_.multiply(a.transposed(), b, dw.matrix(), dw.adds());
    dw.commit();
  }

  Matrix score_gradients(const Attention& attention, const Matrix& joined_grad) {
    const std::int64_t n = attention.n;
    const Matrix result = device_.scratch_matrix(kWeightGrads, joined_grad.rows, attention.source);
    device_.multiply(by_sample(columns(joined_grad, 0, attention.e), n),
                     by_sample(attention.memory, n).transposed(), by_sample(result, n));
    device_.softmax_rows_backward(attention.weights, result);
    return factor(device_, result, kScoreFactor, attention.type);
  }

  // Through the contexts, and through the scores.
  void memory_gradient(KernelTask& task, const Attention& attention, const Matrix& joined_grad,
                       const Matrix& score_grads) {
    if (!task.wants_input_grad(1)) return;
    const std::int64_t n = attention.n;
    const typename Device::OutputMatrix ds(task.input_grads[1], kResult,
                                           task.adds_to_input_grad(1));
    const Matrix to = by_sample(ds.matrix(), n);
    device_.multiply(by_sample(attention.weight_factor, n).transposed(),
                     by_sample(columns(joined_grad, 0, attention.e), n), to, ds.adds());
    device_.multiply(by_sample(score_grads, n).transposed(), by_sample(attention.queries, n), to,
                     true);
    ds.commit();
  }

  // Through W_c, and through the queries.
  void state_gradient(KernelTask& task, const Attention& attention, const Matrix& joined_grad,
                      const Matrix& query_grads) {
    if (!task.wants_input_grad(0)) return;
    const TensorView& gradient = task.input_grads[0];
    const typename Device::OutputMatrix dh(gradient, kResult, task.adds_to_input_grad(0));
    device_.multiply(query_grads, attention.score_kernel.transposed(), dh.matrix(), dh.adds());
    dh.commit();
    device_.write(gradient, columns_view(joined_grad, attention.e, gradient), true);
  }

  Device device_;
};

}  // namespace flexlegion
