#include "runtime/views.h"

namespace flexlegion {

using namespace Legion;

namespace {

template <int DIM>
TensorView view_in(const PhysicalRegion& region, FieldID field, const Rect& rect) {
  using Accessor =
      UnsafeFieldAccessor<float, DIM, coord_t, Realm::AffineAccessor<float, DIM, coord_t>>;
  const Accessor access(region, field, /*silence_warnings=*/true);
  Point<DIM> lo;
  for (int d = 0; d < DIM; ++d) lo[d] = rect.lo[d];
  TensorView view;
  view.tile = rect;
  view.data = access.accessor.ptr(lo);
  for (int d = 0; d < DIM; ++d) {
    view.stride[d] = static_cast<std::int64_t>(access.accessor.strides[d] / sizeof(float));
  }
  return view;
}

}  // namespace

// Every field's element has four bytes (float32 and int32), so one accessor type serves.
TensorView view_of(const PhysicalRegion& region, FieldID field, const Rect& rect) {
  switch (rect.rank) {
    case 1:
      return view_in<1>(region, field, rect);
    case 2:
      return view_in<2>(region, field, rect);
    case 3:
      return view_in<3>(region, field, rect);
    case 4:
      return view_in<4>(region, field, rect);
    case 5:
      return view_in<5>(region, field, rect);
    default:
      return view_in<6>(region, field, rect);
  }
}

}  // namespace flexlegion
