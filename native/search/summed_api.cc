// The summed costs' part of the C ABI of libflexlegion_core.
//
// Python's dynamic program eliminates nodes and edges of the graph as OptCNN does. It asks here for
// the costs of many configurations in one call: of one operator for all its splits, and of one
// tensor for all pairs of splits of its writer and reader.
#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "search/summed_costs.h"
#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

namespace {

// Tuples of degrees of one operator, each of which fits the machine with one task a device.
std::vector<std::vector<int>> degrees_of(const fl::Problem& problem, fl::OpId op, int count,
                                         const int32_t* degrees) {
  fl::checked_op(problem.graph, op.value);
  const auto rank = static_cast<std::int64_t>(problem.graph.operators[op].dims.size());
  std::vector<std::vector<int>> result;
  for (int i = 0; i < count; ++i, degrees += rank) {
    fl::ParallelConfig config = fl::split_by(problem.graph, op, rank, degrees);
    if (config.devices.size() > static_cast<std::size_t>(problem.machine.devices())) {
      throw std::invalid_argument("more tasks than devices");
    }
    result.push_back(std::move(config.degrees));
  }
  return result;
}

}  // namespace

struct fl_summed_costs {
  fl_summed_costs(const fl::Problem& problem, std::int64_t least_message)
      : costs(problem, least_message) {}
  fl::SummedCosts costs;
};

fl_summed_costs* fl_summed_create(const fl_problem* problem, int64_t least_message) {
  return fl::guarded(static_cast<fl_summed_costs*>(nullptr), [&] {
    if (least_message < 0 || least_message > fl::kMaxKept) {
      throw std::invalid_argument("a bad number of bytes");
    }
    return new fl_summed_costs(problem->problem, least_message);
  });
}

void fl_summed_destroy(fl_summed_costs* costs) { delete costs; }

int fl_summed_operators(const fl_summed_costs* summed, int number, int count,
                        const int32_t* degrees, int64_t* computation, int64_t* synchronisation) {
  return fl::guarded(-1, [&] {
    const fl::Problem& p = summed->costs.problem();
    const fl::OpId op(number);
    // One for all splits of the call, since they share rectangles.
    fl::Geometry geometry(p);
    for (const auto& its : degrees_of(p, op, count, degrees)) {
      const auto& numbers = p.costs.number_of[p.costs.class_of[op]];
      // Times come from the cost table, so each split has to stand there.
      const auto entry = numbers.find(its);
      if (entry == numbers.end()) {
        throw std::invalid_argument("the cost table lacks a split of operator '" +
                                    p.graph.operators[op].name + "'");
      }
      const fl::OperatorCost cost = summed->costs.of_operator(geometry, op, entry->second);
      *computation++ = cost.computation;
      *synchronisation++ = cost.synchronisation;
    }
    return 0;
  });
}

int fl_summed_transfers(fl_summed_costs* summed, int writer, int writers,
                        const int32_t* writer_degrees, int reader, int operand, int readers,
                        const int32_t* reader_degrees, int64_t* costs) {
  return fl::guarded(-1, [&] {
    const fl::Problem& p = summed->costs.problem();
    const auto theirs = degrees_of(p, fl::OpId(writer), writers, writer_degrees);
    const auto its = degrees_of(p, fl::OpId(reader), readers, reader_degrees);
    const auto result =
        summed->costs.of_transfer(fl::OpId(writer), theirs, fl::OpId(reader), operand, its);
    std::copy(result.begin(), result.end(), costs);
    return 0;
  });
}
