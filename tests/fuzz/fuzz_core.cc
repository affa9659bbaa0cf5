// Thousands of random sequences of calls to libflexlegion_core, right and wrong, for a build with
// sanitizers: nothing may crash, every failure has a message of its own, what the delta and the
// full algorithm say of the same proposal is the same, and a strategy takes the memory that its
// plan takes.
//
// Usage: fuzz_core [seconds] [seed]    (default: 15 seconds, seed 1; prints the seed that failed)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "random_graph.h"

namespace {

using fuzz::Source;

constexpr std::int64_t kMemory = std::int64_t{1} << 30;
constexpr const char* kSentinel = "a shard cannot have less than no bytes";

std::uint64_t sequence_seed = 0;
long long calls = 0, failures = 0;

const char* last_error() {
  fl_error error;
  fl_last_error(&error);
  return error.message;
}

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "sequence %llu: %s (last message: %s)\n",
               static_cast<unsigned long long>(sequence_seed), what, last_error());
  std::abort();
}

void require(bool holds, const char* what) {
  if (!holds) die(what);
}

// Runs one call. If it fails, it has to have left a message that was not there before.
template <typename Call>
auto checked(Call&& call) {
  const fl_graph less = {-1, 0, 0, 1, 0, 0, 0, 0, nullptr, nullptr, nullptr, nullptr};
  require(fl_plan_create(&less, nullptr, 0, 0, nullptr) == nullptr, "the sentinel did not fail");
  const auto result = call();
  ++calls;
  bool failed;
  if constexpr (std::is_pointer_v<decltype(call())>) {
    failed = result == nullptr;
  } else {
    failed = result < 0;
  }
  if (failed) {
    ++failures;
    require(std::strcmp(last_error(), kSentinel) != 0, "a failure without a message");
    require(std::strlen(last_error()) > 0, "a failure with an empty message");
  }
  return result;
}

// A strategy, or a part of one.
class Strategy {
 public:
  void set(Source& random, int op, std::vector<std::int32_t> degrees,
           std::vector<std::int32_t> devices, bool again, int sharding) {
    int n_degrees = static_cast<int>(degrees.size()), n_devices = static_cast<int>(devices.size());
    if (random.hostile && random.chance(0.01)) n_degrees = random.between(-1, n_degrees + 1);
    if (random.hostile && random.chance(0.01)) n_devices = random.between(-1, n_devices + 1);
    degrees.push_back(1);
    devices.push_back(0);
    const int sums = random.twisted32(random.upto(FL_SUMS_SHARDS));
    const int buffers = random.twisted32(random.between(1, 4));
    configs_.push_back({op, n_degrees, n_devices, sums, random.chance(0.6), buffers, again,
                        random.twisted32(sharding),
                        numbers_.emplace_back(std::move(degrees)).data(),
                        numbers_.emplace_back(std::move(devices)).data()});
    view_ = {static_cast<std::int32_t>(configs_.size()), configs_.data()};
  }
  const fl_strategy* view() const { return &view_; }

 private:
  std::deque<std::vector<std::int32_t>> numbers_;
  std::vector<fl_config> configs_;
  fl_strategy view_{};
};

