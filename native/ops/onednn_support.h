// What every kernel that computes with oneDNN needs: the engine, a stream a thread, and primitives
// that are prepared once a shape and executed concurrently by any number of threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "ops/activation.h"
#include "ops/team.h"
#include "ops/tensor_view.h"

namespace flexlegion::onednn {

// The scratch slot that Prepared::execute() uses for itself.
constexpr int kScratchpadSlot = kKernelSlots;

// Asking for either holds oneDNN to the threads of the caller's team: both what it prepares, which
// is planned for a number of threads, and what it executes.
dnnl::engine& engine();
dnnl::stream& stream();  // the calling thread's

// Attributes of a primitive: scratch memory is the calling thread's, and the activation is fused,
// after `post_ops`.
dnnl::primitive_attr attributes(Activation activation = Activation::none,
                                dnnl::post_ops post_ops = {});

// Of a tensor of that type: by a tag, or by strides.
template <typename Layout>
dnnl::memory::desc desc(DataType type, const dnnl::memory::dims& dims, const Layout& layout) {
  using Type = dnnl::memory::data_type;
  return {dims, type == DataType::bfloat16 ? Type::bf16 : Type::f32, layout};
}
inline dnnl::memory::desc f32_desc(const dnnl::memory::dims& dims, dnnl::memory::format_tag tag) {
  return {dims, dnnl::memory::data_type::f32, tag};
}
inline dnnl::memory::desc f32_desc(const dnnl::memory::dims& dims,
                                   const dnnl::memory::dims& strides) {
  return {dims, dnnl::memory::data_type::f32, strides};
}

// Copies between two layouts, or, if it `adds`, adds to what is there.
dnnl::reorder::primitive_desc reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                      bool adds);

// A primitive, ready to be executed. It must have been described with attributes().
class Prepared {
 public:
  // DNNL_ARG_..., memory; without memory, the argument is left out.
  using Arguments = std::initializer_list<std::pair<int, void*>>;

  explicit Prepared(const dnnl::primitive_desc_base& desc);
  void execute(Arguments arguments) const;
  // The layout that the primitive wants of an argument.
  dnnl::memory::desc layout(int argument) const;

 private:
  dnnl::primitive_desc_base desc_;
  dnnl::primitive primitive_;
  std::int64_t scratchpad_bytes_;
  std::int64_t id_;
};

// A kernel's prepared primitives, by all that distinguishes them.
class Cache {
 public:
  using Key = std::vector<std::int64_t>;

  // The primitive of that key; `describe` returns its description when it is first asked for.
  template <typename Describe>
  const Prepared& get(Key key, Describe&& describe) {
    key.push_back(team_size());
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Prepared>& entry = entries_[key];
    if (entry == nullptr) entry = std::make_unique<Prepared>(describe());
    return *entry;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Prepared>> entries_;
};

}  // namespace flexlegion::onednn
