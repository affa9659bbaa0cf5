// Attention by cuDNN's graphs: a graph of one operation is described once a shape, cuDNN makes a
// plan of it, which takes it some tenths of a second, and a task only names the plan's tensors.
//
// cuDNN calls a tensor (samples, heads, rows, channels), with any strides: our tiles, (samples,
// rows, heads, channels), are taken where they stand. Those that it cannot read or write, of
// another type or not aligned, have dense scratch memory in their stead.
//
// The backward pass needs the forward pass's output and, of each query, the logarithm of its
// exponentials' sum (its statistic). Neither is kept, so it first computes both again; that costs
// less than a third of it. The gradients of queries are sums of no particular order.
//
// Why at all: the general way (multi_head_attention.cu) writes scores of s t elements a head to
// memory and reads them several times. Flash attention keeps them on the chip, so that the pass is
// bound by its products. What cuDNN does not have (biases, dropout, floats, other extents) goes the
// general way.
#include "gpu/fused_attention.h"

// There is nothing here for the device: its compiler, which runs once an architecture, skips it.
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__) && defined(FLEXLEGION_CUDNN_FRONTEND)

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // plans are not written to files
#include <cstring>                    // which the next one forgets

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "gpu/device.h"
#include "gpu/view.h"

namespace flexlegion::gpu {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr std::int64_t kVector = 8;  // channels that are read at once: 16 bytes
constexpr std::int64_t kMostChannels = 128;

// The tensors of a plan. A role is a tensor's number for cuDNN, and its scratch slot.
enum Role {
  kQueries,
  kKeys,
  kValues,
  kOutputs,
  kOutputGrads,
  kQueryGrads,
  kKeyGrads,
  kValueGrads,
  kTiles,  // so many
  kStatistics = kTiles,
  kWorkspace
};

constexpr int slot_of(Role role) { return 16 + role; }

// Bytes that a scratch slot of n takes at most.
std::int64_t scratch_bytes(std::int64_t n) { return n + 512; }

// Whether cuDNN can take the tile as it stands.
bool taken(const TensorView& tile, DataType type) {
  std::int64_t last = tile.extent(3) - 1;  // element, counted from the first
  for (int d = 0; d < 3; ++d) {
    if (tile.stride[d] <= 0 || tile.stride[d] % kVector != 0) return false;
    last += (tile.extent(d) - 1) * tile.stride[d];
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tile.data);
  return tile.type == type && tile.stride[3] == 1 && address % 16 == 0 &&
         last <= std::numeric_limits<std::int32_t>::max();
}

// A tile as cuDNN takes it: itself, or scratch memory in its stead. That is not taken before
// place(), so that one can see first whether there is enough.
class Operand {
 public:
  Operand(const TensorView& tile, Role role, DataType type) : Operand(tile, tile, role, type) {}
  // `like` has the tile's extents, and says them where it is absent. A tile that is not for use,
  // though it is of the right kind, is not `in_place`.
  Operand(const TensorView& tile, const TensorView& like, Role role, DataType type,
          bool in_place = true)
      : role_(role), tile_(tile), view_(tile) {
    in_place_ = in_place && tile.present() && taken(tile, type);
    if (!in_place_) view_ = dense_view(nullptr, like.tile, like.shape, type);
  }

  Role role() const { return role_; }
  const TensorView& view() const { return view_; }
  std::int64_t bytes() const {  // of scratch memory
    return in_place_ ? 0 : scratch_bytes(view_.volume() * element_bytes(view_.type));
  }

  void place() {
    if (in_place_) return;
    view_.data = scratch(slot_of(role_), floats_for(view_.volume(), view_.type));
  }
  void read() {
    place();
    if (!in_place_) gpu::copy_view(view_, tile_);
  }
  void commit(bool adds) const {
    if (!in_place_ && tile_.present()) gpu::write_or_add_view(tile_, view_, adds);
  }

 private:
  Role role_;
  TensorView tile_, view_;
  bool in_place_;
};

enum class Pass { forward, forward_with_statistics, backward };

// What a plan depends on.
struct Problem {
  std::int64_t samples, heads, groups, queries, keys, channels;
  DataType type;
  bool causal;
  float scale;
  Pass pass;
  // Of samples, heads and rows; of no meaning where the pass has no such tile.
  std::array<std::array<std::int64_t, 3>, kTiles> stride{};

  Problem(const KernelTask& task, DataType type, bool causal, float scale, Pass pass)
      : samples(task.inputs[0].extent(0)),
        heads(task.inputs[0].extent(2)),
        groups(task.inputs[1].extent(2)),
        queries(task.inputs[0].extent(1)),
        keys(task.inputs[1].extent(1)),
        channels(task.inputs[0].extent(3)),
        type(type),
        causal(causal),
        scale(scale),
        pass(pass) {}
  template <typename... Operands>
  Problem with(const Operands&... operands) const {
    Problem result = *this;
    const auto add = [&result](const Operand& x) {
      const auto& stride = x.view().stride;
      result.stride[x.role()] = {stride[0], stride[2], stride[1]};
    };
    (add(operands), ...);
    return result;
  }

