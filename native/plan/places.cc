// Names and defaults of fields and roles (places.h): one row for each role says which field it
// touches, and with which privilege. The plan may turn a value into partial values, or a write into
// a read and write where a task adds; everything else follows from the role.
//
// The rows are in the order of the enumeration, and the assertions count them. A comment behind a
// row says where the plan, or a round of it, departs from the row.
#include "plan/places.h"

#include <iterator>

namespace flexlegion {

// The names stand in messages, and Python reads them (fl_vocabulary_of).
const char* name_of(Field field) {
  static const char* const names[] = {
      "value",   "partial", "copy",  "gradient",   "node sums",
      "reduced", "state",   "norms", "total norm",
  };
  static_assert(std::size(names) == kFields);
  return names[static_cast<std::size_t>(field)];
}

// Name, field and privilege, in the order of RequirementRole.
const RoleRow& row_of(RequirementRole role) {
  using P = Privilege;
  static const RoleRow rows[] = {
      {"loaded", Field::value, P::write},
      {"shard", Field::value, P::read},
      {"gathered", Field::copy, P::write},
      {"input", Field::value, P::read},
      {"weight", Field::value, P::read},  // of copy, where it is gathered; likewise `saved`
      {"operator state", Field::value, P::read_write},
      {"output", Field::value, P::write},
      {"partial", Field::partial, P::read},
      {"summed", Field::value, P::write},
      {"saved", Field::value, P::read},
      {"output gradient", Field::gradient, P::read},
      {"contribution", Field::gradient, P::write},     // read_write where some task adds
      {"partial gradient", Field::gradient, P::read},  // of node_sums, where there are any
      {"reduced", Field::reduced, P::write},           // read_write behind the first micro-batch
      {"node gradient", Field::gradient, P::read},
      {"node sum", Field::node_sums, P::write},
      {"weight gradient", Field::gradient, P::read},  // or node_sums, or reduced
      {"looked up tokens", Field::value, P::read},
      {"looked up gradient", Field::gradient, P::read},
      {"norm", Field::norms, P::write},
      {"all norms", Field::norms, P::read},
      {"total norm", Field::total_norm, P::write},
      {"updated", Field::value, P::read_write},
      {"optimizer state", Field::state, P::read_write},
      {"clipped by", Field::total_norm, P::read},
      {"spread", Field::value, P::read},  // of copy, where it is gathered
  };
  static_assert(std::size(rows) == kRoles);
  return rows[static_cast<std::size_t>(role)];
}

// Partial values and gathered copies are stored as the value is, and whatever is summed of
// gradients as the gradient is. Norms are kept in the type of optimizer states.
DataType type_of(const Graph& graph, const Place& place) {
  switch (place.field) {
    case Field::value:
    case Field::partial:
    case Field::copy:
      return graph.tensors[place.tensor].type;
    case Field::gradient:
    case Field::node_sums:
    case Field::reduced:
      return graph.tensors[place.tensor].gradient_type();
    default:
      return kStateType;
  }
}

}  // namespace flexlegion
