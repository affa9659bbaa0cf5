/* libflexlegion_core: plan, simulator, search. The only text that crosses the boundary to Python:
 * cffi reads the part between the cdef marks. Functions that can fail return null or a negative
 * number; fl_last_error() then says why. Indices are zero-based; arrays are flat and row-major;
 * rectangles are half-open, all lower bounds first. */
#ifndef FLEXLEGION_CORE_H
#define FLEXLEGION_CORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cdef begin */

const char *fl_last_error(void);
int fl_last_error_is_users(void);

/* Constants, in the order of the C++ enumerations. */
enum { FL_FLOAT32 = 0, FL_INT32 = 1 };
/* Kinds of tensors. A table is a weight of which operators read rows that their first input names;
 * a state one that its operator's forward pass reads and writes. Other weights that need no
 * gradient are constants. */
enum { FL_INPUT = 0, FL_WEIGHT = 1, FL_ACTIVATION = 2, FL_TABLE = 3, FL_OPERATOR_STATE = 4 };
enum { FL_ROLE_INPUT = 0, FL_ROLE_WEIGHT = 1, FL_ROLE_OUTPUT = 2 };      /* roles of operands */
enum { FL_SAMPLE = 0, FL_ATTRIBUTE = 1, FL_PARAMETER = 2, FL_NONE = 3 }; /* kinds of dimensions */
/* passes; load and clip: op is -1; norm and clip: only where gradients are clipped */
enum { FL_LOAD = 0, FL_FORWARD = 1, FL_BACKWARD = 2, FL_NORM = 3, FL_CLIP = 4, FL_UPDATE = 5 };
/* fields of a tensor; norms and total_norm: of the iteration, tensor is -1 */
enum { FL_VALUE = 0, FL_GRADIENT = 1, FL_STATE = 2, FL_NORMS = 3, FL_TOTAL_NORM = 4 };
enum { FL_READ = 0, FL_WRITE = 1, FL_READ_WRITE = 2 };                /* privileges */
enum { FL_TRAINS = 1, FL_EVALUATES = 2, FL_PREDICTS = 4 };            /* kinds of runs (bits) */

/* The operator graph. Tensors and operators are numbered in the order in which they are added. */
typedef struct fl_graph fl_graph;
fl_graph *fl_graph_create(void);
void fl_graph_destroy(fl_graph *graph);
int fl_graph_add_tensor(fl_graph *graph, const char *name, int rank, const int64_t *shape,
                        int data_type, int kind, int needs_gradient);
int fl_graph_add_operator(fl_graph *graph, const char *name, const char *type, int is_loss,
                          int n_dims, const int32_t *dim_kinds, int n_attributes,
                          const char *const *attribute_names, const char *const *attribute_values);
/* `map` holds, for each dimension of the tensor: out_dim (-1: whole), num, den, lo_offset,
 * hi_offset. */
int fl_graph_add_operand(fl_graph *graph, int op, int tensor, int role, int saved_for_backward,
                         const int64_t *map);

/* Weights are not cut into shards of less, however many devices replicate them; 0 unless set. */
int fl_graph_set_shard_bytes(fl_graph *graph, int64_t bytes);

/* The plan of a graph under a strategy: for operator after operator, its degrees, and a device for
 * each task. `outputs` are the tensors to predict; the optimizer keeps that many states of each
 * weight, and clips the gradients by their norm, or does not. */
typedef struct fl_plan fl_plan;
fl_plan *fl_plan_create(const fl_graph *graph, int n_degrees, const int32_t *degrees, int n_devices,
                        const int32_t *devices, int n_outputs, const int32_t *outputs,
                        int optimizer_states, int clips);
void fl_plan_destroy(fl_plan *plan);

typedef struct {
  int32_t op, pass, runs, tasks, requirements;
} fl_launch;
typedef struct {
  int32_t operand, tensor, field, state, privilege, rank, role;
} fl_requirement;
/* Why a launch touches what it touches (roles of requirements; native/plan/launches.h). */
enum {
  FL_USE_LOADED = 0,
  FL_USE_INPUT = 1,
  FL_USE_WEIGHT = 2,
  FL_USE_OPERATOR_STATE = 3,
  FL_USE_OUTPUT = 4,
  FL_USE_SAVED = 5,
  FL_USE_OUTPUT_GRADIENT = 6,
  FL_USE_CONTRIBUTION = 7,
  FL_USE_WEIGHT_GRADIENT = 8,
  FL_USE_LOOKED_UP_TOKENS = 9,
  FL_USE_LOOKED_UP_GRADIENT = 10,
  FL_USE_NORM = 11,
  FL_USE_ALL_NORMS = 12,
  FL_USE_TOTAL_NORM = 13,
  FL_USE_UPDATED = 14,
  FL_USE_OPTIMIZER_STATE = 15,
  FL_USE_CLIPPED_BY = 16
};

