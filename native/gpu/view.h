// Tiles of device memory: TensorViews whose `data` a GPU can read.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/launch.h"
#include "ops/tensor_view.h"

namespace flexlegion::gpu {

// A tile as a body captures it; elements are numbered row-major over its own extents.
struct Strided {
  float* data = nullptr;
  int rank = 0;
  std::int64_t extent[kMaxRegionRank] = {}, stride[kMaxRegionRank] = {};

  Strided() = default;
  explicit Strided(const TensorView& view) : data(view.f32()), rank(view.rank()) {
    for (int d = 0; d < rank; ++d) {
      extent[d] = view.extent(d);
      stride[d] = view.stride[d];
    }
  }

  // The first `dims` dimensions' i-th index, as an offset from `data`.
  FL_DEVICE std::int64_t offset_of(std::int64_t i, int dims) const {
    std::int64_t offset = 0;
    for (int d = dims - 1; d > 0; --d) {
      offset += i % extent[d] * stride[d];
      i /= extent[d];
    }
    return dims > 0 ? offset + i * stride[0] : 0;
  }
  FL_DEVICE std::int64_t offset_of(std::int64_t i) const { return offset_of(i, rank); }
  FL_DEVICE float& operator[](std::int64_t i) const { return data[offset_of(i)]; }
  FL_DEVICE std::int32_t integer(std::int64_t i) const {
    return reinterpret_cast<const std::int32_t*>(data)[offset_of(i)];
  }
  // Row i: all dimensions but the last. Its elements are `stride[rank - 1]` apart.
  FL_DEVICE float* row(std::int64_t i) const { return data + offset_of(i, rank - 1); }
};

// Where bodies find the same element of tiles of equal extents, numbered as a Strided's. What
// follows each other in the memory of all of them is one dimension: each costs a division.
template <int N>
struct TileOffsets {
  struct Offsets {
    std::int64_t of[N];
  };

  int rank = 0;
  std::int64_t extent[kMaxRegionRank] = {}, stride[N][kMaxRegionRank] = {};

  explicit TileOffsets(const TensorView* const (&views)[N]) {
    for (int d = 0; d < views[0]->rank(); ++d) {
      const std::int64_t n = views[0]->extent(d);
      if (n == 1) continue;
      bool follows = rank > 0;
      for (int v = 0; v < N && follows; ++v) {
        follows = stride[v][rank - 1] == n * views[v]->stride[d];
      }
      if (!follows) extent[rank++] = 1;
      extent[rank - 1] *= n;
      for (int v = 0; v < N; ++v) stride[v][rank - 1] = views[v]->stride[d];
    }
  }

  FL_DEVICE Offsets operator()(std::int64_t i) const {
    Offsets offsets{};
    for (int d = rank - 1; d >= 0; --d) {
      const std::int64_t index = d > 0 ? i % extent[d] : i;
      for (int v = 0; v < N; ++v) offsets.of[v] += index * stride[v][d];
      if (d > 0) i /= extent[d];
    }
    return offsets;
  }
};

// The elements themselves, of tiles of floats.
template <int N>
struct Tiles {
  struct Element {
    float* at[N];
    FL_DEVICE float& operator[](int tile) const { return *at[tile]; }
  };

  TileOffsets<N> places;
  float* data[N];

  explicit Tiles(const TensorView* const (&views)[N]) : places(views) {
    for (int v = 0; v < N; ++v) data[v] = views[v]->f32();
  }

  FL_DEVICE Element operator()(std::int64_t i) const {
    const auto offsets = places(i);
    Element element;
    for (int v = 0; v < N; ++v) element.at[v] = data[v] + offsets.of[v];
    return element;
  }
};

// Their values, of tiles of real numbers, however these are stored.
template <int N>
struct Reals {
  TileOffsets<N> places;
  void* data[N];
  bool narrow[N];

  explicit Reals(const TensorView* const (&views)[N]) : places(views) {
    for (int v = 0; v < N; ++v) {
      data[v] = views[v]->data;
      narrow[v] = views[v]->narrow();
    }
  }

  class Element {
   public:
    FL_DEVICE Element(const Reals& of, std::int64_t i) : of_(of), at_(of.places(i)) {}
    FL_DEVICE float operator[](int tile) const {
      const std::int64_t at = at_.of[tile];
      if (!of_.narrow[tile]) return static_cast<const float*>(of_.data[tile])[at];
      const std::uint32_t bits = static_cast<const Bfloat16*>(of_.data[tile])[at];
      return as<float>(bits << 16);
    }
    FL_DEVICE void put(int tile, float value) const {
      const std::int64_t at = at_.of[tile];
      if (!of_.narrow[tile]) {
        static_cast<float*>(of_.data[tile])[at] = value;
        return;
      }
      auto bits = as<std::uint32_t>(value);
      round_bits(bits, value != value);
      static_cast<Bfloat16*>(of_.data[tile])[at] = static_cast<Bfloat16>(bits >> 16);
    }

   private:
    template <typename To, typename From>
    FL_DEVICE static To as(const From& from) {
      To to;
      std::memcpy(&to, &from, sizeof(to));
      return to;
    }

    const Reals& of_;
    const typename TileOffsets<N>::Offsets at_;
  };

  FL_DEVICE Element operator()(std::int64_t i) const { return {*this, i}; }
};

// As in ops/tensor_view.h, on the task's stream. Called as gpu::copy_view() and so on: their
// parameters make those of the CPU candidates, too.
void copy_view(const TensorView& to, const TensorView& from);
void add_view(const TensorView& to, const TensorView& from);
void max_view(const TensorView& to, const TensorView& from);
void log_add_exp_view(const TensorView& to, const TensorView& from);
void zero_view(const TensorView& to);
void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b);
void write_or_add_view(const TensorView& to, const TensorView& from, bool adds);

// y(i) = or += f(i), for tiles of equal extents.
FL_DEVICE inline void put(float& to, float value, bool adds) { to = adds ? to + value : value; }

// Of floats, whatever the tile is stored as.
class DenseInput {
 public:
  DenseInput(const TensorView& view, int slot) : data_(static_cast<float*>(view.data)) {
    if (!view.present() || (view.dense() && !view.narrow())) return;
    data_ = scratch(slot, view.volume());
    gpu::copy_view(dense_view(data_, view.tile, view.shape), view);
  }
  float* data() const { return data_; }

 private:
  float* data_;
};

// Write to data(), then call commit().
class DenseOutput {
 public:
  DenseOutput(const TensorView& view, int slot, bool adds = false)
      : view_(view),
        data_(view.dense() && !view.narrow() && !adds ? view.f32() : scratch(slot, view.volume())),
        adds_(adds) {}
  float* data() const { return data_; }
  void commit() const {
    if (data_ == view_.data) return;
    gpu::write_or_add_view(view_, dense_view(data_, view_.tile, view_.shape), adds_);
  }

 private:
  TensorView view_;
  float* data_;
  bool adds_;
};

}  // namespace flexlegion::gpu
