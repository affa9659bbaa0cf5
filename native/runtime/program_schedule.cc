// What an iteration of each kind of run issues, and in which order (program.h).
//
// Round after round comes what each micro-batch needs, then what ends the iteration. The plan's
// rule (plan/fusion.h) says which neighbouring launches become one; it is asked once a kind of run,
// as rounds have the same launches, or such as differ in their buffers alone. Those launches are
// counted whose tasks tell the host something, so that it knows when all have.
#include <map>
#include <vector>

#include "plan/fusion.h"
#include "runtime/fusion.h"
#include "runtime/machine.h"
#include "runtime/program.h"

namespace flexlegion {

using namespace Legion;

namespace {

// A number for each device's memory.
std::vector<int> memories() {
  std::map<Memory, int> numbers;
  std::vector<int> memory_of;
  for (const Device& device : MachineState::get().devices()) {
    const auto number = static_cast<int>(numbers.size());
    memory_of.push_back(numbers.try_emplace(device.memory, number).first->second);
  }
  return memory_of;
}

}  // namespace

// The plan's launches by their runs, and these by whether they end the iteration. In one round,
// what ends it can be of one run with what comes before it, and then counts as what the run begins
// with.
void Program::add_schedule(unsigned runs) {
  Schedule& schedule = schedules_[runs];
  schedule.trace = MachineState::get().next_trace_id();
  const IdVector<LaunchId, int> numbers =
      run_numbers(graph_, plan_, runs, memories(), graph_.fused_launches);
  std::vector<std::vector<LaunchId>> rounds, end;
  int last = -1;
  for (LaunchId id : planned_.ids()) {
    if (numbers[id] < 0) continue;
    // Launches of one run have one number, and follow each other; and what ends an iteration comes
    // after everything else.
    if (numbers[id] != last) {
      (row_of(plan_.launches[id].pass).closing ? end : rounds).emplace_back();
    }
    last = numbers[id];
    (end.empty() ? rounds : end).back().push_back(id);
  }
  for (int round = 0; round < rounds_of(runs); ++round) add_runs(rounds, round, schedule);
  add_runs(end, 0, schedule);
  for (const InputTensor& input : inputs_) {
    if (!(input.runs & runs)) continue;
    schedule.telling += tasks_here(launches_[static_cast<std::size_t>(input.feed)]);
  }
}

// Each run becomes a launch of that round. Rounds, and kinds of runs, may have the same one.
void Program::add_runs(const std::vector<std::vector<LaunchId>>& runs, int round,
                       Schedule& schedule) {
  for (const std::vector<LaunchId>& run : runs) {
    std::vector<int> members;
    for (LaunchId id : run) {
      members.push_back(planned_[id][static_cast<std::size_t>(round)]);
    }
    int launch = members.front();
    if (members.size() > 1) {
      const auto [known, fresh] = fused_.try_emplace(members, 0);
      if (fresh) known->second = add_launch(fused(launches_, members));
      launch = known->second;
    }
    schedule.launches.push_back({launch, round});
    // What tells the host something fuses with nothing; where a GPU found it, a task on the host
    // tells it, which follows.
    const auto answer = answers_.find(launch);
    if (answer != answers_.end()) {
      launch = answer->second;
      schedule.launches.push_back({launch, round});
    }
    const RuntimeLaunch& teller = launches_[static_cast<std::size_t>(launch)];
    if (!teller.answers) continue;
    schedule.answers = true;
    schedule.telling += tasks_here(teller);
  }
}

}  // namespace flexlegion
