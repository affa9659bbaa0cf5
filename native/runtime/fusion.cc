#include "runtime/fusion.h"

#include <cstdint>
#include <map>
#include <utility>

#include "plan/fusion.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"

namespace flexlegion {

namespace {

FieldUse use_of(const LaunchRequirement& r) {
  const Privilege privilege = r.privilege == LEGION_READ_ONLY       ? Privilege::read
                              : r.privilege == LEGION_WRITE_DISCARD ? Privilege::write
                                                                    : Privilege::read_write;
  return {std::int64_t{r.region} << 32 | r.field, privilege, &r.rects};
}

}  // namespace

std::vector<std::vector<int>> fusible_runs(const std::deque<RuntimeLaunch>& launches,
                                           const std::vector<int>& order, int longest) {
  std::vector<Issued> issued;
  std::map<int, int> positions;  // of launches
  for (int number : order) {
    const RuntimeLaunch& launch = launches[static_cast<std::size_t>(number)];
    const auto forward = positions.find(launch.forward);
    Issued its{&launch.devices,
               launch.side == Side::device && !launch.answers,
               launch.closing,
               forward == positions.end() ? -1 : forward->second,
               {}};
    for (const LaunchRequirement& r : launch.requirements) its.uses.push_back(use_of(r));
    positions[number] = static_cast<int>(issued.size());
    issued.push_back(std::move(its));
  }
  std::map<Legion::Memory, int> memories;
  std::vector<int> memory_of;
  for (const Device& device : MachineState::get().devices()) {
    const auto number = static_cast<int>(memories.size());
    memory_of.push_back(memories.try_emplace(device.memory, number).first->second);
  }
  std::vector<std::vector<int>> runs = fused_runs(issued, memory_of, longest);
  for (std::vector<int>& run : runs) {
    for (int& position : run) position = order[static_cast<std::size_t>(position)];
  }
  return runs;
}

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
