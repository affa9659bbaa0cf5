// The cost table's part of the C ABI of libflexlegion_core: ways to split operators, and what their
// tasks take. Those of one operator come together, so that a shape that many tasks have is priced
// once.
//
// The caller passes the same splits twice. fl_problem_shapes() tells the different shapes that
// their tasks have. The caller finds what a task of each shape takes, and fl_problem_add_splits()
// gives each task the time of its shape. Both calls number the shapes alike, as numbers follow from
// the splits alone (split_shapes.cc), so nothing has to be kept from the first to the second.
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

namespace {

// Throws std::invalid_argument unless the operator can be split so.
std::vector<fl::ParallelConfig> configs_of(const fl::Graph& graph, const fl_splits& splits) {
  const fl::OpId op = fl::checked_op(graph, splits.op);
  std::vector<fl::ParallelConfig> configs;
  for (int s = 0; s < splits.n_splits; ++s) {
    const int32_t* degrees = splits.degrees + static_cast<std::ptrdiff_t>(s) * splits.n_degrees;
    configs.push_back(fl::split_by(graph, op, splits.n_degrees, degrees));
  }
  return configs;
}

fl::SplitShapes shapes_of(const fl::Graph& graph, fl::OpId op,
                          const std::vector<fl::ParallelConfig>& configs) {
  std::vector<std::vector<int>> degrees;
  for (const fl::ParallelConfig& config : configs) degrees.push_back(config.degrees);
  return fl::SplitShapes(graph, op, degrees);
}

// Whether there is a price for each shape, in the range in which sums of the simulator stay within
// 64 bits; and whether it is told what programs keep, if and only if that decides what fits.
void check_costs(const fl::Problem& problem, const fl_splits& splits, std::int64_t shapes,
                 const fl_split_costs& its) {
  if (its.n_times != 2 * shapes * problem.machine.kinds) {
    throw std::invalid_argument("wrong number of task times");
  }
  for (std::int64_t i = 0; i < its.n_times; ++i) {
    if (its.times[i] < 0 || its.times[i] > fl::kMaxTime) {
      throw std::invalid_argument("a bad task time");
    }
    if (its.contention != nullptr) fl::contention_of(its.contention[i]);
  }
  if ((its.kept != nullptr) != problem.in_order) {
    throw std::invalid_argument(
        "what programs keep is told where there is a space, and only there");
  }
  if (its.kept == nullptr) return;
  const auto operands = problem.graph.operators[fl::OpId(splits.op)].operands.size();
  if (its.n_kept != fl::kShardings * static_cast<std::int64_t>(operands) * splits.n_splits) {
    throw std::invalid_argument("wrong number of operands");
  }
  for (std::int64_t i = 0; i < its.n_kept; ++i) {
    if (its.kept[i] < 0 || its.kept[i] > fl::kMaxKept) {
      throw std::invalid_argument("a bad number of bytes");
    }
  }
}

// Hands what is told of shapes, [kind of devices * shapes + shape], to the tasks that have these:
// [kind of devices * tasks + task], as in a Split.
template <typename T>
std::vector<T> of_tasks(const T* told, int kinds, std::int64_t shapes, const std::int32_t* shape_of,
                        int tasks) {
  std::vector<T> result;
  result.reserve(static_cast<std::size_t>(kinds) * static_cast<std::size_t>(tasks));
  for (int kind = 0; kind < kinds; ++kind) {
    for (int k = 0; k < tasks; ++k) result.push_back(told[kind * shapes + shape_of[k]]);
  }
  return result;
}

}  // namespace

int fl_problem_shapes(fl_problem* handle, const fl_splits* splits, fl_shapes* out) {
  return fl::guarded(-1, [&] {
    const fl::Graph& graph = handle->problem.graph;
    const auto configs = configs_of(graph, *splits);
    handle->shapes = shapes_of(graph, fl::OpId(splits->op), configs);
    const fl::SplitShapes& shapes = handle->shapes;
    *out = {shapes.count(), shapes.extents().data(),
            static_cast<std::int64_t>(shapes.shape_of().size()), shapes.shape_of().data()};
    return 0;
  });
}

// The table is that of the operator's class. So a split may stand there already, by way of another
// operator of the class; it keeps its times, and new ones get the next numbers, so that those by
// which configurations name their splits stay valid.
int fl_problem_add_splits(fl_problem* handle, const fl_splits* splits,
                          const fl_split_costs* costs) {
  return fl::guarded(-1, [&] {
    fl::Problem& problem = handle->problem;
    const auto configs = configs_of(problem.graph, *splits);
    const fl::OpId op(splits->op);
    const fl::SplitShapes shapes = shapes_of(problem.graph, op, configs);
    check_costs(problem, *splits, shapes.count(), *costs);
    const fl::Operator& owner = problem.graph.operators[op];
    const fl::OpId group = problem.costs.class_of[op];
    auto& table = problem.costs.splits[group];
    const int kinds = problem.machine.kinds;
    const std::int64_t half = shapes.count() * kinds;
    const auto operands = static_cast<std::ptrdiff_t>(owner.operands.size());
    const std::int32_t* shape_of = shapes.shape_of().data();
    for (std::size_t s = 0; s < configs.size(); ++s) {
      fl::ParallelConfig config = configs[s];
      const auto tasks = static_cast<int>(config.devices.size());
      // A split that is known has shapes in the list as well, which are passed over.
      const std::int32_t* its = shape_of;
      shape_of += tasks;
      const auto number = static_cast<int>(table.size());
      if (!problem.costs.number_of[group].try_emplace(config.degrees, number).second) continue;
      const auto told = [&](const auto* of_shapes) {
        return of_tasks(of_shapes, kinds, shapes.count(), its, tasks);
      };
      // sums_by_shards() is asked: could it, if a strategy wanted that?
      config.sums = fl::Sums::shards;
      table.push_back({config.degrees, tasks, told(costs->times), told(costs->times + half),
                       fl::partial_values(owner, config.degrees), fl::sums_by_shards(owner, config),
                       fl::parts_of(owner, config.degrees)});
      fl::Split& split = table.back();
      // Parts have one shape and so one price, but backward some of them may have nothing to do.
      split.leave_idle(problem.facts.first_part_alone(owner));
      if (costs->contention != nullptr) {
        split.forward_contention = told(costs->contention);
        split.backward_contention = told(costs->contention + half);
        problem.costs.contended = true;
      }
      if (costs->kept != nullptr) {
        const auto at = static_cast<std::ptrdiff_t>(s) * operands;
        const std::int64_t* kept = costs->kept + fl::kShardings * at;
        split.kept.assign(kept, kept + fl::kShardings * operands);
        split.placed.assign(costs->placed + at, costs->placed + at + operands);
      }
    }
    return 0;
  });
}
