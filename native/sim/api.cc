// The simulator's part of the C ABI of libflexlegion_core.
//
// A problem (graph, machine, cost table) is made once, and its cost table is filled bit by bit
// (splits_api.cc): an entry is a way to split a class of operators. A simulator then holds a
// strategy of that problem, tries proposals, and hands out timelines.
//
// Everything that comes in is checked here, so that no other file of the simulator has to ask
// whether an index exists or a time is below kMaxTime. That bound also keeps the sums of a
// simulation within 64 bits.
#include "sim/handles.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "sim/machine_api.h"
#include "sim/memory.h"
#include "support/error.h"

namespace fl = flexlegion;

namespace {

using fl::same;
static_assert(same(FL_FULL, fl::Algorithm::full) && same(FL_DELTA, fl::Algorithm::delta) &&
              same(FL_UNFOLDED, fl::Algorithm::unfolded));
static_assert(same(FL_FLOW_VALUE, fl::FlowKind::value) &&
              same(FL_FLOW_GRADIENT, fl::FlowKind::gradient) &&
              same(FL_FLOW_WEIGHTS, fl::FlowKind::weights) &&
              same(FL_FLOW_ITERATION, fl::FlowKind::iteration) &&
              same(FL_FLOW_PARTIAL, fl::FlowKind::partial));
static_assert(same(FL_SIMULATED, fl::Verdict::simulated) &&
              same(FL_OVERLOADED, fl::Verdict::overloaded) &&
              same(FL_OVERLONG, fl::Verdict::overlong) && same(FL_STOPPED, fl::Verdict::stopped) &&
              same(FL_OUT_OF_MEMORY, fl::Verdict::out_of_memory) &&
              same(FL_TOO_FINE, fl::Verdict::too_fine));
static_assert(same(FL_CONTENT_BATCH, fl::Content::batch) &&
              same(FL_CONTENT_ACTIVATIONS, fl::Content::activation) &&
              same(FL_CONTENT_GRADIENTS, fl::Content::gradient) &&
              same(FL_CONTENT_WEIGHTS, fl::Content::weight) &&
              same(FL_CONTENT_WEIGHT_GRADIENTS, fl::Content::weight_gradient) &&
              same(FL_CONTENT_OPTIMIZER_STATES, fl::Content::optimizer_state) &&
              FL_CONTENT_OPTIMIZER_STATES + 1 == fl::kContents);

fl::LinearCost linear_of(const fl_linear& linear) {
  if (linear.overhead < 0 || linear.overhead > fl::kMaxTime || linear.bytes_per_second < 1 ||
      linear.bytes_per_second > fl::kMaxRate) {
    throw std::invalid_argument("a pass needs a positive rate and no negative overhead");
  }
  return {linear.overhead, linear.bytes_per_second, fl::contention_of(linear.contention)};
}

fl::RuntimeCosts runtime_of(const fl_runtime& runtime) {
  for (const std::int64_t time : {runtime.iteration, runtime.launch, runtime.task, runtime.crossing,
                                  runtime.dispatch, runtime.wake}) {
    if (time < 0 || time > fl::kMaxTime) {
      throw std::invalid_argument("the runtime takes no negative time");
    }
  }
  if (runtime.cores < 0) throw std::invalid_argument("a memory has no negative number of cores");
  return {runtime.iteration, runtime.launch, runtime.task, runtime.crossing,
          runtime.dispatch,  runtime.wake,   runtime.cores};
}

// The cost table without its splits, which are added later.
fl::CostTable cost_table(const fl::Graph& graph, const int32_t* class_of,
                         const fl_machine& machine) {
  fl::CostTable costs;
  const std::size_t ops = graph.operators.size();
  for (fl::OpId op : graph.operators.ids()) {
    // The first operator of a class stands for it, so a class is named by an operator that comes no
    // later.
    const fl::OpId like(class_of[op.value]);
    fl::check_index(like.value, op.value + 1, "earlier operator");
    if (!fl::same_access(graph, op, like)) {
      throw std::invalid_argument("operators '" + graph.operators[op].name + "' and '" +
                                  graph.operators[like].name + "' differ in more than name");
    }
    costs.class_of.push_back(like);
  }
  costs.splits.resize(ops);
  costs.number_of.resize(ops);
  for (int kind = 0; kind < machine.kinds; ++kind) {
    const fl_rates& rates = machine.rates[kind];
    costs.runtime.push_back(runtime_of(rates.runtime));
    costs.load.push_back(linear_of(rates.load));
    costs.update.push_back(linear_of(rates.update));
    costs.sum.push_back(linear_of(rates.sum));
    for (const fl_linear* linear : {&rates.load, &rates.update, &rates.sum}) {
      costs.contended = costs.contended || linear->contention > 0;
    }
  }
  return costs;
}

}  // namespace

