// From Legion's physical regions to TensorViews: an address and strides, taken once from an
// accessor.
//
// Legion's accessors are templates of the rank, so the rank is a constant in each of six functions
// here, and a number everywhere else. Access is unchecked: the mapper gave the task an instance
// that covers its rectangle.
#include "runtime/views.h"

#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

namespace {

// `Element` is of the field's size.
template <typename Element, int DIM>
TensorView view_in(const PhysicalRegion& region, FieldID field, const Rect& rect) {
  using Accessor =
      UnsafeFieldAccessor<Element, DIM, coord_t, Realm::AffineAccessor<Element, DIM, coord_t>>;
  const Accessor access(region, field, /*silence_warnings=*/true);
  Point<DIM> lo;
  for (int d = 0; d < DIM; ++d) lo[d] = rect.lo[d];
  TensorView view;
  view.tile = rect;
  view.data = access.accessor.ptr(lo);
  for (int d = 0; d < DIM; ++d) {
    view.stride[d] = static_cast<std::int64_t>(access.accessor.strides[d] / sizeof(Element));
  }
  return view;
}

// Legion's accessors have their rank as a template parameter, and a plan's rectangles as a number.
template <typename Element>
TensorView view_of_rank(const PhysicalRegion& region, FieldID field, const Rect& rect) {
  switch (rect.rank) {
    case 1:
      return view_in<Element, 1>(region, field, rect);
    case 2:
      return view_in<Element, 2>(region, field, rect);
    case 3:
      return view_in<Element, 3>(region, field, rect);
    case 4:
      return view_in<Element, 4>(region, field, rect);
    case 5:
      return view_in<Element, 5>(region, field, rect);
    default:
      return view_in<Element, 6>(region, field, rect);
  }
}

}  // namespace

TensorView view_of(const PhysicalRegion& region, FieldID field, const Rect& rect, DataType type) {
  TensorView view = is_narrow(type) ? view_of_rank<Narrow>(region, field, rect)
                                    : view_of_rank<float>(region, field, rect);
  view.type = type;
  return view;
}

// Mapping inline waits for all tasks that write the tensor, and copies it here if it lies
// elsewhere.
MappedTensor::MappedTensor(const RegionStore& regions, int region, FieldID field) {
  const LogicalRegion whole = regions.region(region);
  RegionRequirement requirement(whole, LEGION_READ_ONLY, LEGION_EXCLUSIVE, whole);
  requirement.add_field(field);
  physical_ = Runtime::get_runtime()->map_region(
      Runtime::get_context(), InlineLauncher(requirement, MachineState::get().mapper_id()));
  physical_.wait_until_valid(/*silence_warnings=*/true);
  Rect box;
  box.rank = whole.get_dim();
  box.hi = regions.shape(region);
  view_ = view_of(physical_, field, box, regions.type(region, field));
}

MappedTensor::~MappedTensor() {
  Runtime::get_runtime()->unmap_region(Runtime::get_context(), physical_);
}

}  // namespace flexlegion
