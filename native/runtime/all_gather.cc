#include "runtime/all_gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/leaf_task.h"
#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

namespace {

// Legion bounds what a task returns, so longer texts go in chunks: each is headed by the length of
// the whole.
constexpr std::size_t kHead = sizeof(std::uint64_t);
constexpr std::size_t kChunk = LEGION_MAX_RETURN_SIZE - 2 * kHead;

}  // namespace

AllGather::AllGather() {
  const MachineState& machine = MachineState::get();
  RuntimeLaunch launch;
  launch.task = machine.task_id(kBytesTask);
  for (int rank = 0; rank < machine.ranks(); ++rank) {
    const auto& devices = machine.devices();
    const auto first = std::find_if(devices.begin(), devices.end(),
                                    [&](const Device& device) { return device.rank == rank; });
    if (first == devices.end()) throw std::runtime_error("a rank without a device");
    launch.devices.push_back(static_cast<int>(first - devices.begin()));
  }
  launch.body = [this](LeafContext& context) { context.bytes = chunk_; };
  add_launch(std::move(launch));
  seal("this");
}

AllGather::~AllGather() { wait_quietly(); }

std::vector<std::vector<char>> AllGather::all(const std::vector<char>& mine) {
  const std::uint64_t length = mine.size();
  std::uint64_t longest = 0;
  std::vector<std::vector<char>> told(static_cast<std::size_t>(MachineState::get().ranks()));
  std::size_t first = 0;
  do {
    const std::size_t end = std::min(mine.size(), first + kChunk);
    chunk_.data.resize(kHead);
    std::memcpy(chunk_.data.data(), &length, kHead);
    if (first < end) {
      chunk_.data.insert(chunk_.data.end(), mine.data() + first, mine.data() + end);
    }
    const FutureMap results = issue(0, RunState{});
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      const DomainPoint point(static_cast<coord_t>(rank));
      const auto its = results.get_result<Bytes>(point, /*silence_warnings=*/true);
      std::uint64_t whole = 0;
      std::memcpy(&whole, its.data.data(), kHead);
      longest = std::max(longest, whole);
      told[rank].insert(told[rank].end(), its.data.begin() + kHead, its.data.end());
    }
    first += kChunk;
  } while (first < longest);
  return told;
}

std::vector<std::vector<char>> all_gather(const std::vector<char>& mine) {
  return AllGather().all(mine);
}

}  // namespace flexlegion