void fl::check_index(std::int64_t value, std::int64_t count, const char* what) {
  if (value < 0 || value >= count) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(value));
  }
}

fl::OpId fl::checked_op(const Graph& graph, int op) {
  check_index(op, static_cast<std::int64_t>(graph.operators.size()), "operator");
  return OpId(op);
}

fl::Detail fl::checked_detail(int detail) {
  check_index(detail, FL_BUNDLES + 1, "detail");
  return static_cast<Detail>(detail);
}

fl::ParallelConfig fl::split_by(const Graph& graph, OpId op, std::int64_t n_degrees,
                                const std::int32_t* degrees) {
  ParallelConfig config;
  config.degrees.assign(degrees, degrees + n_degrees);
  // Degrees of any size come here, so the product is cut off before it overflows. check_config()
  // refuses such degrees.
  std::int64_t tasks = 1;
  for (int degree : config.degrees) {
    tasks = std::clamp<std::int64_t>(tasks * degree, 0, kMaxTasks);
  }
  config.devices.assign(static_cast<std::size_t>(tasks), 0);
  check_config(graph, op, config);
  return config;
}

std::int32_t fl::contention_of(std::int32_t contention) {
  if (contention < 0 || contention > kMaxContention) {
    throw std::invalid_argument("beside neighbours, a task takes no less time");
  }
  return contention;
}

// The order of issue depends on which operators are run again and whose weights are sharded how. So
// strategies that differ in these have a problem each: a copy whose graph says so, with the facts
// that follow, and with machine and costs in common. Simulators refer to it, so it is kept as long
// as this one. Threads of a search may ask at the same time.
const fl::Problem& fl_problem::of(const fl_strategy& strategy) {
  Order order;
  for (const auto& [op, config] : fl::configs_of(strategy)) {
    fl::checked_op(problem.graph, op.value);
    const fl::Sharding sharding = fl::sharding_of(problem, op, config);
    if (config.again || sharding != fl::Sharding::states) order[op] = {config.again, sharding};
  }
  if (order.empty()) return problem;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<fl::Problem>& known = in_other_orders_[order];
  if (!known) {
    known = std::make_unique<fl::Problem>(problem);
    for (const auto& [op, its] : order) {
      std::tie(known->graph.operators[op].again, known->graph.operators[op].sharding) = its;
    }
    known->facts = fl::facts_of(known->graph, known->outputs, problem.facts.optimizer);
  }
  return *known;
}

// In ascending order of operators, each once. The problem is of one order of issue
// (fl_problem::of), so a configuration that asks for another one is refused.
fl::PartialStrategy fl::configs_of(const fl::Problem& problem, const fl_strategy& strategy) {
  fl::PartialStrategy configs;
  for (const auto& [op, config] : configs_of(strategy)) {
    fl::checked_op(problem.graph, op.value);
    fl::check_config(problem.graph, op, config);
    for (int device : config.devices) fl::check_index(device, problem.machine.devices(), "device");
    const auto& numbers = problem.costs.number_of[problem.costs.class_of[op]];
    const auto entry = numbers.find(config.degrees);
    if (entry == numbers.end()) {
      std::string text;
      for (int degree : config.degrees) text += " " + std::to_string(degree);
      throw std::invalid_argument("the cost table has no times for operator '" +
                                  problem.graph.operators[op].name + "' split by" + text);
    }
    if (config.again != problem.graph.operators[op].again) {
      throw std::invalid_argument("operator '" + problem.graph.operators[op].name +
                                  "': whether it is run again is not what a proposal can change");
    }
    if (fl::sharding_of(problem, op, config) != problem.graph.operators[op].sharding) {
      throw std::invalid_argument("operator '" + problem.graph.operators[op].name +
                                  "': what of its weights is sharded is not what a proposal can "
                                  "change");
    }
    // Choices that make no difference are dropped, so that equal strategies compare equal.
    const bool shares = problem.split(op, entry->second).can_sum_by_shards;
    const fl::Sums sums = shares ? config.sums : fl::Sums::readers;
    const bool hierarchical = config.hierarchical && fl::can_be_hierarchical(problem, op);
    const int buffers = std::min(config.buffers, problem.graph.micro_batches);
    configs.emplace_back(
        op, fl::PricedConfig{entry->second, sums, config.devices, hierarchical, buffers});
  }
  return configs;
}

// Operators come in ascending order, each once. If there are as many as in the graph, the i-th
// configuration is therefore that of operator i.
fl::PricedStrategy fl::strategy_of(const fl::Problem& problem, const fl_strategy& strategy) {
  fl::PricedStrategy configs;
  for (auto& [op, config] : configs_of(problem, strategy)) configs.push_back(std::move(config));
  if (configs.size() != problem.graph.operators.size()) {
    throw std::invalid_argument("a strategy needs one configuration an operator");
  }
  return configs;
}