  std::int64_t statistics() const { return samples * heads * queries; }

  using Key = std::array<std::int64_t, 10 + 3 * kTiles>;
  Key key() const {
    Key key{samples,
            heads,
            groups,
            queries,
            keys,
            channels,
            static_cast<std::int64_t>(type),
            causal ? 1 : 0,
            same_bits<std::int32_t>(scale),
            static_cast<std::int64_t>(pass)};
    auto next = key.begin() + 10;
    for (const auto& of_tile : stride) next = std::copy(of_tile.begin(), of_tile.end(), next);
    return key;
  }
};

// A graph of one operation, and cuDNN's plan of it, for whatever memory of these strides.
class Plan {
 public:
  // Building takes tenths of a second. Whether it succeeded is remembered, so that what cuDNN
  // cannot do is asked once.
  explicit Plan(const Problem& problem) : p_(problem) {
    try {
      describe();
      usable_ = graph_.build(dnn(), {fe::HeurMode_t::A}).is_good() &&
                graph_.get_workspace_size(workspace_).is_good();
    } catch (const std::exception&) {  // cuDNN's front end reports some failures so
      usable_ = false;
    }
  }
  Plan(const Plan&) = delete;

  // False if cuDNN cannot compute it.
  bool usable() const { return usable_; }
  std::int64_t workspace() const { return workspace_; }  // bytes

  // Between tasks, the table of tensors stays: it is made once.
  void set(Role role, void* memory) { memory_[uid_of(role)] = memory; }
  void set(const Operand& x) { set(x.role(), x.view().data); }
  void run(void* workspace) {
    auto status = graph_.execute(dnn(), memory_, workspace);
    if (status.is_bad()) throw std::runtime_error("cuDNN: " + status.get_message());
  }

 private:
  static std::int64_t uid_of(Role role) { return role + 1; }

  // The graph: one node of attention, forward or backward, and its tensors. Scores and sums are
  // floats inside.
  void describe() {
    graph_.set_io_data_type(data_type())
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Tensor q = input(kQueries), k = input(kKeys), v = input(kValues);
    if (p_.pass == Pass::backward) {
      auto attributes = fe::graph::SDPA_backward_attributes().set_attn_scale(p_.scale);
      if (p_.causal) mask(attributes);
      const Tensor o = input(kOutputs), dy = input(kOutputGrads);
      Tensor_attributes of_input;
      const Tensor statistics = graph_.tensor(of_statistics(of_input));
      const auto grads = graph_.sdpa_backward(q, k, v, o, dy, statistics, attributes);
      of_tile(*grads[0], kQueryGrads).set_output(true);
      of_tile(*grads[1], kKeyGrads).set_output(true);
      of_tile(*grads[2], kValueGrads).set_output(true);
      return;
    }
    const bool keeps = p_.pass == Pass::forward_with_statistics;
    auto attributes = fe::graph::SDPA_attributes().set_attn_scale(p_.scale);
    attributes.set_generate_stats(keeps);
    // The other one, "unified", knows no masks before cuDNN 9.21.
    attributes.set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    if (p_.causal) mask(attributes);
    const auto results = graph_.sdpa(q, k, v, attributes);
    of_tile(*results[0], kOutputs).set_output(true);
    if (keeps) of_statistics(*results[1]).set_output(true);
  }

  // Query i sees the keys 0..i.
  template <typename Attributes>
  static void mask(Attributes& attributes) {
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
    attributes.set_diagonal_band_right_bound(0);
  }

  fe::DataType_t data_type() const {
    return p_.type == DataType::bfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
  }

  Tensor input(Role role) {
    Tensor_attributes tensor;
    return graph_.tensor(of_tile(tensor, role));
  }
  Tensor_attributes& of_tile(Tensor_attributes& tensor, Role role) const {
    const bool of_keys =
        role == kKeys || role == kValues || role == kKeyGrads || role == kValueGrads;
    const auto& stride = p_.stride[role];
    return tensor.set_uid(uid_of(role))
        .set_data_type(data_type())
        .set_dim({p_.samples, of_keys ? p_.groups : p_.heads, of_keys ? p_.keys : p_.queries,
                  p_.channels})
        .set_stride({stride[0], stride[1], stride[2], 1});
  }
  // (samples, heads, queries, 1), dense.
  Tensor_attributes& of_statistics(Tensor_attributes& tensor) const {
    return tensor.set_uid(uid_of(kStatistics))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({p_.samples, p_.heads, p_.queries, 1})
        .set_stride({p_.heads * p_.queries, p_.queries, 1, 1});
  }

