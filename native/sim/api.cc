// The simulator's part of the C ABI of libflexlegion_core.
#include <memory>
#include <stdexcept>
#include <string>

#include "plan/handles.h"
#include "sim/full_simulation.h"
#include "sim/task_graph.h"
#include "support/error.h"

namespace fl = flexlegion;

struct fl_simulation {
  fl::TaskGraph tasks;
  fl::Timeline timeline;
};

namespace {

void check_index(int value, int count, const char* what) {
  if (value < 0 || value >= count) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(value));
  }
}

fl::MachineModel machine_of(const fl_machine& machine) {
  fl::MachineModel model;
  model.memories = machine.memories;
  for (int d = 0; d < machine.n_devices; ++d) {
    check_index(machine.memory_of[d], machine.memories, "memory");
    model.memory_of.push_back(machine.memory_of[d]);
  }
  for (int l = 0; l < machine.n_links; ++l) {
    if (machine.bandwidth[l] < 1 || machine.latency[l] < 0) {
      throw std::invalid_argument("a link needs a positive bandwidth and no negative latency");
    }
    model.links.push_back({machine.bandwidth[l], machine.latency[l]});
  }
  const int32_t* next = machine.routes;
  for (int r = 0; r < machine.memories * machine.memories; ++r) {
    std::vector<int> route(next, next + machine.route_lengths[r]);
    next += machine.route_lengths[r];
    for (int link : route) check_index(link, machine.n_links, "link");
    model.routes.push_back(std::move(route));
  }
  return model;
}

}  // namespace

fl_simulation* fl_simulation_create(const fl_plan* plan, const fl_machine* machine, int n_times,
                                    const int64_t* exe_time) {
  return fl::guarded(static_cast<fl_simulation*>(nullptr), [&] {
    auto simulation = std::make_unique<fl_simulation>();
    simulation->tasks = fl::build_task_graph(plan->graph, plan->plan, machine_of(*machine),
                                             {exe_time, exe_time + n_times});
    simulation->timeline = fl::full_simulation(simulation->tasks);
    return simulation.release();
  });
}

void fl_simulation_destroy(fl_simulation* simulation) { delete simulation; }

int fl_simulation_tasks(const fl_simulation* simulation) { return simulation->tasks.size(); }

int fl_simulation_read(const fl_simulation* simulation, fl_task* tasks) {
  const fl::TaskGraph& g = simulation->tasks;
  const fl::Timeline& t = simulation->timeline;
  for (int i = 0; i < g.size(); ++i) {
    tasks[i] = {g.device[i], g.launch[i],   g.part[i],       g.destination[i], g.hop[i],
                g.bytes[i],  g.exe_time[i], t.ready_time[i], t.start_time[i],  t.end_time[i]};
  }
  return 0;
}

int64_t fl_simulation_iteration_time(const fl_simulation* simulation) {
  return simulation->timeline.iteration_time;
}
