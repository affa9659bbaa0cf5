// The one body of all Legion tasks: it turns physical regions into views and calls the launch's own
// code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "legion.h"
#include "plan/graph.h"
#include "plan/plan.h"

namespace flexlegion {

enum class LeafResult { nothing, bytes };

struct LeafTask {
  std::string name;  // as profilers show it
  LeafResult result = LeafResult::nothing;
};

// Names of the runtime's own leaf tasks.
constexpr const char* kStageTask = "stage";  // host array -> staging tensor
constexpr const char* kFeedTask = "feed";    // staging tensor -> input tensor
constexpr const char* kStoreTask = "store";  // host array -> tensor
constexpr const char* kSaveTask = "save";    // tensor -> host array
constexpr const char* kZeroTask = "zero";
constexpr const char* kFillTask = "fill";      // sensible values for what a measured task reads
constexpr const char* kTouchTask = "touch";    // nothing: what it is given has been brought to it
constexpr const char* kAnswerTask = "answer";  // what a GPU wrote down of a loss
constexpr const char* kFusedTask = "fused";    // several launches' tasks, see fusion.h
constexpr const char* kTellTask = "tell";      // what its rank has to tell
constexpr const char* kBytesTask = "bytes";    // the times of measured tasks

Legion::PrivilegeMode legion_privilege(Privilege privilege);

std::int64_t now_ns();  // of a clock that never goes back
// In which the calling thread had a core.
std::int64_t thread_time_ns();

// All leaf tasks, in an order that every rank shares.
std::vector<LeafTask> leaf_tasks();
void register_leaf_task(Legion::Runtime* runtime, Legion::TaskID id, const LeafTask& leaf);

}  // namespace flexlegion
