#include "ops/onednn_support.h"

#include <omp.h>

#include <unordered_map>

namespace flexlegion::onednn {

dnnl::engine& engine() {
  // omp_set_num_threads is a setting of the calling thread.
  thread_local const bool one_thread = (omp_set_num_threads(1), true);
  static_cast<void>(one_thread);
  // Never destroyed: threads may still hold streams when static objects go.
  static auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& stream() {
  thread_local dnnl::stream stream(engine());
  return stream;
}

dnnl::primitive_attr attributes(Activation activation, dnnl::post_ops post_ops) {
  using dnnl::algorithm;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (activation != Activation::none) {
    const algorithm function = activation == Activation::relu      ? algorithm::eltwise_relu
                               : activation == Activation::sigmoid ? algorithm::eltwise_logistic
                                                                   : algorithm::eltwise_tanh;
    post_ops.append_eltwise(function, 0.0f, 0.0f);
  }
  attributes.set_post_ops(post_ops);
  return attributes;
}

Prepared::Prepared(const dnnl::primitive_desc_base& desc)
    : desc_(desc), primitive_(desc.get()), scratchpad_(desc.scratchpad_desc()) {}

dnnl::memory::desc Prepared::layout(int argument) const {
  return desc_.query_md(dnnl::query::exec_arg_md, argument);
}

void Prepared::execute(Arguments arguments) const {
  std::unordered_map<int, dnnl::memory> memories;
  for (const auto& [argument, data] : arguments) {
    if (data == nullptr) continue;
    memories.emplace(argument, dnnl::memory(layout(argument), engine(), data));
  }
  const auto bytes = static_cast<std::int64_t>(scratchpad_.get_size());
  if (bytes > 0) {
    float* const pad = scratch(kScratchpadSlot, (bytes + 3) / 4);
    memories.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(scratchpad_, engine(), pad));
  }
  primitive_.execute(stream(), memories);
}

}  // namespace flexlegion::onednn
