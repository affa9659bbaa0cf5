#include "ops/device_functions.h"

namespace flexlegion {
namespace {

struct Entry {
  DeviceFunctions functions;
  bool known = false;
};

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
