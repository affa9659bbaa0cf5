// Makes one launch of several that the plan allows to fuse (plan/fusion.h).
//
// The fused launch's requirements are the members' without repetition: uses of the same field with
// the same rectangles become one, with the wider privilege. Each part remembers which of them are
// its own requirements, so that its body sees the views that it would see alone. Legion then
// analyses, maps and starts one task where it had several.
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
  launch.visit = launches[static_cast<std::size_t>(members.front())].visit;
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