// Degrees come from the cost table; what is run again or sharded, from the problem's graph.
fl::StrategyArrays fl::arrays_of(const fl::Problem& problem, const PricedStrategy& strategy) {
  Strategy configs;
  for (OpId op : strategy.ids()) {
    const PricedConfig& config = strategy[op];
    configs.push_back({problem.split(op, config.split).degrees, config.devices, config.sums,
                       config.hierarchical && can_be_hierarchical(problem, op), config.buffers,
                       problem.graph.operators[op].again, problem.graph.operators[op].sharding});
  }
  return StrategyArrays(std::move(configs));
}

// The problem copies what it needs, so the caller's arrays may go. Its cost table has no splits
// yet: strategies can be read when fl_problem_add_splits() has brought theirs.
fl_problem* fl_problem_create(const fl_graph* graph, const fl_machine* machine,
                              const int32_t* class_of, int optimizer_states, int clips, int lazy,
                              const fl_space* space, fl_graph_facts* out) {
  return fl::guarded(static_cast<fl_problem*>(nullptr), [&] {
    fl::WantedGraph wanted(*graph);
    fl::Problem problem;
    problem.graph = std::move(wanted.graph);
    fl::check_index(optimizer_states, fl::kMaxStates + 1, "number of optimizer states");
    problem.outputs = std::move(wanted.outputs);
    problem.facts =
        fl::facts_of(problem.graph, problem.outputs, {optimizer_states, clips != 0, lazy != 0});
    problem.machine = fl::machine_of(*machine);
    problem.costs = cost_table(problem.graph, class_of, *machine);
    problem.in_order = space != nullptr;
    if (space != nullptr) {
      if (space->capacity < 0 || space->always < 0) {
        throw std::invalid_argument("a bad number of bytes");
      }
      problem.program_capacity = space->capacity;
      problem.program_always = space->always;
    }
    auto handle = std::make_unique<fl_problem>(std::move(problem));
    *out = handle->facts.view();
    return handle.release();
  });
}

void fl_problem_destroy(fl_problem* problem) { delete problem; }

// The strategy is simulated without a limit, and whether or not memories hold it: there is always a
// timeline to look at. fl_problem_judge() simulates less.
fl_simulator* fl_simulator_create(fl_problem* problem, const fl_strategy* strategy, int64_t memory,
                                  int64_t* iteration_time) {
  return fl::guarded(static_cast<fl_simulator*>(nullptr), [&] {
    if (memory < 0) throw std::invalid_argument("a negative size of memory");
    const fl::Problem& its = problem->of(*strategy);
    const auto configs = fl::strategy_of(its, *strategy);
    auto handle = std::make_unique<fl_simulator>(its);
    // Otherwise the process would be ended by the system, without a word.
    if (!handle->simulator.set(configs, memory / fl::kTaskBytes)) throw std::bad_alloc();
    *iteration_time = handle->simulator.iteration_time();
    return handle.release();
  });
}

void fl_simulator_destroy(fl_simulator* simulator) { delete simulator; }

// The simulator is made for this call, so threads can judge strategies of one problem side by side.
int fl_problem_judge(fl_problem* problem, const fl_strategy* strategy, int detail, int64_t limit,
                     int simulable, fl_judged* out) {
  return fl::guarded(-1, [&] {
    if (limit < 0) throw std::invalid_argument("a negative limit");
    const fl::Problem& its = problem->of(*strategy);
    const auto configs = fl::strategy_of(its, *strategy);
    fl::Simulator simulator(its, fl::checked_detail(detail));
    simulator.most_tasks = FL_MOST_JUDGED;
    if (simulable != 0) simulator.most_transfers = FL_MOST_JUDGED;
    const fl::Verdict verdict = simulator.judge(configs, limit == 0 ? fl::kNever : limit);
    *out = {};
    if (verdict == fl::Verdict::simulated) out->iteration_time = simulator.iteration_time();
    if (verdict != fl::Verdict::too_fine) {
      out->missing = simulator.graph().missing_memory();
      out->tasks = simulator.graph().tasks();
      out->all_tasks = simulator.graph().all_tasks();
    }
    return static_cast<int>(verdict);
  });
}

int fl_simulator_propose(fl_simulator* handle, const fl_strategy* changes, int algorithm,
                         int64_t limit, int64_t* iteration_time) {
  return fl::guarded(-1, [&] {
    fl::check_index(algorithm, FL_UNFOLDED + 1, "algorithm");
    const auto configs = fl::configs_of(handle->simulator.graph().problem(), *changes);
    handle->simulator.reject();  // of a proposal that is still open
    const fl::Verdict verdict = handle->simulator.propose(
        configs, static_cast<fl::Algorithm>(algorithm), limit > 0 ? limit : fl::kNever);
    // Without a timeline there is nothing to read of the proposal: what is held is to be seen.
    if (verdict == fl::Verdict::simulated) {
      *iteration_time = handle->simulator.iteration_time();
    } else {
      handle->simulator.reject();
    }
    return static_cast<int>(verdict);
  });
}

