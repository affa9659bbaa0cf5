// The bounds' part of the C ABI of libflexlegion_core: what any strategy takes at least.
#include "bounds/least_time.h"
#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

int fl_problem_least_time(const fl_problem* problem, fl_least_time* out) {
  return fl::guarded(-1, [&] {
    const fl::LeastTime least = fl::least_time(problem->problem);
    *out = {least.time, least.chain, least.work, least.weight};
    return 0;
  });
}
