// A launch, put together from its pass's row (passes.h): what it touches follows from the graph,
// and which rectangles from one operator's configuration.
//
// The functions here only ask the row; no pass is named. The simulator asks them one launch at a
// time, since a proposal changes few configurations.
#include "plan/launches.h"

#include <algorithm>

namespace flexlegion {

bool first_part_alone(const Operator& op, const Launch& backward) {
  const auto& all = backward.requirements;
  return std::all_of(all.begin(), all.end(), [&op](const Requirement& r) {
    return r.role != RequirementRole::contribution ||
           of_first_part_alone(op, op.operands[r.operand]);
  });
}

// Empty rectangles are alike, wherever they are said to be.
bool touch_alike(const std::vector<Rect>& a, const std::vector<Rect>& b) {
  return &a == &b ||
         std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Rect& x, const Rect& y) {
           return x == y || (x.empty() && y.empty());
         });
}

const Requirement* Launch::in_role(RequirementRole role) const {
  const auto found = std::find_if(requirements.begin(), requirements.end(),
                                  [role](const Requirement& its) { return its.role == role; });
  return found == requirements.end() ? nullptr : &*found;
}

std::vector<Use> uses_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return row_of(key.pass).uses(graph, facts, key);
}

unsigned runs_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return row_of(key.pass).runs(graph, facts, key);
}

// A batch is loaded as its first reader is configured.
OpId decides(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return row_of(key.pass).of == Of::input ? load_source(graph, facts, key.tensor).first_reader
                                          : key.op;
}

Launch launch_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                 const ParallelConfig& config) {
  const PassRow& row = row_of(key.pass);
  Launch launch;
  static_cast<LaunchKey&>(launch) = key;
  if (row.of == Of::iteration) launch.op = {};
  launch.runs = row.runs(graph, facts, key);
  for (const Use& use : row.uses(graph, facts, key)) launch.requirements.push_back({use, {}, {}});
  row.place(graph, facts, key, config, launch);
  return launch;
}

}  // namespace flexlegion