// Ends a proposal. One that was not simulated was rejected at once, so there is nothing to accept.
int fl_simulator_decide(fl_simulator* simulator, int accept) {
  return fl::guarded(-1, [&] {
    if (accept == 0) {
      simulator->simulator.reject();
    } else if (simulator->simulator.proposed()) {
      simulator->simulator.accept();
    } else {
      throw std::invalid_argument("no proposal was simulated to be accepted");
    }
    return 0;
  });
}

namespace {

// The tasks of a round: those of launches, then hops. A timeline has room for all tasks in each
// round; those that a round does not have keep an end of 0, while others end later, as no task
// takes less than 1 ns.
void add_round(const fl::TaskGraph& graph, const fl::Timeline& line, int round,
               std::vector<fl_task>& tasks) {
  const int devices = graph.problem().machine.devices();
  for (std::size_t l = 0; l < graph.blocks().size(); ++l) {
    const fl::LaunchKey& key = graph.launches()[l];
    const fl::Block& block = graph.blocks()[l];
    for (int k = 0; k < static_cast<int>(block.device.size()); ++k) {
      const int task = line.first_task[l] + k;
      if (!line.is_there(round, task)) continue;
      const std::size_t t = line.entry(round, task);
      // What a task took beyond its own time is the runtime's and, the rest, the neighbours'.
      const std::int64_t runtime = line.runtime_time.empty() ? 0 : line.runtime_time[t];
      // The fields of fl_task in their order. A task of a launch is no transfer: flow, memories and
      // hop are -1, bytes are 0.
      tasks.push_back({block.device[k], static_cast<int32_t>(key.pass), fl::number_of(key), k, -1,
                       -1, -1, -1, -1, round, 0, block.exe_time[k], line.ready_time[t],
                       line.start_time[t], line.end_time[t],
                       line.end_time[t] - line.start_time[t] - block.exe_time[k] - runtime,
                       runtime});
    }
  }
  for (std::size_t f = 0; f < graph.flows().size(); ++f) {
    const fl::Flow& flow = *graph.flows()[f];
    const fl::FlowId& flow_id = graph.flow_ids()[f];
    for (int h = 0; h < static_cast<int>(flow.hops.size()); ++h) {
      const int task = line.first_hop[f] + h;
      if (!line.is_there(round, task)) continue;
      const std::size_t t = line.entry(round, task);
      const fl::Hop& hop = flow.hops[h];
      const fl::Transfer& transfer = flow.transfers[hop.transfer];
      // A hop is listed by the task that wrote what it carries; of a bundle, by the first of them.
      const fl::TaskRef writer = graph.writer_of(static_cast<int>(f), transfer.writer);
      const fl::LaunchKey& key = graph.launches()[writer.party];
      tasks.push_back({devices + hop.link, static_cast<int32_t>(key.pass), fl::number_of(key),
                       writer.part, static_cast<int32_t>(flow_id.kind), fl::number_of(flow_id),
                       transfer.from, transfer.to, h - transfer.first_hop, round, transfer.bytes,
                       hop.time, line.ready_time[t], line.start_time[t], line.end_time[t], 0, 0});
    }
  }
}

}  // namespace

// Loads are listed by devices, then links.
int fl_simulator_timeline(fl_simulator* handle, fl_timeline* out) {
  return fl::guarded(-1, [&] {
    const fl::TaskGraph& graph = handle->simulator.graph();
    const fl::Timeline& line = handle->simulator.timeline();
    handle->computation = graph.computation();
    handle->moved = graph.moved_bytes();
    handle->peak = fl::peak_memory(graph, line);
    handle->contents = fl::memory_contents(graph);
    *out = {line.iteration_time,     handle->computation.data(), handle->moved.data(),
            graph.crossings(),       graph.load().data(),        graph.memory().data(),
            handle->contents.data(), handle->peak.data(),        line.played};
    return 0;
  });
}

// A call of its own, since there may be millions of tasks, and few callers look at them.
int fl_simulator_tasks(fl_simulator* handle, fl_tasks* out) {
  return fl::guarded(-1, [&] {
    const fl::TaskGraph& graph = handle->simulator.graph();
    const fl::Timeline& line = handle->simulator.timeline();
    std::vector<fl_task>& tasks = handle->tasks;
    tasks.clear();
    tasks.reserve(static_cast<std::size_t>(graph.tasks()));
    for (int round = 0; round < line.rounds; ++round) add_round(graph, line, round, tasks);
    *out = {static_cast<std::int32_t>(tasks.size()), tasks.data()};
    return 0;
  });
}
