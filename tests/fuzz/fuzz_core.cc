// Thousands of random sequences of calls to libflexlegion_core, right and wrong, for a build with
// sanitizers: nothing may crash, every failure has a message of its own, and what the delta and the
// full algorithm say of the same proposal is the same.
//
// Usage: fuzz_core [seconds] [seed]    (default: 15 seconds, seed 1; prints the seed that failed)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "random_graph.h"

namespace {

using fuzz::Source;

constexpr const char* kSentinel = "a shard cannot have less than no bytes";

std::uint64_t sequence_seed = 0;
long long calls = 0, failures = 0;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "sequence %llu: %s (last message: %s)\n",
               static_cast<unsigned long long>(sequence_seed), what, fl_last_error());
  std::abort();
}

void require(bool holds, const char* what) {
  if (!holds) die(what);
}

// Runs one call. If it fails, it has to have left a message that was not there before.
template <typename Call>
auto checked(Call&& call) {
  static fl_graph* const scratch = fl_graph_create();
  require(fl_graph_set_shard_bytes(scratch, -1) < 0, "the sentinel did not fail");
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
    require(std::strcmp(fl_last_error(), kSentinel) != 0, "a failure without a message");
    require(std::strlen(fl_last_error()) > 0, "a failure with an empty message");
  }
  return result;
}

// Configurations of some operators as the ABI takes them, with a number too many of each.
struct Flat {
  std::vector<std::int32_t> degrees, devices;
  int n_degrees = 0, n_devices = 0;

  void end(Source& random) {
    n_degrees = static_cast<int>(degrees.size());
    n_devices = static_cast<int>(devices.size());
    if (random.hostile && random.chance(0.02)) n_degrees = random.between(-1, n_degrees);
    if (random.hostile && random.chance(0.02)) n_devices = random.between(-1, n_devices);
    degrees.push_back(1);
    devices.push_back(0);
    if (random.hostile && random.chance(0.02)) ++n_degrees;
    if (random.hostile && random.chance(0.02)) ++n_devices;
  }
};

