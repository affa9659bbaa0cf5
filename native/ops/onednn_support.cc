// How oneDNN's primitives are prepared once and executed by many threads (onednn_support.h).
//
// Preparing generates machine code for a shape, which takes far longer than to execute it, so
// kernels keep primitives in a Cache. Executing one is thread-safe as long as the scratch memory is
// the caller's: hence the user's scratchpad mode, with memory from scratch(). A stream and the
// objects that wrap arguments belong to a thread, which keeps them too, for small primitives take
// less time than making these.
#include "ops/onednn_support.h"

#include <omp.h>

#include <atomic>
#include <limits>
#include <unordered_map>

#include "ops/team.h"

namespace flexlegion::onednn {

dnnl::engine& engine() {
  omp_set_num_threads(team_size());  // a setting of the calling thread
  // Never destroyed: threads may still hold streams when static objects go.
  static auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& stream() {
  dnnl::engine& its = engine();
  thread_local dnnl::stream stream(its);
  return stream;
}

namespace {

// oneDNN's own ReLU makes 0 of NaN, which would hide that training diverges. Its hard swish is
// x * clamp(alpha * x + beta, 0, 1). With the largest alpha that is max(x, 0), and NaN stays NaN;
// it takes as long. (Two differences: -infinity, of which PyTorch makes 0, becomes NaN, and
// positive denormal numbers become smaller ones.)
void append(Activation activation, dnnl::post_ops& post_ops) {
  using dnnl::algorithm;
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      return post_ops.append_eltwise(algorithm::eltwise_hardswish,
                                     std::numeric_limits<float>::max(), 0.0f);
    case Activation::sigmoid:
      return post_ops.append_eltwise(algorithm::eltwise_logistic, 0.0f, 0.0f);
    case Activation::tanh:
      return post_ops.append_eltwise(algorithm::eltwise_tanh, 0.0f, 0.0f);
  }
}

}  // namespace

dnnl::primitive_attr attributes(Activation activation, dnnl::post_ops post_ops) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  append(activation, post_ops);
  attributes.set_post_ops(post_ops);
  return attributes;
}

dnnl::reorder::primitive_desc reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                      bool adds) {
  dnnl::primitive_attr attributes = onednn::attributes();
  if (adds) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  return {engine(), from, engine(), to, attributes};
}

namespace {

// Unlike an address, not used again when a primitive is gone.
std::int64_t next_id() {
  static std::atomic<std::int64_t> id{0};
  return id++;
}

using Memories = std::unordered_map<int, dnnl::memory>;

// Small primitives take less time than making their arguments does, so a thread keeps these.
Memories& memories_of(std::int64_t id) {
  thread_local std::unordered_map<std::int64_t, Memories> memories;
  return memories[id];
}

}  // namespace

Prepared::Prepared(const dnnl::primitive_desc_base& desc)
    : desc_(desc),
      primitive_(desc.get()),
      scratchpad_bytes_(static_cast<std::int64_t>(desc.scratchpad_desc().get_size())),
      id_(next_id()) {}

dnnl::memory::desc Prepared::layout(int argument) const {
  return desc_.query_md(dnnl::query::exec_arg_md, argument);
}

void Prepared::execute(Arguments arguments) const {
  Memories& memories = memories_of(id_);
  // Of an argument that this thread has wrapped before, only the address changes.
  const auto set = [&](int argument, void* data) {
    const auto found = memories.find(argument);
    if (found != memories.end()) {
      found->second.set_data_handle(data);
    } else {
      const auto desc =
          argument == DNNL_ARG_SCRATCHPAD ? desc_.scratchpad_desc() : layout(argument);
      memories.emplace(argument, dnnl::memory(desc, engine(), data));
    }
  };
  for (const auto& [argument, data] : arguments) {
    if (data != nullptr) set(argument, data);
  }
  if (scratchpad_bytes_ > 0) {
    set(DNNL_ARG_SCRATCHPAD, scratch(kScratchpadSlot, (scratchpad_bytes_ + 3) / 4));
  }
  primitive_.execute(stream(), memories);
}

}  // namespace flexlegion::onednn