int fl_plan_launches(const fl_plan *plan);
int fl_plan_launch(const fl_plan *plan, int launch, fl_launch *out);
int fl_plan_devices(const fl_plan *plan, int launch, int32_t *devices);
int fl_plan_requirement(const fl_plan *plan, int launch, int requirement, fl_requirement *out);
/* tasks x (lo[rank], hi[rank]); a gradient's first dimension is its slots. `adds`: one a task. */
int fl_plan_rects(const fl_plan *plan, int launch, int requirement, int64_t *rects, uint8_t *adds);
/* How many tasks find norms of gradients, an element each; 0 where nothing is clipped. */
int fl_plan_norms(const fl_plan *plan);
/* How many partial values the gradient of `tensor` is the sum of; 0: it is not computed. */
int fl_plan_gradient_slots(const fl_plan *plan, int tensor);
/* Which launches the runtime fuses, one Legion task running task k of each, in the kinds of `runs`:
 * for each launch the number of its run, or -1 if it takes part in no run. */
int fl_plan_fused(const fl_plan *plan, unsigned runs, int n_devices, const int32_t *memory_of,
                  int32_t *run);
/* Fails, and says why, unless the plan keeps to the invariants of all plans (native/plan/verify.h).
 * There are that many devices. */
int fl_plan_verify(const fl_plan *plan, int n_devices);
int64_t fl_plan_bytes_on_device(const fl_plan *plan, int device);

/* What a simulation is about: a graph, a machine, and what tasks cost there. Times are in ns, sizes
 * in bytes. Devices and memories are numbered; devices of one kind take equal times. */
typedef struct fl_problem fl_problem;
typedef struct {
  int32_t n_devices;
  const int32_t *memory_of;
  const int32_t *kind_of;
  int32_t kinds;
  int32_t n_links;          /* communication devices */
  const int64_t *bandwidth; /* bytes a second */
  const int64_t *latency;
  int32_t memories;
  const int64_t *capacity;
  const int32_t *route_lengths; /* memories x memories, from-major */
  int32_t n_routes;             /* the sum of the lengths */
  const int32_t *routes;        /* the links of all routes, one after the other */
} fl_machine;
fl_problem *fl_problem_create(const fl_graph *graph, const fl_machine *machine, int n_outputs,
                              const int32_t *outputs, int optimizer_states, int clips);
void fl_problem_destroy(fl_problem *problem);
/* Operators that differ in name alone (the unrolled steps of a layer) share their cost table. */
int fl_problem_share_splits(fl_problem *problem, int op, int like);
/* Adds an entry to the cost table: for each kind of device, each task's forward time, then for each
 * kind each task's backward time. Returns the entry's number; one that exists keeps its times. */
int fl_problem_add_split(fl_problem *problem, int op, int n_degrees, const int32_t *degrees,
                         int n_times, const int64_t *times);
/* What a pass that only moves data costs on a kind of device: FL_LOAD, FL_UPDATE, or FL_BACKWARD
 * for the sums of partial gradients. */
int fl_problem_set_linear(fl_problem *problem, int kind, int pass, int64_t overhead,
                          int64_t bytes_per_second);
/* What the runtime takes before each task on a kind of device, in ns; 0 unless set. Tasks of a
 * launch that is fused with the one before it run on with that without. */
int fl_problem_set_launch(fl_problem *problem, int kind, int64_t time);
/* The extents of what each task touches of each operand: tasks x operands x FL_MAX_RANK. */
enum { FL_MAX_RANK = 5 };
int fl_graph_parts(const fl_graph *graph, int op, int n_degrees, const int32_t *degrees, int n_out,
                   int64_t *extents);

/* The simulator: a strategy and its timeline. The problem has to live as long; the strategy has
 * degrees and devices as for a plan. */
typedef struct fl_simulator fl_simulator;
enum { FL_FULL = 0, FL_DELTA = 1 }; /* algorithms */
enum {
  FL_FLOW_VALUE = 0,
  FL_FLOW_GRADIENT = 1,
  FL_FLOW_WEIGHTS = 2,
  FL_FLOW_NORMS = 3,
  FL_FLOW_TOTAL_NORM = 4
};
enum { FL_SIMULATED = 0, FL_OVERLOADED = 1, FL_OVERLONG = 2, FL_STOPPED = 3, FL_OUT_OF_MEMORY = 4 };
fl_simulator *fl_simulator_create(const fl_problem *problem, int n_degrees, const int32_t *degrees,
                                  int n_devices, const int32_t *devices);
void fl_simulator_destroy(fl_simulator *simulator);
/* Tries other configurations of some operators; `limit` 0: none. Then accept or reject. */
int fl_simulator_propose(fl_simulator *simulator, int n_ops, const int32_t *ops, int n_degrees,
                         const int32_t *degrees, int n_devices, const int32_t *devices,
                         int algorithm, int64_t limit);
