// The one body of all Legion tasks: it turns physical regions into views and calls the launch's own
// code.
#pragma once

#include <string>
#include <vector>

#include "legion.h"

namespace flexlegion {

struct LeafTask {
  std::string name;  // "<operator type>.<pass>", as profilers show it
  bool returns_metrics = false;
};

// Names of the runtime's own leaf tasks.
constexpr const char* kStageTask = "stage";  // host array -> staging tensor
constexpr const char* kFeedTask = "feed";    // staging tensor -> input tensor
constexpr const char* kStoreTask = "store";  // host array -> tensor
constexpr const char* kZeroTask = "zero";

// All leaf tasks, in an order that every rank shares.
std::vector<LeafTask> leaf_tasks();
void register_leaf_task(Legion::Runtime* runtime, Legion::TaskID id, const LeafTask& leaf);

}  // namespace flexlegion