  const Problem p_;
  fe::graph::Graph graph_;
  bool usable_ = false;
  std::int64_t workspace_ = 0;
  std::unordered_map<std::int64_t, void*> memory_;
};

// A thread is one device's, so its plans are, too.
Plan& plan_of(const Problem& problem) {
  thread_local std::map<Problem::Key, std::unique_ptr<Plan> > plans;
  std::unique_ptr<Plan>& plan = plans[problem.key()];
  if (plan == nullptr) plan = std::make_unique<Plan>(problem);
  return *plan;
}

// Whether the task is of the kind that these plans are for: numbers of two bytes, no biases, values
// of as many channels as keys, not too many, and whole groups of heads. A mask begins at the first
// query of all. A single query has few scores: there is nothing to gain.
bool fuses(const KernelTask& task, DataType type, bool causal) {
  const TensorView &q = task.inputs[0], &k = task.inputs[1], &v = task.inputs[2];
  const bool biased = task.inputs.size() > 3 && task.inputs[3].present();
  if (!is_narrow(type) || biased || task.wants_input_grad(3)) return false;
  if (q.tile.empty() || k.tile.empty() || v.tile.empty()) return false;
  const std::int64_t channels = q.extent(3), groups = k.extent(2);
  if (v.extent(3) != channels || channels % kVector != 0 || channels > kMostChannels) return false;
  const std::int64_t sharing = q.shape[2] / k.shape[2];  // heads that share a group's keys
  if (groups > 1 && q.extent(2) != groups * sharing) return false;
  return q.extent(1) > 1 && (!causal || q.tile.lo[1] == 0);
}

float* take_workspace(std::int64_t bytes) { return scratch(slot_of(kWorkspace), bytes / 4 + 1); }

}  // namespace

bool fused_attention(const KernelTask& task, bool causal, float scale) {
  const DataType type = task.outputs[0].type;
  if (!fuses(task, type, causal)) return false;
  Operand q(task.inputs[0], kQueries, type), k(task.inputs[1], kKeys, type),
      v(task.inputs[2], kValues, type), y(task.outputs[0], kOutputs, type);
  const Problem problem(task, type, causal, scale, Pass::forward);
  Plan& plan = plan_of(problem.with(q, k, v, y));
  if (!plan.usable()) return false;
  const std::int64_t bytes = q.bytes() + k.bytes() + v.bytes() + y.bytes();
  if (bytes + scratch_bytes(plan.workspace()) > scratch_left()) return false;

  for (Operand* x : {&q, &k, &v}) x->read();
  y.place();
  for (const Operand* x : {&q, &k, &v, &y}) plan.set(*x);
  plan.run(take_workspace(plan.workspace()));
  y.commit(false);
  return true;
}

// First everything that can fail is asked: both plans, and all scratch memory. Then nothing was
// changed if the answer is false.
bool fused_attention_backward(const KernelTask& task, bool causal, float scale) {
  const TensorView& gradient = task.output_grads[0];
  const DataType type = gradient.type;
  if (!fuses(task, type, causal)) return false;
  Operand q(task.inputs[0], kQueries, type), k(task.inputs[1], kKeys, type),
      v(task.inputs[2], kValues, type), dy(gradient, kOutputGrads, type);
  Operand y(TensorView(), gradient, kOutputs, type);  // in scratch memory
  // cuDNN computes all three gradients. It does not add: what is added to comes from scratch
  // memory.
  const auto gradient_of = [&](std::size_t i, Role role) {
    const TensorView tile = task.wants_input_grad(i) ? task.input_grads[i] : TensorView();
    return Operand(tile, task.inputs[i], role, type, !task.adds_to_input_grad(i));
  };
  Operand dq = gradient_of(0, kQueryGrads), dk = gradient_of(1, kKeyGrads),
          dv = gradient_of(2, kValueGrads);

  Problem problem(task, type, causal, scale, Pass::backward);
  Plan& plan = plan_of(problem.with(q, k, v, y, dy, dq, dk, dv));
  if (!plan.usable()) return false;
  problem.pass = Pass::forward_with_statistics;
  Plan& again = plan_of(problem.with(q, k, v, y));
  if (!again.usable()) return false;
  // The statistics, all copies of tiles, and one workspace for both plans, which run one after the
  // other.
  std::int64_t bytes = scratch_bytes(4 * problem.statistics());
  for (const Operand* x : {&q, &k, &v, &y, &dy, &dq, &dk, &dv}) bytes += x->bytes();
  const std::int64_t workspace = std::max(plan.workspace(), again.workspace());
  if (bytes + scratch_bytes(workspace) > scratch_left()) return false;

  for (Operand* x : {&q, &k, &v, &dy}) x->read();
  for (Operand* x : {&y, &dq, &dk, &dv}) x->place();
  float* const statistics = scratch(slot_of(kStatistics), problem.statistics());
  float* const shared = take_workspace(workspace);  // by one after the other
  for (const Operand* x : {&q, &k, &v, &y}) again.set(*x);
  again.set(kStatistics, statistics);
  again.run(shared);
  for (const Operand* x : {&q, &k, &v, &y, &dy, &dq, &dk, &dv}) plan.set(*x);
  plan.set(kStatistics, statistics);
  plan.run(shared);
  dq.commit(task.adds_to_input_grad(0));
  dk.commit(task.adds_to_input_grad(1));
  dv.commit(task.adds_to_input_grad(2));
  return true;
}

}  // namespace flexlegion::gpu

#else

namespace flexlegion::gpu {

bool fused_attention(const KernelTask&, bool, float) { return false; }
bool fused_attention_backward(const KernelTask&, bool, float) { return false; }

}  // namespace flexlegion::gpu

#endif