// All calls about one graph.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) { random_.hostile = random_.chance(0.5); }

  void run() {
    const fl_graph less = {0, -1, 0, 1, 0, 0, 0, 0, nullptr, nullptr, nullptr, nullptr};
    require(fl_plan_create(&less, nullptr, 0, 0, nullptr) == nullptr, "less than no launches");
    const fuzz::Machine machine(random_);
    devices_ = static_cast<int>(machine.memory_of.size());
    all_ = devices_ + machine.n_links;
    kinds_ = machine.kinds;
    make_problem(machine);
    if (problem_ == nullptr) {  // what is wrong was found: go on with a graph that is right
      const bool hostile = std::exchange(random_.hostile, false);
      make_problem(machine);
      random_.hostile = hostile;
    }
    plan();
    if (problem_ != nullptr) {
      compare_memory(machine.memory_of);
      maker_.reset();  // a problem has what it needs of the graph
      prepare();
      for (int i = random_.between(1, 2); i > 0; --i) simulate();
      for (int i = random_.between(0, 2); i > 0; --i) search();
      summed();
    }
    fl_problem_destroy(problem_);
  }

 private:
  void make_graph() {
    maker_.emplace(random_);
    facts_ = maker_->make();
    graph_ = maker_->graph();
    graph_.shard_bytes = random_.chance(0.7) ? random_.upto(64) : 0;
    graph_.fused_launches = random_.chance(0.4) ? 0 : random_.upto(5);
    graph_.keeps_tensors = random_.chance(0.2);
    graph_.micro_batches = random_.chance(0.5) ? 1 : random_.upto(4);
    // Devices of nodes, in order or not.
    node_of_.clear();
    const int in_node = random_.between(1, 3);
    for (int d = random_.chance(0.4) ? 0 : random_.between(1, 8); d > 0; --d) {
      const int next = static_cast<int>(node_of_.size()) / in_node;
      node_of_.push_back(random_.twisted32(random_.chance(0.9) ? next : random_.upto(3)));
    }
    graph_.n_devices = static_cast<std::int32_t>(node_of_.size());
    graph_.node_of = node_of_.data();
    outputs_.clear();
    for (int i = random_.upto(3); i > 0; --i) {
      outputs_.push_back(random_.twisted32(random_.upto(graph_.n_tensors - 1)));
    }
    graph_.n_outputs = static_cast<std::int32_t>(outputs_.size());
    graph_.outputs = outputs_.data();
  }

  void make_problem(const fuzz::Machine& machine) {
    make_graph();
    std::vector<std::int32_t> class_of;
    for (int op = 0; op < ops(); ++op) {
      class_of.push_back(random_.twisted32(random_.chance(0.02) ? random_.upto(op) : op));
    }
    classes_ = true;
    for (int op = 0; op < ops(); ++op) classes_ = classes_ && class_of[op] == op;
    class_of.push_back(0);
    states_ = random_.twisted32(random_.upto(2));
    clips_ = random_.upto(1);
    lazy_ = random_.upto(1);
    in_space_ = random_.chance(0.2);
    const int room = 1 << random_.upto(14);
    const fl_space space = {random_.twisted(room), random_.twisted(random_.upto(100))};
    const fl_machine view = machine.view();
    fl_graph_facts facts;
    problem_ = checked([&] {
      return fl_problem_create(&graph_, &view, class_of.data(), states_, clips_, lazy_,
                               in_space_ ? &space : nullptr, &facts);
    });
  }

  int ops() const { return static_cast<int>(facts_.ops.size()); }

  // Degrees, one a dimension; of at most 16 tasks, unless wrong.
  std::vector<std::int32_t> degrees_of(int op) {
    std::vector<std::int32_t> result;
    int left = 16;
    const fuzz::Op& its = facts_.ops[static_cast<std::size_t>(op)];
    for (std::size_t d = 0; d < its.space.size(); ++d) {
      const int most = its.kinds[d] == FL_NONE || random_.chance(0.5)
                           ? 1
                           : static_cast<int>(std::min<std::int64_t>(its.space[d], left));
      const int degree = random_.between(1, most);
      left /= degree;
      result.push_back(random_.twisted32(degree));
    }
    return result;
  }

  static std::int64_t product(const std::vector<std::int32_t>& degrees) {
    std::int64_t tasks = 1;
    for (int degree : degrees) tasks = std::clamp<std::int64_t>(tasks * degree, 0, 1 << 16);
    return tasks;
  }

  std::vector<std::int32_t> some_degrees(int op) {
    const auto& known = splits_[static_cast<std::size_t>(op)];
    const bool use_known = !known.empty() && !(random_.hostile && random_.chance(0.03));
    return use_known ? random_.one_of(known) : degrees_of(op);
  }

  void set(int op, Strategy& strategy) {
    const std::vector<std::int32_t> degrees = some_degrees(op);
    std::vector<std::int32_t> devices;
    for (std::int64_t k = std::min<std::int64_t>(product(degrees), 64); k > 0; --k) {
      devices.push_back(random_.twisted32(random_.upto(std::max(devices_, 1) - 1)));
    }
    // A strategy's proposals cannot change what is run again, or sharded.
    const auto o = static_cast<std::size_t>(op);
    const bool other = random_.hostile && random_.chance(0.01);
    const bool mixed = random_.hostile && random_.chance(0.01);
    const int sharding = mixed ? random_.upto(FL_SHARDING_WEIGHTS) : sharding_[o];
    strategy.set(random_, random_.twisted32(op), degrees, devices, again_[o] != other, sharding);
  }

  void set_all(Strategy& strategy) {
    // Often as in the last strategy.
    if (random_.chance(0.3)) {
      const double often = random_.one_of(shares_);
      for (int op = 0; op < ops(); ++op) {
        const auto o = static_cast<std::size_t>(op);
        again_[o] = !facts_.ops[o].is_loss && random_.chance(often);
      }
    }
    if (random_.chance(0.3)) {
      const double often = random_.one_of(shares_);
      for (int& sharding : sharding_) {
        sharding = random_.chance(often) ? random_.upto(FL_SHARDING_WEIGHTS) : 0;
      }
    }
    for (int op = 0; op < ops(); ++op) {
      if (!random_.hostile || !random_.chance(0.01)) set(op, strategy);
    }
  }

  void plan() {
    splits_.assign(facts_.ops.size(), {});
    again_.assign(facts_.ops.size(), false);
    sharding_.assign(facts_.ops.size(), 0);
    Strategy strategy;
    set_all(strategy);
    fl_plan_arrays all;
    fl_plan* const plan = checked([&] {
      return fl_plan_create(&graph_, strategy.view(), random_.twisted32(random_.upto(2)),
                            random_.upto(1), &all);
    });
    if (plan == nullptr) return;
    std::int64_t tasks = 0, requirements = 0, tiles = 0, bounds = 0;
    for (const fl_launch* l = all.launches; l != all.launches + all.n_launches; ++l) {
      tasks += l->tasks;
      for (int r = 0; r < l->requirements; ++r) {
        tiles += l->tasks;
        bounds += std::int64_t{2} * l->tasks * all.requirements[requirements++].rank;
      }
    }
    require(tasks == all.n_devices && requirements == all.n_requirements && tiles == all.n_tiles &&
                bounds == all.n_bounds,
            "lengths of a plan's arrays");
    checked([&] { return fl_plan_bytes_on_device(plan, random_.between(0, devices_)); });
    fl_plan_destroy(plan);
  }

  // The simulator finds in its flows what the plan finds in its requirements. The plan tells it of
  // devices that have a memory of their own.
  void compare_memory(const std::vector<std::int32_t>& memory_of) {
    Strategy strategy;
    set_all(strategy);
    prepare();
    fl_plan_arrays all;
    fl_plan* const plan =
        checked([&] { return fl_plan_create(&graph_, strategy.view(), states_, clips_, &all); });
    std::int64_t time;
    fl_simulator* const simulator =
        checked([&] { return fl_simulator_create(problem_, strategy.view(), kMemory, &time); });
    fl_timeline timeline;
    // Operators that are wrongly said to be of one class are cut alike.
    const bool known = plan != nullptr && simulator != nullptr && classes_ &&
                       fl_simulator_timeline(simulator, &timeline) == 0;
    for (int device = 0; known && device < devices_; ++device) {
      const std::int32_t memory = memory_of[static_cast<std::size_t>(device)];
      if (std::count(memory_of.begin(), memory_of.end(), memory) > 1) continue;
      require(timeline.allocated[memory] == fl_plan_bytes_on_device(plan, device),
              "other memory than the plan's");
    }
    fl_simulator_destroy(simulator);
    fl_plan_destroy(plan);
  }

  // Ways to split an operator; all have as many degrees.
  std::vector<std::int32_t> several_degrees(int op, std::vector<std::vector<std::int32_t>>& every) {
    std::vector<std::int32_t> flat;
    for (int i = random_.between(1, 3); i > 0; --i) {
      const auto degrees = degrees_of(op);
      if (!every.empty() && degrees.size() != every.front().size()) continue;
      every.push_back(degrees);
      flat.insert(flat.end(), degrees.begin(), degrees.end());
    }
    return flat;
  }

  void prepare() {
    for (int i = random_.between(2 * ops(), 6 * ops()); i > 0; --i) add_split();
  }

  void add_split() {
    if (ops() == 0) return;
    const int op = random_.upto(ops() - 1);
    std::vector<std::vector<std::int32_t>> every;
    const auto flat = several_degrees(op, every);
    const fl_splits splits = {random_.twisted32(op), static_cast<std::int32_t>(every.size()),
                              static_cast<std::int32_t>(every.front().size()), flat.data()};
    fl_shapes shapes;
    if (checked([&] { return fl_problem_shapes(problem_, &splits, &shapes); }) < 0) return;
    const int operands = facts_.ops[static_cast<std::size_t>(op)].operands;
    for (std::int64_t k = 0; k < shapes.n_tasks; ++k) {
      require(shapes.shape_of[k] >= 0 && shapes.shape_of[k] < shapes.n_shapes, "a shape that is");
    }
    const std::int64_t n = 2 * shapes.n_shapes * std::clamp(kinds_, 0, 4);
    std::vector<std::int64_t> times;
    const int largest = random_.chance(0.5) ? 4 : 1000;
    for (std::int64_t i = 0; i < n; ++i) times.push_back(random_.twisted(random_.upto(largest)));
    const bool contended = random_.chance(0.3);
    std::vector<std::int32_t> contention(static_cast<std::size_t>(n) + 1);
    for (std::int64_t i = 0; contended && i < n; ++i) {
      contention[static_cast<std::size_t>(i)] = random_.twisted32(random_.upto(1'500));
    }
    const int less = random_.hostile && random_.chance(0.02) ? 1 : 0;
    times.push_back(0);
    // For each split and operand, three numbers: of states, gradients and weights in shards.
    const std::int64_t n_kept = 3 * static_cast<std::int64_t>(operands) * splits.n_splits;
    std::vector<std::int64_t> kept;
    std::vector<std::int32_t> placed;
    for (std::int64_t i = 0; i <= n_kept; ++i) {
      kept.push_back(random_.twisted(random_.upto(1'000)));
      placed.push_back(random_.upto(2));
    }
    const bool keeps = in_space_ != (random_.hostile && random_.chance(0.02));
    const fl_split_costs costs = {n - less,
                                  times.data(),
                                  contended ? contention.data() : nullptr,
                                  n_kept + less,
                                  keeps ? kept.data() : nullptr,
                                  keeps ? placed.data() : nullptr};
    if (checked([&] { return fl_problem_add_splits(problem_, &splits, &costs); }) < 0) return;
    auto& known = splits_[static_cast<std::size_t>(splits.op)];
    known.insert(known.end(), every.begin(), every.end());
  }

  std::vector<fl_task> tasks_of(fl_simulator* simulator) {
    fl_timeline timeline;
    if (checked([&] { return fl_simulator_timeline(simulator, &timeline); }) < 0) return {};
    fl_tasks its;
    if (checked([&] { return fl_simulator_tasks(simulator, &its); }) < 0) return {};
    const std::vector<fl_task> tasks(its.tasks, its.tasks + its.n_tasks);
    std::int64_t latest = 0;
    for (const fl_task& task : tasks) {
      require(task.device >= 0 && task.device < all_, "a task's device");
      require(task.ready_time >= 0 && task.start_time >= task.ready_time &&
                  task.end_time >= task.start_time + task.exe_time,
              "a task's times");
      latest = std::max(latest, task.end_time);
    }
    require(latest <= timeline.iteration_time, "no end is after the iteration");
    return tasks;
  }

  static void require_same(const std::vector<fl_task>& a, const std::vector<fl_task>& b) {
    require(a.size() == b.size() &&
                (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(fl_task)) == 0),
            "two timelines that differ");
  }

  void simulate() {
    Strategy start;
    set_all(start);
    std::int64_t time;
    fl_simulator* const simulator =
        checked([&] { return fl_simulator_create(problem_, start.view(), kMemory, &time); });
    if (simulator == nullptr) return;
    std::vector<fl_task> held = tasks_of(simulator);
    for (int i = random_.between(0, 12); i > 0; --i) {
      if (random_.chance(0.1)) add_split();
      if (random_.chance(0.1)) {
        fl_simulator_decide(simulator, 0);
        require(checked([&] { return fl_simulator_decide(simulator, 1); }) < 0,
                "nothing to accept");
      }
      propose(simulator, held, time);
    }
    fl_simulator_destroy(simulator);
  }

  // `time`: of what is held.
  void propose(fl_simulator* simulator, std::vector<fl_task>& held, std::int64_t& time) {
    Strategy changes;
    for (int i = random_.upto(std::min(ops(), 3)); i >= 0 && ops() > 0; --i) {
      set(random_.upto(ops() - 1), changes);
    }
    std::int64_t proposed = time;
    const auto call = [&](int algorithm, std::int64_t limit) {
      return checked([&] {
        return fl_simulator_propose(simulator, changes.view(), algorithm, limit, &proposed);
      });
    };
    const std::int64_t limit =
        random_.twisted(std::max<std::int64_t>(1, time + random_.between(-9, 9)));
    const int limited = random_.chance(0.4) ? call(random_.upto(1), limit) : FL_SIMULATED;
    if (limited > 0 && random_.chance(0.5)) tasks_of(simulator);
    const int verdict = call(FL_DELTA, 0);
    if (verdict == FL_SIMULATED) {
      const std::vector<fl_task> by_delta = tasks_of(simulator);
      const std::int64_t time_by_delta = proposed;
      require(call(FL_FULL, 0) == FL_SIMULATED, "a verdict that differs");
      const std::vector<fl_task> by_full = tasks_of(simulator);
      require_same(by_delta, by_full);
      require(time_by_delta == proposed, "two iteration times");
      const bool rejected =
          limited == FL_OVERLOADED || limited == FL_OVERLONG || limited == FL_STOPPED;
      require(!rejected || proposed > limit, "turned down within the limit");
      // So no lower bound is above it.
      require(call(random_.upto(1), std::max<std::int64_t>(1, proposed)) == FL_SIMULATED,
              "turned down at the limit");
      if (random_.chance(0.4)) {
        require(fl_simulator_decide(simulator, 1) == 0, "accept");
        held = by_full;
        time = proposed;
        return;
      }
    } else if (verdict > 0) {
      require(fl_simulator_decide(simulator, 1) < 0, "accepting what was not simulated");
      if (random_.chance(0.5)) tasks_of(simulator);
    }
    if (random_.chance(0.9)) {
      require(fl_simulator_decide(simulator, 0) == 0, "reject");
      require_same(tasks_of(simulator), held);
    }
  }

  fl_chain_options options(bool early, int algorithm) {
    return {random_.one_of(temperatures_),
            random_.chance(0.7) ? 0 : 1000,
            random_.chance(0.3),
            random_.chance(0.5),
            random_.chance(0.5),
            random_.chance(0.3),
            early,
            random_.twisted32(algorithm)};
  }

  fl_chain* chain(const Strategy& start, const std::vector<std::int32_t>& groups,
                  std::uint64_t seed, int detail, const fl_chain_state** state) {
    const int n = static_cast<int>(groups.size()) - 1;
    return checked([&] {
      return fl_chain_create(problem_, n, groups.data(), seed, start.view(), detail, state);
    });
  }

  void search() {
    Strategy start;
    set_all(start);
    std::vector<std::int32_t> groups;
    for (int op = 0; op < ops(); ++op) groups.push_back(random_.chance(0.9) ? op : 0);
    groups.push_back(0);
    if (random_.hostile && random_.chance(0.05)) groups.push_back(random_.upto(3));
    const std::uint64_t seed = random_.bits();
    const fl_chain_state *state, *others;
    const int detail = random_.twisted32(random_.between(0, 1));
    fl_chain* const one = chain(start, groups, seed, detail, &state);
    if (one == nullptr) return;
    fl_chain* const other = chain(start, groups, seed, detail, &others);
    for (int i = random_.between(1, 4); i > 0; --i) {
      fl_chain_options its = options(true, FL_DELTA);
      const std::int64_t proposals = random_.one_of(proposals_);
      const double seconds = proposals > 1000 ? 0.002 : 0.0;
      checked([&] { return fl_chain_run(one, proposals, seconds, &its); });
      if (seconds > 0) break;
      its.early_rejection = 0;
      its.algorithm = FL_FULL;
      fl_chain_run(other, proposals, 0, &its);
      require_same(*state, *others);
    }
    if (random_.chance(0.3)) {
      const int tied = random_.upto(1), part = random_.upto(2), parts = random_.upto(3);
      checked([&] { return fl_chain_descend(one, 0.005, tied, part, parts); });
    }
    if (random_.chance(0.3)) {
      Strategy next;
      set_all(next);
      checked([&] { return fl_chain_adopt(one, next.view()); });
    }
    if (random_.chance(0.3)) {
      fl_branches branches;
      checked([&] { return fl_chain_exhaust(one, 0.005, &branches); });
    }
    best(*state, detail);
    fl_chain_destroy(other);
    fl_chain_destroy(one);
  }

  static void require_same(const fl_chain_state& x, const fl_chain_state& y) {
    require(x.best_time == y.best_time && x.current_time == y.current_time &&
                x.accepted == y.accepted && x.unchanged == y.unchanged && x.improved == y.improved,
            "early rejection, or the algorithm, changes the chain");
  }

  void best(const fl_chain_state& state, int detail) {
    require(state.best.n == ops(), "the best strategy");
    for (int op = 0; op < ops(); ++op) {
      const fl_config& config = state.best.configs[op];
      require(config.op == op &&
                  config.n_degrees ==
                      static_cast<int>(facts_.ops[static_cast<std::size_t>(op)].space.size()),
              "a configuration of the best strategy");
    }
    fl_judged judged;
    const int verdict = fl_problem_judge(problem_, &state.best, detail, 0, 0, &judged);
    require(verdict >= 0, "the best strategy can be judged");
    require(state.best_time < 0 || state.best_time == judged.iteration_time, "the best time");
  }

  void summed() {
    if (ops() == 0) return;
    const int a = random_.upto(ops() - 1), b = random_.upto(ops() - 1);
    std::vector<std::int32_t> of_a = some_degrees(a), of_b = some_degrees(b);
    of_a.resize(FL_MAX_SPACE, 1);  // as many as any operator has
    of_b.resize(FL_MAX_SPACE, 1);
    const int count = random_.hostile && random_.chance(0.1) ? -1 : 1;
    std::int64_t computation[1], synchronisation[1], costs[1];
    const std::int64_t least = random_.chance(0.5) ? 0 : random_.twisted(random_.upto(1'000));
    fl_summed_costs* const summed = fl_summed_create(problem_, least);
    if (summed == nullptr) return;
    checked([&] {
      return fl_summed_operators(summed, random_.twisted32(a), count, of_a.data(), computation,
                                 synchronisation);
    });
    for (int operand = -1; operand < 4; ++operand) {
      checked([&] {
        return fl_summed_transfers(summed, random_.twisted32(a), count, of_a.data(),
                                   random_.twisted32(b), operand, count, of_b.data(), costs);
      });
    }
    fl_summed_destroy(summed);
  }

  Source random_;
  fuzz::GraphFacts facts_;
  std::optional<fuzz::GraphMaker> maker_;  // has what graph_ points to
  std::vector<std::int32_t> outputs_, node_of_;
  fl_graph graph_{};
  fl_problem* problem_ = nullptr;
  int devices_ = 0, all_ = 0, kinds_ = 0;
  std::int32_t states_ = 0, clips_ = 0, lazy_ = 0;  // of the optimizer
  bool in_space_ = false;
  bool classes_ = true;  // whether each operator is of a class of its own
  std::vector<std::vector<std::vector<std::int32_t>>> splits_;  // an operator: degrees
  std::vector<bool> again_;    // an operator: whether the last strategy has it run again
  std::vector<int> sharding_;  // and what of its weights it shards
  std::vector<double> shares_ = {0, 0.3, 0.9};
  std::vector<double> temperatures_ = {0.01, 0.01, 0.1, 0.5, 1e-300, 0, -1, 1e7, 0.0 / zero_};
  std::vector<std::int64_t> proposals_ = {0, 1, 5, 20, 40, -1, std::int64_t{1} << 62};
  static volatile double zero_;
};

volatile double Sequence::zero_ = 0.0;

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 15.0;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  sequence_seed = seed;
  do {
    Sequence(sequence_seed).run();
    ++sequence_seed;
  } while (passed() < seconds);
  std::printf("%llu sequences from seed %llu, %lld calls, %lld of them failed with a message\n",
              static_cast<unsigned long long>(sequence_seed - seed),
              static_cast<unsigned long long>(seed), calls, failures);
  return 0;
}
