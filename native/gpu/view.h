// Tiles of device memory: TensorViews whose `data` a GPU can read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/lanes.h"
#include "gpu/launch.h"
#include "gpu/real.h"
#include "ops/tensor_view.h"

namespace flexlegion::gpu {

// A tile as a body captures it; elements are numbered row-major over its own extents.
struct Strided {
  Reals data;
  int rank = 0;
  std::int64_t extent[kMaxRegionRank] = {}, stride[kMaxRegionRank] = {};

  Strided() = default;
  explicit Strided(const TensorView& view) : data(view.data, view.type), rank(view.rank()) {
    for (int d = 0; d < rank; ++d) {
      extent[d] = view.extent(d);
      stride[d] = view.stride[d];
    }
  }

  // The first `dims` dimensions' i-th index, as an offset from `data`.
  FL_DEVICE std::int64_t offset_of(std::int64_t i, int dims) const {
    std::int64_t offset = 0;
    for (int d = dims - 1; d > 0; --d) {
      const std::int64_t before = divided(i, extent[d]);
      offset += (i - before * extent[d]) * stride[d];
      i = before;
    }
    return dims > 0 ? offset + i * stride[0] : 0;
  }
  FL_DEVICE std::int64_t offset_of(std::int64_t i) const { return offset_of(i, rank); }
  FL_DEVICE Real operator[](std::int64_t i) const { return data[offset_of(i)]; }
  FL_DEVICE std::int32_t integer(std::int64_t i) const {
    return static_cast<const std::int32_t*>(data.data())[offset_of(i)];
  }
  // Row i: all dimensions but the last. Its elements are `stride[rank - 1]` apart.
  FL_DEVICE Reals row(std::int64_t i) const { return data + offset_of(i, rank - 1); }
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

  // Whether each `width` of them, from a multiple of that on, follow each other in all tiles.
  bool follow_each_other(std::int64_t width) const {
    if (rank == 0 || extent[rank - 1] % width != 0) return false;
    for (int v = 0; v < N; ++v) {
      if (stride[v][rank - 1] != 1) return false;
      for (int d = 0; d < rank - 1; ++d) {
        if (stride[v][d] % width != 0) return false;
      }
    }
    return true;
  }

  FL_DEVICE Offsets operator()(std::int64_t i) const {
    Offsets offsets{};
    for (int d = rank - 1; d > 0; --d) {
      const std::int64_t before = divided(i, extent[d]), index = i - before * extent[d];
      for (int v = 0; v < N; ++v) offsets.of[v] += index * stride[v][d];
      i = before;
    }
    for (int v = 0; v < N; ++v) offsets.of[v] += i * stride[v][0];
    return offsets;
  }
};

// Tiles of real numbers, of equal extents.
template <int N>
struct Tiles {
  // One element of each.
  struct Element {
    const Tiles& tiles;
    const typename TileOffsets<N>::Offsets offsets;
    FL_DEVICE Reals at(int tile) const { return tiles.data[tile] + offsets.of[tile]; }
    FL_DEVICE Real operator[](int tile) const { return tiles.data[tile][offsets.of[tile]]; }
  };

  TileOffsets<N> places;
  Reals data[N];

  explicit Tiles(const TensorView* const (&views)[N]) : places(views) {
    for (int v = 0; v < N; ++v) data[v] = Reals(views[v]->data, views[v]->type);
  }
  FL_DEVICE Element operator()(std::int64_t i) const { return {*this, places(i)}; }
  bool wide() const {
    return std::all_of(data, data + N, begins_wide) && places.follow_each_other(kWide);
  }
};

// The same W elements of each of them.
template <int W, int N>
struct Elements {
  static constexpr int kWidth = W;
  const Tiles<N>& tiles;
  const typename TileOffsets<N>::Offsets offsets;

  FL_DEVICE Lanes<W> operator[](int tile) const {
    return load(Width<W>(), tiles.data[tile], offsets.of[tile]);
  }
  FL_DEVICE void set(int tile, const Lanes<W>& lanes) const {
    store(tiles.data[tile], offsets.of[tile], lanes);
  }
  FL_DEVICE void put(int tile, const Lanes<W>& lanes, bool adds) const {
    gpu::put(tiles.data[tile], offsets.of[tile], lanes, adds);
  }
};

// body(elements) for all elements of the tiles, W at a time: [=] FL_BODY(auto e) { ... }.
template <int N, typename Body>
void for_each_element(const TensorView* const (&views)[N], const Body& body) {
  const Tiles<N> tiles(views);
  const std::int64_t n = views[0]->volume();
  if (tiles.wide()) {
    for_each(n / kWide, [=] FL_BODY(std::int64_t i) {
      body(Elements<kWide, N>{tiles, tiles.places(i * kWide)});
    });
  } else {
    for_each(n, [=] FL_BODY(std::int64_t i) { body(Elements<1, N>{tiles, tiles.places(i)}); });
  }
}

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
FL_DEVICE inline void put(const Real& to, float value, bool adds) {
  to = adds ? to + value : value;
}

// A dense tile of the same extents in scratch memory, of that type.
TensorView scratch_view(int slot, const TensorView& like, DataType type = DataType::float32);

// A tile as dense memory of that type: the tile itself, or a copy in scratch memory.
class DenseInput {
 public:
  DenseInput(const TensorView& view, int slot, DataType type = DataType::float32);
  float* data() const { return static_cast<float*>(memory_); }
  void* memory() const { return memory_; }  // of any type

 private:
  void* memory_;
};

// Write to data(), then call commit().
class DenseOutput {
 public:
  DenseOutput(const TensorView& view, int slot, bool adds = false,
              DataType type = DataType::float32);
  float* data() const { return result_.f32(); }
  void* memory() const { return result_.data; }
  void commit() const;

 private:
  TensorView view_, result_;
  bool adds_;
};

}  // namespace flexlegion::gpu