// All calls about one graph.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) { random_.hostile = random_.chance(0.5); }

  void run() {
    fl_graph* const graph = checked([] { return fl_graph_create(); });
    facts_ = fuzz::GraphMaker(random_, graph).make();
    const fuzz::Machine machine(random_);
    devices_ = static_cast<int>(machine.memory_of.size());
    memories_ = static_cast<int>(machine.capacity.size());
    all_ = devices_ + machine.n_links;
    kinds_ = machine.kinds;
    const int last = static_cast<int>(facts_.tensors.size()) - 1;
    for (int i = random_.upto(3); i > 0; --i) {
      outputs_.push_back(random_.twisted32(random_.between(0, std::max(0, last))));
    }
    const fl_machine view = machine.view();
    problem_ = checked([&] {
      return fl_problem_create(graph, &view, static_cast<int>(outputs_.size()), outputs_.data(),
                               random_.twisted32(random_.upto(2)), random_.upto(1));
    });
    plan(graph);
    parts(graph);
    fl_graph_destroy(graph);  // a problem has what it needs of it
    if (problem_ != nullptr) {
      prepare();
      for (int i = random_.between(1, 2); i > 0; --i) simulate();
      for (int i = random_.between(0, 2); i > 0; --i) search();
      summed();
    }
    fl_problem_destroy(problem_);
  }

 private:
  int ops() const { return static_cast<int>(facts_.ops.size()); }

  // Degrees, one a dimension; of at most 16 tasks, unless wrong.
  std::vector<std::int32_t> degrees_of(int op) {
    std::vector<std::int32_t> result;
    int left = 16;
    const fuzz::Op& its = facts_.ops[static_cast<std::size_t>(op)];
    for (std::size_t d = 0; d < its.shape.size(); ++d) {
      const int most = its.kinds[d] == FL_NONE || random_.chance(0.5)
                           ? 1
                           : static_cast<int>(std::min<std::int64_t>(its.shape[d], left));
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

  void append(int op, Flat& flat) {
    const auto& known = splits_[static_cast<std::size_t>(op)];
    const bool use_known = !known.empty() && !(random_.hostile && random_.chance(0.03));
    const std::vector<std::int32_t> degrees = use_known ? random_.one_of(known) : degrees_of(op);
    flat.degrees.insert(flat.degrees.end(), degrees.begin(), degrees.end());
    const std::int64_t tasks = std::min<std::int64_t>(product(degrees), 64);
    for (std::int64_t k = 0; k < tasks; ++k) {
      flat.devices.push_back(random_.twisted32(random_.upto(std::max(devices_, 1) - 1)));
    }
  }

  Flat strategy() {
    Flat flat;
    for (int op = 0; op < ops(); ++op) append(op, flat);
    flat.end(random_);
    return flat;
  }

  void plan(const fl_graph* graph) {
    splits_.assign(facts_.ops.size(), {});
    const Flat flat = strategy();
    fl_plan* const plan = checked([&] {
      return fl_plan_create(graph, flat.n_degrees, flat.degrees.data(), flat.n_devices,
                            flat.devices.data(), static_cast<int>(outputs_.size()), outputs_.data(),
                            random_.twisted32(random_.upto(2)), random_.upto(1));
    });
    if (plan == nullptr) return;
    const int launches = fl_plan_launches(plan);
    for (int l = random_.chance(0.1) ? -1 : 0; l < launches + random_.upto(1); ++l) {
      fl_launch launch;
      if (checked([&] { return fl_plan_launch(plan, l, &launch); }) < 0) continue;
      std::vector<std::int32_t> on(static_cast<std::size_t>(launch.tasks));
      require(fl_plan_devices(plan, l, on.data()) == 0, "devices of a launch");
      for (int r = 0; r <= launch.requirements; ++r) {
        fl_requirement its;
        if (checked([&] { return fl_plan_requirement(plan, l, r, &its); }) < 0) continue;
        std::vector<std::int64_t> rects(static_cast<std::size_t>(launch.tasks * its.rank * 2));
        std::vector<std::uint8_t> adds(static_cast<std::size_t>(launch.tasks));
        require(fl_plan_rects(plan, l, r, rects.data(), adds.data()) == 0, "rectangles");
      }
    }
    checked([&] { return fl_plan_gradient_slots(plan, random_.between(-1, 12)); });
    checked([&] { return fl_plan_bytes_on_device(plan, random_.between(0, devices_)); });
    fl_plan_destroy(plan);
  }

  void parts(const fl_graph* graph) {
    if (ops() == 0) return;
    const int op = random_.upto(ops() - 1);
    const auto degrees = degrees_of(op);
    const fuzz::Op& its = facts_.ops[static_cast<std::size_t>(op)];
    const std::int64_t right = product(degrees) * its.operands * FL_MAX_RANK;
    const int n = static_cast<int>(right) + (random_.chance(0.1) ? random_.between(-1, 1) : 0);
    std::vector<std::int64_t> extents(static_cast<std::size_t>(std::max(n, 0)) + 1);
    checked([&] {
      return fl_graph_parts(graph, random_.twisted32(op), static_cast<int>(degrees.size()),
                            degrees.data(), n, extents.data());
    });
  }

  void prepare() {
    if (random_.chance(0.3) && ops() > 1) share();
    for (int i = random_.between(2 * ops(), 6 * ops()); i > 0; --i) add_split();
    for (int kind = 0; kind < 2; ++kind) {
      checked([&] {
        return fl_problem_set_launch(problem_, random_.twisted32(kind),
                                     random_.twisted(random_.upto(1'000)));
      });
      for (int pass : {FL_LOAD, FL_BACKWARD, FL_UPDATE}) {
        checked([&] {
          return fl_problem_set_linear(problem_, random_.twisted32(kind), random_.twisted32(pass),
                                       random_.twisted(random_.upto(9)),
                                       random_.twisted(1'000'000'000));
        });
      }
    }
  }

  void share() {
    checked([&] {
      return fl_problem_share_splits(problem_, random_.twisted32(random_.upto(ops() - 1)),
                                     random_.twisted32(random_.upto(ops() - 1)));
    });
  }

  void add_split() {
    if (ops() == 0) return;
    const int op = random_.upto(ops() - 1);
    const auto degrees = degrees_of(op);
    const std::int64_t n = 2 * product(degrees) * std::clamp(kinds_, 0, 4);
    std::vector<std::int64_t> times;
    const int largest = random_.chance(0.5) ? 4 : 1000;
    for (std::int64_t i = 0; i < n; ++i) times.push_back(random_.twisted(random_.upto(largest)));
    const int less = random_.hostile && random_.chance(0.02) ? 1 : 0;
    times.push_back(0);
    const int result = checked([&] {
      return fl_problem_add_split(problem_, op, static_cast<int>(degrees.size()), degrees.data(),
                                  static_cast<int>(n) - less, times.data());
    });
    if (result >= 0) splits_[static_cast<std::size_t>(op)].push_back(degrees);
  }

  std::vector<fl_task> tasks_of(fl_simulator* simulator) {
    fl_summary summary;
    if (checked([&] { return fl_simulator_summary(simulator, &summary); }) < 0) return {};
    std::vector<fl_task> tasks(static_cast<std::size_t>(summary.tasks) + 1);
    if (random_.chance(0.1)) {
      const int wrong = static_cast<int>(summary.tasks) + (random_.chance(0.5) ? 1 : -1);
      require(fl_simulator_tasks(simulator, wrong, tasks.data()) < 0, "a wrong number of tasks");
    }
    const int n = static_cast<int>(summary.tasks);
    if (checked([&] { return fl_simulator_tasks(simulator, n, tasks.data()); }) < 0) return {};
    tasks.pop_back();
    std::int64_t latest = 0;
    for (const fl_task& task : tasks) {
      require(task.device >= 0 && task.device < all_, "a task's device");
      require(task.ready_time >= 0 && task.start_time >= task.ready_time &&
                  task.end_time >= task.start_time + task.exe_time,
              "a task's times");
      latest = std::max(latest, task.end_time);
    }
    require(latest == summary.iteration_time, "the latest end is the iteration time");
    std::vector<std::int64_t> peak(16), held(16), load(64);
    const int memories = memories_ + (random_.chance(0.1) ? random_.between(-1, 1) : 0);
    checked([&] { return fl_simulator_memory(simulator, memories, peak.data(), held.data()); });
    const int devices = all_ + (random_.chance(0.1) ? random_.between(-1, 1) : 0);
    checked([&] { return fl_simulator_load(simulator, devices, load.data()); });
    return tasks;
  }

  static void require_same(const std::vector<fl_task>& a, const std::vector<fl_task>& b) {
    require(a.size() == b.size() &&
                (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(fl_task)) == 0),
            "two timelines that differ");
  }

  void simulate() {
    const Flat start = strategy();
    fl_simulator* const simulator = checked([&] {
      return fl_simulator_create(problem_, start.n_degrees, start.degrees.data(), start.n_devices,
                                 start.devices.data());
    });
    if (simulator == nullptr) return;
    std::vector<fl_task> held = tasks_of(simulator);
    for (int i = random_.between(0, 12); i > 0; --i) {
      if (random_.chance(0.1)) add_split();
      if (random_.chance(0.1)) {
        fl_simulator_reject(simulator);
        require(checked([&] { return fl_simulator_accept(simulator); }) < 0, "nothing to accept");
      }
      propose(simulator, held);
    }
    fl_simulator_destroy(simulator);
  }

  void propose(fl_simulator* simulator, std::vector<fl_task>& held) {
    std::vector<std::int32_t> changed;
    Flat flat;
    for (int i = random_.upto(std::min(ops(), 3)); i >= 0 && ops() > 0; --i) {
      changed.push_back(random_.upto(ops() - 1));
      append(changed.back(), flat);
      changed.back() = random_.twisted32(changed.back());
    }
    flat.end(random_);
    const int n = static_cast<int>(changed.size());
    const int n_ops = random_.hostile && random_.chance(0.02) ? random_.between(-1, n) : n;
    changed.push_back(0);
    const auto call = [&](int algorithm, std::int64_t limit) {
      return checked([&] {
        return fl_simulator_propose(simulator, n_ops, changed.data(), flat.n_degrees,
                                    flat.degrees.data(), flat.n_devices, flat.devices.data(),
                                    algorithm, limit);
      });
    };
    fl_summary summary{};
    fl_simulator_summary(simulator, &summary);
    const std::int64_t limit =
        random_.twisted(std::max<std::int64_t>(1, summary.iteration_time + random_.between(-9, 9)));
    const int limited = random_.chance(0.4) ? call(random_.upto(1), limit) : FL_SIMULATED;
    if (limited > 0 && random_.chance(0.5)) tasks_of(simulator);
    const int verdict = call(FL_DELTA, 0);
    if (verdict == FL_SIMULATED) {
      const std::vector<fl_task> by_delta = tasks_of(simulator);
      require(call(FL_FULL, 0) == FL_SIMULATED, "a verdict that differs");
      const std::vector<fl_task> by_full = tasks_of(simulator);
      require_same(by_delta, by_full);
      fl_simulator_summary(simulator, &summary);
      const bool rejected =
          limited == FL_OVERLOADED || limited == FL_OVERLONG || limited == FL_STOPPED;
      require(!rejected || summary.iteration_time > limit, "turned down within the limit");
      require(summary.longest_path <= summary.iteration_time &&
                  summary.heaviest_load <= summary.iteration_time,
              "a lower bound above the iteration time");
      require(
          call(random_.upto(1), std::max<std::int64_t>(1, summary.iteration_time)) == FL_SIMULATED,
          "turned down at the limit");
      if (random_.chance(0.4)) {
        require(fl_simulator_accept(simulator) == 0, "accept");
        held = by_full;
        return;
      }
    } else if (verdict > 0) {
      require(fl_simulator_accept(simulator) < 0, "accepting what was not simulated");
      if (random_.chance(0.5)) tasks_of(simulator);
    }
    if (random_.chance(0.9)) {
      require(fl_simulator_reject(simulator) == 0, "reject");
      require_same(tasks_of(simulator), held);
    }
  }

  fl_chain_options options(bool early, int algorithm) {
    return {random_.one_of(temperatures_),
            random_.chance(0.3),
            random_.chance(0.5),
            random_.chance(0.5),
            early,
            random_.twisted32(algorithm)};
  }

  fl_chain* chain(const Flat& start, const std::vector<std::int32_t>& groups, std::uint64_t seed) {
    const int n = static_cast<int>(groups.size()) - 1;
    return checked([&] {
      return fl_chain_create(problem_, n, groups.data(), seed, start.n_degrees,
                             start.degrees.data(), start.n_devices, start.devices.data());
    });
  }

  void search() {
    const Flat start = strategy();
    std::vector<std::int32_t> groups;
    for (int op = 0; op < ops(); ++op) groups.push_back(random_.chance(0.9) ? op : 0);
    groups.push_back(0);
    if (random_.hostile && random_.chance(0.05)) groups.push_back(random_.upto(3));
    const std::uint64_t seed = random_.bits();
    fl_chain* const one = chain(start, groups, seed);
    if (one == nullptr) return;
    fl_chain* const other = chain(start, groups, seed);
    for (int i = random_.between(1, 4); i > 0; --i) {
      fl_chain_options its = options(true, FL_DELTA);
      const std::int64_t proposals = random_.one_of(proposals_);
      const double seconds = proposals > 1000 ? 0.002 : 0.0;
      checked([&] { return fl_chain_run(one, proposals, seconds, &its); });
      if (seconds > 0) break;
      its.early_rejection = 0;
      its.algorithm = FL_FULL;
      fl_chain_run(other, proposals, 0, &its);
      require_same(one, other);
    }
    if (random_.chance(0.3)) {
      const int tied = random_.upto(1), part = random_.upto(2), parts = random_.upto(3);
      checked([&] { return fl_chain_descend(one, 0.005, tied, part, parts); });
    }
    if (random_.chance(0.3)) {
      const Flat next = strategy();
      checked([&] {
        return fl_chain_adopt(one, next.n_degrees, next.degrees.data(), next.n_devices,
                              next.devices.data());
      });
    }
    best(one);
    fl_chain_destroy(other);
    fl_chain_destroy(one);
  }

  static void require_same(const fl_chain* a, const fl_chain* b) {
    fl_chain_state x, y;
    require(fl_chain_state_of(a, &x) == 0 && fl_chain_state_of(b, &y) == 0, "states");
    require(x.best_time == y.best_time && x.current_time == y.current_time &&
                x.accepted == y.accepted && x.unchanged == y.unchanged && x.improved == y.improved,
            "early rejection, or the algorithm, changes the chain");
  }

  void best(const fl_chain* chain) {
    std::size_t ranks = 0;
    for (const fuzz::Op& op : facts_.ops) ranks += op.shape.size();
    const int n = fl_chain_best_devices(chain);
    std::vector<std::int32_t> degrees(ranks), devices(static_cast<std::size_t>(n));
    require(fl_chain_best(chain, static_cast<int>(ranks), degrees.data(), n, devices.data()) == 0,
            "the best strategy");
    require(
        fl_chain_best(chain, static_cast<int>(ranks) - 1, degrees.data(), n, devices.data()) < 0,
        "room for one degree too few");
    require(fl_chain_best(chain, static_cast<int>(ranks), degrees.data(), -1, devices.data()) < 0,
            "no room for devices");
    fl_simulator* const simulator =
        fl_simulator_create(problem_, static_cast<int>(ranks), degrees.data(), n, devices.data());
    require(simulator != nullptr, "the best strategy can be simulated");
    fl_summary summary;
    fl_simulator_summary(simulator, &summary);
    fl_chain_state state;
    fl_chain_state_of(chain, &state);
    require(state.best_time < 0 || state.best_time == summary.iteration_time, "the best time");
    fl_simulator_destroy(simulator);
  }

  void summed() {
    if (ops() == 0) return;
    const int a = random_.upto(ops() - 1), b = random_.upto(ops() - 1);
    Flat of_a, of_b;
    append(a, of_a);
    append(b, of_b);
    of_a.degrees.resize(5, 1);  // as many as any operator has
    of_b.degrees.resize(5, 1);
    const int count = random_.hostile && random_.chance(0.1) ? -1 : 1;
    std::int64_t computation[1], synchronisation[1], costs[1];
    checked([&] {
      return fl_summed_operator_costs(problem_, random_.twisted32(a), count, of_a.degrees.data(),
                                      computation, synchronisation);
    });
    for (int operand = -1; operand < 4; ++operand) {
      checked([&] {
        return fl_summed_transfer_costs(problem_, random_.twisted32(a), count, of_a.degrees.data(),
                                        random_.twisted32(b), operand, count, of_b.degrees.data(),
                                        costs);
      });
    }
  }

  Source random_;
  fuzz::GraphFacts facts_;
  fl_problem* problem_ = nullptr;
  int devices_ = 0, memories_ = 0, all_ = 0, kinds_ = 0;
  std::vector<std::int32_t> outputs_;
  std::vector<std::vector<std::vector<std::int32_t>>> splits_;  // an operator: degrees
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
