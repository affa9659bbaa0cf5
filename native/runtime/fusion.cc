#include "runtime/fusion.h"

#include "plan/fusion.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"

namespace flexlegion {

namespace {

FieldUse use_of(const LaunchRequirement& r) {
  const Privilege privilege = r.privilege == LEGION_READ_ONLY       ? Privilege::read
                              : r.privilege == LEGION_WRITE_DISCARD ? Privilege::write
                                                                    : Privilege::read_write;
  return {r.place, privilege, &r.rects};
}

}  // namespace

RuntimeLaunch fused(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& members) {
  RuntimeLaunch launch;
  launch.task = MachineState::get().task_id(kFusedTask);
  launch.devices = launches[static_cast<std::size_t>(members.front())].devices;
  MergedUses merged;
  for (int member : members) {
    FusedPart& part = launch.parts.emplace_back();
    part.launch = member;
    part.recordable = launches[static_cast<std::size_t>(member)].recordable;
    for (const LaunchRequirement& r : launches[static_cast<std::size_t>(member)].requirements) {
      const std::size_t place = merged.add(use_of(r));
      part.places.push_back(static_cast<int>(place));
      if (place == launch.requirements.size()) launch.requirements.push_back(r);
      launch.requirements[place].privilege = legion_privilege(merged.uses()[place].privilege);
    }
  }
  launch.stretches = stretches_of(launch.parts);
  return launch;
}

}  // namespace flexlegion