int fl_simulator_accept(fl_simulator *simulator);
int fl_simulator_reject(fl_simulator *simulator);
typedef struct {
  int32_t device;      /* from n_devices on: links */
  int32_t pass, index; /* operator, or for FL_LOAD tensor; of a communication task: its writer's */
  int32_t part;
  int32_t flow;                /* of a communication task: FL_FLOW_...; or -1 */
  int32_t tensor;              /* what a communication task moves; for weights and norms an operator; -1 */
  int32_t source, destination; /* memories of a communication task, or -1 */
  int32_t hop;                 /* of a communication task, or -1 */
  int32_t unused;
  int64_t bytes, exe_time, ready_time, start_time, end_time;
} fl_task;
typedef struct {
  int64_t iteration_time, bytes_moved, computation_time, tasks;
  int64_t longest_path, heaviest_load; /* lower bounds of the strategy's iteration time */
} fl_summary;
int fl_simulator_summary(fl_simulator *simulator, fl_summary *out);
int fl_simulator_tasks(const fl_simulator *simulator, int n_tasks, fl_task *tasks);
/* Of each memory: the most bytes at one time, and the bytes if nothing is given back. */
int fl_simulator_memory(const fl_simulator *simulator, int memories, int64_t *peak,
                        int64_t *allocated);
/* What the latter bytes are for, FL_CONTENTS numbers a memory: the batch, activations, their
 * gradients, weights, their gradients, optimizer states. */
enum { FL_CONTENTS = 6 };
int fl_simulator_contents(const fl_simulator *simulator, int n, int64_t *bytes);
/* Busy time of each device and link. */
int fl_simulator_load(const fl_simulator *simulator, int n_devices, int64_t *load);

/* The search: a Markov chain over strategies. The problem has to live as long, and its cost table
 * must not change: every entry in it that fits the machine is a candidate. */
typedef struct fl_chain fl_chain;
typedef struct {
  double temperature; /* share of the iteration time by which a worse strategy passes in 1 of e */
  int32_t tied, critical, neighbours, early_rejection, algorithm;
} fl_chain_options;
typedef struct {
  int64_t best_time, current_time; /* ns; best_time -1: nothing fits into memory */
  int64_t proposals, accepted, unchanged, overloaded, overlong, stopped, out_of_memory, too_fine,
      simulated, improved;
  int64_t tasks_played;
} fl_chain_state;
/* `groups`: one number an operator; equal ones may be tied. */
fl_chain *fl_chain_create(const fl_problem *problem, int n_groups, const int32_t *groups,
                          uint64_t seed, int n_degrees, const int32_t *degrees, int n_devices,
                          const int32_t *devices);
void fl_chain_destroy(fl_chain *chain);
/* At most that many proposals and seconds (0: any number of seconds). */
int fl_chain_run(fl_chain *chain, int64_t proposals, double seconds,
                 const fl_chain_options *options);
/* Descends to a strategy that no change of one operator (or of one group) improves; returns 1 when
 * it got there, 0 when the seconds were over. It changes every `parts`th operator, from the one
 * numbered `part` on: several chains can share the work. */
int fl_chain_descend(fl_chain *chain, double seconds, int tied, int part, int parts);
int fl_chain_adopt(fl_chain *chain, int n_degrees, const int32_t *degrees, int n_devices,
                   const int32_t *devices);
int fl_chain_state_of(const fl_chain *chain, fl_chain_state *out);
/* The best strategy: how many devices its configurations name, and the flat arrays. */
int fl_chain_best_devices(const fl_chain *chain);
int fl_chain_best(const fl_chain *chain, int n_degrees, int32_t *degrees, int n_devices,
                  int32_t *devices);

/* Summed costs (OptCNN), in ns, of operators split over the first devices. `degrees`: tuple after
 * tuple. A transfer's: what `reader` takes by that operand, forward and back, [writers x readers].
 */
int fl_summed_operator_costs(const fl_problem *problem, int op, int count, const int32_t *degrees,
                             int64_t *computation, int64_t *synchronisation);
int fl_summed_transfer_costs(const fl_problem *problem, int writer, int writers,
                             const int32_t *writer_degrees, int reader, int operand, int readers,
                             const int32_t *reader_degrees, int64_t *costs);

/* The optimum over all strategies that a chain can propose, by branch and bound; at most eight
 * devices. The problem has to live as long. */
typedef struct fl_exhaustive fl_exhaustive;
typedef struct {
  int64_t best_time, root_bound; /* ns; best_time -1: nothing fits into memory */
  int64_t nodes, simulated;      /* strategies bounded, partial ones too; simulated */
} fl_exhaustive_state;
fl_exhaustive *fl_exhaustive_create(const fl_problem *problem, int n_degrees,
                                    const int32_t *degrees, int n_devices, const int32_t *devices);
void fl_exhaustive_destroy(fl_exhaustive *search);
/* Goes on for at most that many seconds (0: no limit); returns 1 when the best is the optimum. */
int fl_exhaustive_run(fl_exhaustive *search, double seconds);
int fl_exhaustive_state_of(const fl_exhaustive *search, fl_exhaustive_state *out);
int fl_exhaustive_best_devices(const fl_exhaustive *search);
int fl_exhaustive_best(const fl_exhaustive *search, int n_degrees, int32_t *degrees, int n_devices,
                       int32_t *devices);

/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
