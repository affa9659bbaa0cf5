// How every rank comes to know a few bytes of every other: a launch of one task a rank, each of
// which writes a row of a region, and an inline mapping of the whole region on every rank.
//
// A row has a fixed length, since Legion's regions have, but what a rank says may be longer, and
// ranks do not know of each other how long. So the first words of each row tell the whole length,
// and as many turns are made as the longest one needs. All ranks read the same lengths, so they
// make equally many turns, as control replication wants.
//
// Costs: one launch, and for n ranks n (n - 1) copies of 4 KB, in each turn.
#include "runtime/all_gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "runtime/views.h"

namespace flexlegion {

using namespace Legion;

namespace {

// A row's words (of 4 bytes): the length of all that its rank has to tell, and the next part of it.
constexpr std::int64_t kHead = sizeof(std::uint64_t) / sizeof(std::int32_t);
constexpr std::int64_t kWords = 1024;
constexpr std::size_t kChunk = (kWords - kHead) * sizeof(std::int32_t);

}  // namespace

// By a region, not by what the tasks return: Realm keeps 600 bytes for every second message that
// has a rank do something, and futures of several ranks take a dozen.
AllGather::AllGather() {
  const MachineState& machine = MachineState::get();
  rows_ = regions_.add({machine.ranks(), kWords}, Content::other, DataType::int32);
  RuntimeLaunch launch;
  launch.task = machine.task_id(kTellTask);
  launch.side = Side::host;
  LaunchRequirement own{rows_, kValueField, LEGION_WRITE_DISCARD, {}};
  for (int rank = 0; rank < machine.ranks(); ++rank) {
    const auto& devices = machine.devices();
    // A rank's task runs on the host side of its first device.
    const auto first = std::find_if(devices.begin(), devices.end(),
                                    [&](const Device& device) { return device.rank == rank; });
    if (first == devices.end()) throw std::runtime_error("a rank without a device");
    launch.devices.push_back(static_cast<int>(first - devices.begin()));
    Rect row = Rect::of_shape({machine.ranks(), kWords});
    row.lo[0] = rank;
    row.hi[0] = rank + 1;
    own.rects.push_back(row);
  }
  launch.requirements = {std::move(own)};
  launch.body = [this](LeafContext& context) {
    std::memcpy(context.views.front().data, row_.data(), row_.size() * sizeof(std::int32_t));
  };
  add_launch(std::move(launch));
  seal("this");
}

AllGather::~AllGather() { wait_quietly(); }

std::vector<std::vector<char>> AllGather::all(const std::vector<char>& mine) {
  const std::uint64_t length = mine.size();
  std::uint64_t longest = 0;
  std::vector<std::vector<char>> told(static_cast<std::size_t>(MachineState::get().ranks()));
  for (std::size_t first = 0; first == 0 || first < longest; first += kChunk) {
    // All ranks' rows of the last turn were read, so this rank's task has ended.
    row_.assign(kWords, 0);
    std::memcpy(row_.data(), &length, sizeof(length));
    if (first < length) {
      std::memcpy(row_.data() + kHead, mine.data() + first, std::min(kChunk, length - first));
    }
    issue(0, RunState{});
    const MappedTensor rows(regions_, rows_, kValueField);
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      const std::int32_t* const row =
          rows.view().i32() + static_cast<std::int64_t>(rank) * rows.view().stride[0];
      std::uint64_t whole = 0;
      std::memcpy(&whole, row, sizeof(whole));
      longest = std::max(longest, whole);
      const auto* const text = reinterpret_cast<const char*>(row + kHead);
      const std::size_t part = first < whole ? std::min<std::size_t>(kChunk, whole - first) : 0;
      // Ranks that have told all by now send rows that are empty but for the length.
      told[rank].insert(told[rank].end(), text, text + part);
    }
  }
  return told;
}

std::vector<std::vector<char>> all_gather(const std::vector<char>& mine) {
  // It stays, and is not destroyed: when the process ends, Legion has ended before.
  static AllGather* const gather = new AllGather();
  return gather->all(mine);
}

}  // namespace flexlegion
