// When a recording is made, used, or given up (recorded_work.h).
//
// The first time a key comes, its work is issued as usual: libraries load and choose their kernels
// then, which cannot be recorded. The second time in a row it is recorded and replayed. Keys that
// change at each iteration (a learning-rate schedule, say) thus never cost a recording. Work that
// cannot be recorded at all is tried once.
#include "runtime/recorded_work.h"

#include <algorithm>

#include "runtime/launch.h"

namespace flexlegion {

// Neighbours of one kind are one stretch: the longer a recording is, the less it costs for each
// kernel.
std::vector<Stretch> stretches_of(const std::vector<FusedPart>& parts) {
  std::vector<Stretch> stretches;
  for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
    const Recordable its = parts[static_cast<std::size_t>(i)].recordable;
    if (stretches.empty() || stretches.back().recordable != its) stretches.push_back({i, i, its});
    stretches.back().last = i + 1;
  }
  return stretches;
}

RecordingKey::RecordingKey(const TaskArguments& arguments, const std::int64_t* rows,
                           Recordable recordable)
    : valid_samples(arguments.run.valid_samples),
      batch_samples(arguments.run.batch_samples),
      // Work that does not depend on the learning rate must not lose its recording when that
      // changes.
      learning_rate(recordable == Recordable::at_one_rate ? arguments.run.learning_rate : 0),
      loss_scale(arguments.run.loss_scale),
      seed(arguments.run.seed),
      training(arguments.run.training),
      shares(rows, rows + arguments.rows) {}

bool RecordingKey::operator==(const RecordingKey& other) const {
  return valid_samples == other.valid_samples && batch_samples == other.batch_samples &&
         learning_rate == other.learning_rate && loss_scale == other.loss_scale &&
         seed == other.seed && training == other.training && shares == other.shares;
}

bool RecordedWork::run(const DeviceFunctions& device, const RecordingKey& key, const Arena& arena,
                       Precision precision, const std::function<void(int part)>& issue,
                       const Stretch& stretch,
                       const std::function<void(const Recording&)>& replay) {
  if (device.record == nullptr || refused_) return false;
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&key](const auto& known) { return known.first == key; });
  if (found != known_.end()) {
    replay(found->second);
    return true;
  }
  // Libraries choose their ways at the first run, and the key may never come again.
  const bool again = issued_ && last_ == key;
  issued_ = true;
  last_ = key;
  if (!again) return false;
  Recording recording =
      device.record(arena.data, arena.bytes, precision, stretch.last - stretch.first,
                    [&](int i) { issue(stretch.first + i); });
  if (recording == nullptr) {
    refused_ = true;
    return false;
  }
  replay(recording);
  // What the oldest gave the GPU is done: this task would not run yet else.
  if (known_.size() == kMost) known_.erase(known_.begin());
  known_.emplace_back(key, std::move(recording));
  return true;
}

}  // namespace flexlegion
