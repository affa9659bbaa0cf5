// What the C ABI's opaque handles hold.
#pragma once

#include "flexlegion_core.h"
#include "plan/graph.h"
#include "plan/plan.h"

struct fl_graph {
  flexlegion::Graph graph;
};

// A plan keeps the graph and the strategy that it was made from: the runtime needs all three.
struct fl_plan {
  flexlegion::Graph graph;
  flexlegion::Strategy strategy;
  flexlegion::Plan plan;
};
