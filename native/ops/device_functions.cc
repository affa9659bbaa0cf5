// The table of a device kind's functions: CPU processors fill in theirs when the runtime is loaded,
// GPUs theirs when their library is.
//
// A GPU library may be older than the runtime that loads it. It then passes structures of other
// sizes, so it is refused by the number that stands for all of these sizes, and the runtime says
// that there are no GPUs' functions instead of reading wrong memory.
#include "ops/device_functions.h"

namespace flexlegion {
namespace {

struct Entry {
  DeviceFunctions functions;
  bool known = false;
};

// A static local exists before the first registration of any file, whatever the order in which
// files are initialised.
Entry& entry_of(DeviceKind kind) {
  static Entry entries[2];
  return entries[static_cast<int>(kind)];
}

}  // namespace

RegisterDeviceFunctions::RegisterDeviceFunctions(const DeviceFunctions& functions, DeviceKind kind,
                                                 std::uint64_t interface) {
  if (interface == device_interface()) entry_of(kind) = {functions, true};
}

const DeviceFunctions* device_functions(DeviceKind kind) {
  const Entry& entry = entry_of(kind);
  return entry.known ? &entry.functions : nullptr;
}

}  // namespace flexlegion
