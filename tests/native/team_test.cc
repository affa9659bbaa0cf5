// A device's threads: what they share out is what one would compute.
#include <atomic>
#include <vector>

#include "ops/team.h"
#include "ops_harness.h"

namespace flexlegion::testing {

TEST_CASE("a team shares out each part once, one thread each") {
  const Team team(4);
  std::vector<int> counts(4), sizes(4);
  share_out(4, [&](int k) {
    ++counts[static_cast<std::size_t>(k)];
    sizes[static_cast<std::size_t>(k)] = team_size();
  });
  CHECK(counts == std::vector<int>(4, 1));
  CHECK(sizes == std::vector<int>(4, 1));  // a part is not shared out again
  CHECK(team_size() == 4);
}

TEST_CASE("a part's exception reaches whoever shared out") {
  const Team team(3);
  std::atomic<int> done{0};
  const auto body = [&](int k) {
    if (k == 1) throw std::runtime_error("part 1");
    ++done;
  };
  CHECK_THROWS_WITH(share_out(3, body), "part 1");
  CHECK(done == 2);
}

TEST_CASE("a range is cut into pieces that cover it; little work is not cut") {
  for (const std::int64_t worth : {1, 1000}) {
    const Team team(3, worth);
    std::atomic<std::int64_t> pieces{0}, total{0};
    share_range(10, 100, [&](std::int64_t lo, std::int64_t hi) {
      ++pieces;
      for (std::int64_t i = lo; i < hi; ++i) total += i;
    });
    CHECK(pieces == (worth == 1 ? 3 : 1));
    CHECK(total == 45);
  }
}

TEST_CASE("tiles are moved by a team as by one thread") {
  const Tensor from = Tensor::random({7, 5, 9}, 1), other = Tensor::random({7, 5, 9}, 2);
  Rect tile = from.whole();
  tile.lo = {1, 0, 2};
  tile.hi = {7, 5, 8};
  const auto moved = [&] {
    Tensor a = from, b = other;
    add_view(b.view(tile), a.view(tile));
    max_view(a.view(tile), b.view(tile));
    copy_view(b.view(tile), a.view(tile));
    return b;
  };
  const Tensor alone = moved();
  const Team team(4, 1);
  CHECK(largest_difference(moved(), alone) == 0);
}

TEST_CASE("products of a team are those of one thread") {
  const auto computed = [] {
    const auto kernel = flexlegion::make_kernel(
        "dense", Attributes({{"activation", "relu"}, {"use_bias", "1"}}), DeviceKind::cpu);
    Tensor x = Tensor::random({64, 96}, 1), w = Tensor::random({128, 96}, 2),
           b = Tensor::random({128}, 3), y({64, 128});
    KernelTask task;
    task.inputs = {x.view(x.whole())};
    task.weights = {w.view(w.whole()), b.view(b.whole())};
    task.outputs = {y.view(y.whole())};
    kernel->forward(task);
    return y;
  };
  const Tensor alone = computed();
  const Team team(2, 1);
  CHECK(largest_difference(computed(), alone) < kTolerance);
}

}  // namespace flexlegion::testing
