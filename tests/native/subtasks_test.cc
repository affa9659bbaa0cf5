// A task cut into one for each thread: by access maps, where the parts write apart.
#include <algorithm>
#include <mutex>
#include <vector>

#include "ops/team.h"
#include "ops_harness.h"
#include "plan_harness.h"
#include "runtime/subtasks.h"

namespace flexlegion::testing {

namespace {

// y = x g, for rows x and one g; notes which parts it is called for.
class Scale : public Kernel {
 public:
  void forward(KernelTask& task) override {
    note(task.outputs[0].tile);
    each(task, [](float x, float g, float& y, float&, float&) { y = x * g; });
  }
  void backward(KernelTask& task) override {
    note(task.output_grads[0].tile);
    zero_view(task.weight_grads[0]);
    each(task, [](float x, float g, float& dy, float& dx, float& dg) {
      dx = dy * g;
      dg += dy * x;
    });
  }
  std::vector<Rect> parts() {
    std::sort(parts_.begin(), parts_.end());
    return std::move(parts_);
  }

 private:
  void note(const Rect& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    parts_.push_back(part);
  }
  template <typename Body>
  static void each(KernelTask& task, Body&& body) {
    const TensorView &x = task.inputs[0], &g = task.weights[0];
    const bool back = task.output_grads[0].present();
    const TensorView& y = back ? task.output_grads[0] : task.outputs[0];
    const auto row = [](const TensorView& view, std::int64_t i) {
      return view.f32() + (i - view.tile.lo[0]) * view.stride[0];
    };
    float nothing = 0;
    for (std::int64_t i = y.tile.lo[0]; i < y.tile.hi[0]; ++i) {
      for (std::int64_t j = 0; j < y.extent(1); ++j) {
        body(row(x, i)[j], g.f32()[j], row(y, i)[j],
             back ? row(task.input_grads[0], i)[j] : nothing,
             back ? task.weight_grads[0].f32()[j] : nothing);
      }
    }
  }

  std::mutex mutex_;
  std::vector<Rect> parts_;
};

struct Scaled {
  Tensor y, dx, dg;
  std::vector<Rect> forward, backward;
};

// All tasks of an operator over (rows, 6) that reads `map` of x's rows, by so many threads.
Scaled scaled(std::int64_t rows, const DimMap& map, int tasks, int threads) {
  plan_test::Net net;
  const auto in = net.tensor("x", {rows, 6}, TensorKind::activation, true);
  const auto weight = net.weight("g", {6});
  const auto out = net.tensor("y", {rows, 6}, TensorKind::activation, true);
  const OpId op =
      net.op("scale", {{in, Role::input, true, {map, plan_test::along(1)}},
                       {weight, Role::weight, true, {plan_test::along(1)}},
                       {out, Role::output, false, {plan_test::along(0), plan_test::along(1)}}});
  net.graph.operators[op].dims = {DimKind::sample, DimKind::none};
  Tensor x = Tensor::random({rows, 6}, 1), g = Tensor::random({6}, 2),
         dy = Tensor::random({rows, 6}, 3);
  Scaled all{Tensor({rows, 6}), Tensor({rows, 6}), Tensor({6}), {}, {}};
  const Team team(threads, 1);
  for (int point = 0; point < tasks; ++point) {
    const Rect tile = tile_of(x.whole(), {tasks, 1}, point);
    Tensor dg({6});
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Launch launch;
      launch.op = op;
      launch.pass = pass;
      launch.degrees = {tasks, 1};
      KernelTask task;
      task.inputs = {x.view(tile)};
      task.weights = {g.view(g.whole())};
      task.outputs = {TensorView()};
      task.input_grads = {TensorView()};
      task.weight_grads = {TensorView()};
      task.output_grads = {TensorView()};
      if (pass == Pass::forward) {
        task.outputs = {all.y.view(tile)};
      } else {
        task.input_grads = {all.dx.view(tile)};
        task.weight_grads = {dg.view(dg.whole())};
        task.output_grads = {dy.view(tile)};
      }
      Scale kernel;
      Subtasks(net.graph, launch).run(kernel, task, point, *device_functions(DeviceKind::cpu));
      auto& parts = pass == Pass::forward ? all.forward : all.backward;
      for (const Rect& part : kernel.parts()) parts.push_back(part);
    }
    add_view(all.dg.view(dg.whole()), dg.view(dg.whole()));
  }
  return all;
}

}  // namespace

TEST_CASE("each thread computes a part of each task, and small gradients are added up") {
  const Scaled alone = scaled(64, plan_test::along(0), 2, 1),
               team = scaled(64, plan_test::along(0), 2, 2);
  const auto rows = [](std::int64_t lo, std::int64_t hi) {
    return plan_test::box({{lo, hi}, {0, 6}});
  };
  const std::vector<Rect> tasks{rows(0, 32), rows(32, 64)};
  const std::vector<Rect> quarters{rows(0, 16), rows(16, 32), rows(32, 48), rows(48, 64)};
  CHECK(alone.forward == tasks);
  CHECK(alone.backward == tasks);
  CHECK(team.forward == quarters);
  CHECK(team.backward == quarters);
  CHECK(largest_difference(team.y, alone.y) == 0);
  CHECK(largest_difference(team.dx, alone.dx) == 0);
  CHECK(largest_difference(team.dg, alone.dg) < kTolerance);
}

TEST_CASE("a task is not cut where gradients to be added up are large beside it") {
  const Scaled team = scaled(8, plan_test::along(0), 1, 2);
  CHECK(team.forward.size() == 2);
  CHECK(team.backward.size() == 1);
}

TEST_CASE("a task is not cut where its parts would write the same elements") {
  // Each row reads its neighbours, too, so that parts share rows of the gradient.
  const Scaled team = scaled(64, plan_test::window(0, 3, 1, 1), 1, 2);
  CHECK(team.backward.size() == 1);
}

}  // namespace flexlegion::testing
