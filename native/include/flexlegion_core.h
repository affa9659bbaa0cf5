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

/* What a program needs of a memory. */
typedef enum {
  FL_HELD_WEIGHTS,
  FL_HELD_GRADIENTS,
  FL_HELD_OPTIMIZER,
  FL_HELD_ACTIVATIONS, /* with their gradients */
  FL_HELD_BATCHES,     /* the present one, and the one that is staged */
  FL_HELD_OTHER
} fl_held;
typedef struct {
  char name[64]; /* "cpu:0 to cpu:3" */
  int64_t held[FL_HELD_OTHER + 1];
  int64_t taken, capacity; /* taken: by other programs and as scratch memory */
} fl_memory_need;
/* The calling thread's last error, until it calls anything else. */
typedef struct {
  const char *message;
  int32_t is_users; /* 1 if it is the user's to mend; then the message is for them */
  int32_t n_needs;
  const fl_memory_need *needs; /* where a memory was too small, of each */
} fl_error;
void fl_last_error(fl_error *out);

/* Enumerations. Python reads them here; static_asserts compare them with those of C++. */
typedef enum { FL_FLOAT32, FL_INT32, FL_BFLOAT16, FL_FLOAT16 } fl_data_type;
/* A state is a weight that its operator's forward pass reads and writes. Other weights that need no
 * gradient are constants. What is detached is an activation through which no gradient passes. Of a
 * summed weight rows are looked up, but its gradient is summed up like any weight's. */
typedef enum {
  FL_INPUT,
  FL_WEIGHT,
  FL_ACTIVATION,
  FL_OPERATOR_STATE,
  FL_DETACHED,
  FL_SUMMED_WEIGHT
} fl_tensor_kind;
typedef enum { FL_ROLE_INPUT, FL_ROLE_WEIGHT, FL_ROLE_OUTPUT } fl_role; /* of an operand */
typedef enum { FL_SAMPLE, FL_ATTRIBUTE, FL_PARAMETER, FL_NONE, FL_REDUCTION, FL_PART } fl_dim_kind;
/* How the partial values of an output become its value. */
typedef enum { FL_COMBINE_SUM, FL_COMBINE_MAX, FL_COMBINE_LOG_SUM_EXP } fl_combine;
/* Who combines them: each reader for itself, or those that wrote them, shard by shard. */
typedef enum { FL_SUMS_READERS, FL_SUMS_SHARDS } fl_sums;
/* What of an operator's weights is sharded: the optimizer's states alone; and so on. */
typedef enum { FL_SHARDING_STATES, FL_SHARDING_GRADIENTS, FL_SHARDING_WEIGHTS } fl_sharding;
typedef enum { FL_OF_INPUT, FL_OF_OPERATOR, FL_OF_ITERATION } fl_of; /* what a launch is of */
typedef enum { FL_PRICE_OF_TASK, FL_PRICE_OF_BYTES, FL_PRICE_NOTHING } fl_price;
typedef enum { FL_READ, FL_WRITE, FL_READ_WRITE } fl_privilege;
typedef enum { FL_TRAINS = 1, FL_EVALUATES = 2, FL_PREDICTS = 4 } fl_run; /* bits */

/* The passes (native/plan/passes.h), and the names of fields and roles (native/plan/places.h), by
 * number. They are there as long as the library is. */
typedef struct {
  const char *name;
  int32_t of;        /* fl_of; of an input or the iteration, fl_launch has no operator */
  int32_t price;     /* fl_price: what a task is charged */
  int32_t priced_as; /* the pass whose price it is */
  int32_t closing;   /* whether it ends an iteration, once, after all micro-batches */
} fl_pass;
typedef struct {
  int32_t n_passes, n_fields, n_roles;
  const fl_pass *passes;
  const char *const *fields, *const *roles;
} fl_vocabulary;
void fl_vocabulary_of(fl_vocabulary *out);

/* Of an operator, or of an optimizer: numbers and words, as text. */
typedef struct {
  int32_t n;
  const char *const *names, *const *values;
} fl_attributes;

/* The operator graph. Tensors and operators are numbered in the order of their arrays. It is the
 * caller's; who is given it copies what is needed. */
typedef struct {
  const char *name;
  int32_t data_type, kind, needs_gradient, rank;
  const int64_t *shape;
} fl_tensor;
/* Of one dimension of a tensor, the range that a tile of the space touches (plan/graph.h). */
typedef struct {
  int32_t out_dim; /* of the space; -1: whole */
  int64_t num, den, lo_offset, hi_offset;
  int32_t named_by; /* of a weight's rows: the operand, an input, whose values name them; or -1 */
  int32_t prefix;   /* whether the range begins at 0 */
} fl_dim_map;
typedef struct {
  int32_t tensor, role, saved_for_backward;
  int32_t combine; /* of an output */
  int32_t linear;  /* of an input whose partial values can be computed with apart, and the results
                      added */
  uint32_t once; /* dimensions of the space, as bits: of the parts in them, the first alone touches
                    the operand */
  const fl_dim_map *map; /* of each dimension of the tensor */
} fl_operand;
/* An operator's space has the dimensions of its first output, then those that it reduces, of the
 * extents `reductions`. */
typedef struct {
  const char *name, *type;
  int32_t is_loss, n_dims, n_reductions, n_operands;
  const int32_t *dim_kinds;
  const int64_t *reductions;
  const fl_operand *operands;
  fl_attributes attributes;
} fl_operator;
typedef struct {
  int64_t shard_bytes;    /* weights are not cut into smaller shards, however many devices replicate
                             them */
  int32_t fused_launches; /* so many at most run as one; 0: the default */
  int32_t keeps_tensors;  /* whether each has memory of its own, or takes turns where it can */
  int32_t micro_batches;  /* so many times an iteration plays this graph, that of one; at least 1 */
  int32_t n_tensors, n_operators, n_outputs, n_devices;
  const int32_t *node_of; /* of each device: its node, from 0 */
  const fl_tensor *tensors;
  const fl_operator *operators;
  const int32_t *outputs; /* the tensors to predict */
} fl_graph;
/* What follows from a graph; as long as the plan or the problem is there that was made of it. */
typedef struct {
  const int32_t *runs;     /* of each operator: in which runs it takes part */
  const uint8_t *backward; /* of each operator: whether training runs it backward */
  const int32_t *table; /* of each operator: the trained table in which it looks rows up, or -1 */
  const uint8_t *gradient; /* of each tensor: whether training wants its gradient */
  const int32_t *owner;    /* of each tensor: the operator whose update launch covers it, or -1 */
  int32_t scales;          /* whether gradients are scaled, for float16 to hold them */
} fl_graph_facts;

/* The configuration of an operator: a degree for each dimension of its space, and a device for each
 * task; and whether the gradients of its weights are summed inside nodes first. */
typedef struct {
  int32_t op, n_degrees, n_devices, sums, hierarchical;
  int32_t buffers;  /* of its outputs and their gradients, which micro-batches take in turn */
  int32_t again;    /* whether the backward pass runs it forward once more */
  int32_t sharding; /* fl_sharding */
  const int32_t *degrees, *devices;
} fl_config;
/* A strategy, or a part of one. */
typedef struct {
  int32_t n;
  const fl_config *configs;
} fl_strategy;

typedef struct fl_plan fl_plan;
typedef struct {
  int32_t op, pass_id, runs, tasks, requirements;
} fl_launch;
typedef struct {
  int32_t operand, tensor, field, index, privilege, rank, role;
} fl_requirement;
/* All of a plan, until it is destroyed: launch after launch, in each requirement after requirement,
 * in each task after task. */
typedef struct {
  int32_t n_launches, n_requirements, n_devices, n_tensors;
  int64_t n_tiles, n_bounds;
  const fl_launch *launches;
  const fl_requirement *requirements;
  const int32_t *devices; /* of each task of a launch */
  const uint8_t *adds;    /* of each tile: whether it is added to what stands in its slot */
  const int64_t *bounds;  /* of each tile: lo[rank], hi[rank]; of a gradient, and of partial values,
                             the first are slots */
  const int32_t *gradient_slots; /* of each tensor: the partial values that its gradient is the sum
                                    of; 0: it is not computed */
  const int32_t *value_slots;    /* of each tensor: the partial values that its value is combined
                                    of; 1: it is written as a whole */
  const int32_t *node_sums;      /* of each tensor: the nodes that sum its gradient first; or 0 */
  const int32_t *elements;       /* of each field: if it is the iteration's, its elements, of which
                                    each task that writes it has one */
  fl_graph_facts facts;
} fl_plan_arrays;
/* The plan of a graph under a strategy. The optimizer keeps that many states of each
 * weight, and clips the gradients by their norm, or does not. */
fl_plan *fl_plan_create(const fl_graph *graph, const fl_strategy *strategy, int optimizer_states,
                        int clips, fl_plan_arrays *out);
void fl_plan_destroy(fl_plan *plan);
/* Fails, and says why, unless the plan keeps to the invariants of all plans (native/plan/verify.h).
 * There are that many devices. */
int fl_plan_verify(const fl_plan *plan, int n_devices);
/* The bytes that a device needs if it has a memory of its own. */
int64_t fl_plan_bytes_on_device(const fl_plan *plan, int device);

/* What a simulation is about: a graph, a machine, and what tasks cost there. Times are in
 * ns, sizes in bytes. Devices and memories are numbered; devices of one kind take equal times. */
typedef struct fl_problem fl_problem;
typedef struct {
  int64_t overhead, bytes_per_second;
  int32_t contention; /* as in fl_split */
} fl_linear;          /* a time that grows with the bytes */
typedef struct {
  int64_t iteration, launch, task; /* the utility processor's work for each */
  int64_t crossing;                /* and for each dependency of a task on one of another device */
  int64_t dispatch; /* before a task; tasks of a launch that is fused with the one before it run on
                       with that without */
  int64_t wake;     /* more, where it was waiting for another device */
  int32_t cores;    /* that the devices of a memory and its utility processor share */
} fl_runtime;       /* what the runtime takes */
typedef struct {
  fl_runtime runtime;
  fl_linear load, update, sum; /* of passes that only move data, and of sums of partial gradients */
} fl_rates;
/* A hop of the routes between any two nodes of a relation: over link
 * `first + stride * (node / span)`, `node` being where the route begins, or where it ends; or over
 * those of the torus's way. */
typedef enum { FL_HOP_OF_SOURCE, FL_HOP_OF_DESTINATION, FL_HOP_OF_TORUS } fl_hop_of;
enum { FL_MAX_ROUTE = 64 }; /* links that a route passes */
typedef struct {
  int32_t of, first, stride, span;
} fl_hop;
/* Routes by structure: memories lie at places of nodes, nodes are of kinds, and groups of nodes,
 * one after the other, share switches. The relation of two nodes is (kind, kind, near): 0 for a
 * node and itself, 1 + g for the smallest group that has both (of spans[g]; of all nodes, if g is
 * n_spans), and n_spans + 1 more if the second comes first. */
typedef struct {
  const int32_t *node_of, *place_of; /* memories */
  int32_t n_nodes;
  const int32_t *kind_of;
  int32_t kinds;
  const int32_t *places; /* of a kind: memories of a node */
  int32_t n_spans;
  const int32_t *spans;  /* ascending; each divides the next */
  const int32_t *tables; /* kinds * kinds * (3 + 2 * n_spans): the first route; -1: no such nodes */
  int32_t n_routes;
  const int32_t *lengths; /* a table has a route from each place to each, from-major */
  int32_t n_hops;         /* the sum of the lengths */
  const fl_hop *hops;     /* of all routes, one after the other */
  int32_t dimensions;     /* of the torus; 0: there is none */
  const int32_t *shape;
  const int32_t *turns;       /* a dimension: from each coordinate to each, steps upwards */
  const int32_t *torus_links; /* nodes * dimensions * 2: upwards, downwards; -1: there is none */
} fl_routes;
typedef struct {
  int32_t n_devices;
  const int32_t *memory_of;
  const int32_t *kind_of;
  int32_t kinds;
  const fl_rates *rates;    /* of a kind of devices */
  int32_t n_links;          /* communication devices */
  const int64_t *bandwidth; /* bytes a second */
  const int64_t *latency;
  int32_t memories;
  const int64_t *capacity;
  fl_routes routes;
} fl_machine;
/* What searches choose from where an operator's tasks are on the first devices, in order, as
 * programs for one mesh of devices have them. What fits is judged by what such a program keeps on
 * each device, in bytes. */
typedef struct {
  int64_t capacity;
  int64_t always; /* what is kept whatever the strategy; the rest: `kept` in fl_split_costs */
} fl_space;
/* `class_of`: for each operator, the first that differs from it in names and tensors alone, such as
 * another step of an unrolled layer; they share their cost table. `lazy`: whether updates change of
 * a table the rows alone that were looked up. `space`: NULL if searches may put tasks anywhere. */
fl_problem *fl_problem_create(const fl_graph *graph, const fl_machine *machine,
                              const int32_t *class_of, int optimizer_states, int clips, int lazy,
                              const fl_space *space, fl_graph_facts *out);
void fl_problem_destroy(fl_problem *problem);
enum { FL_MAX_RANK = 5, FL_MAX_SPACE = 6 }; /* dimensions of a tensor, and of a space */
/* Ways to split an operator. */
typedef struct {
  int32_t op, n_splits, n_degrees;
  const int32_t *degrees; /* n_splits x n_degrees */
} fl_splits;
/* What tasks touch if an operator is split in such ways. Tasks that touch as much of each operand
 * have one shape; most tasks have that of others. */
typedef struct {
  int64_t n_shapes;
  const int64_t *extents;  /* n_shapes x operands x FL_MAX_RANK */
  int64_t n_tasks;         /* of all the splits, one after the other */
  const int32_t *shape_of; /* a task */
} fl_shapes;
/* What it tells is valid until the next call. */
int fl_problem_shapes(fl_problem *problem, const fl_splits *splits, fl_shapes *shapes);
/* What tasks take of the shapes that fl_problem_shapes tells of these splits. */
typedef struct {
  int64_t n_times; /* 2 x kinds of devices x shapes */
  /* For each kind of device, each shape's forward time beside idle neighbours, which are the
   * devices of the same memory; then so its backward times. */
  const int64_t *times;
  const int32_t
      *contention; /* how much longer each takes beside busy ones, in thousandths; or NULL */
  /* In a problem with a space: the bytes that a program keeps of each operand, for each split, and
   * for what is sharded ("states", "gradients", "weights"); and of each split and operand a number
   * for how it lies on the devices, which equal ones have in common. Otherwise NULL. */
  int64_t n_kept; /* n_splits x 3 x operands, or 0 */
  const int64_t *kept;
  const int32_t *placed;
} fl_split_costs;
/* Adds entries to the cost table; those that exist keep their times. */
int fl_problem_add_splits(fl_problem *problem, const fl_splits *splits,
                          const fl_split_costs *costs);

/* The simulator: a strategy and its timeline. The problem has to live as long. */
typedef struct fl_simulator fl_simulator;
/* Unfolded: as full, but no part of the timeline is taken over from another one that is alike. */
typedef enum { FL_FULL, FL_DELTA, FL_UNFOLDED } fl_algorithm;
typedef enum {
  FL_FLOW_VALUE,
  FL_FLOW_GRADIENT,
  FL_FLOW_WEIGHTS,
  FL_FLOW_ITERATION,
  FL_FLOW_PARTIAL
} fl_flow;
typedef enum {
  FL_SIMULATED,
  FL_OVERLOADED,
  FL_OVERLONG,
  FL_STOPPED,
  FL_OUT_OF_MEMORY,
  FL_TOO_FINE
} fl_verdict; /* on a proposal */
/* Simulates a strategy in full, and tells its iteration time. If the tasks of a round are sure to
 * take more memory than so many bytes, it fails as for want of memory. */
fl_simulator *fl_simulator_create(fl_problem *problem, const fl_strategy *strategy, int64_t memory,
                                  int64_t *iteration_time);
void fl_simulator_destroy(fl_simulator *simulator);
/* How a strategy is judged: simulated with each of its transfers; or sketched, with bundles of
 * them, which is quicker, and not exact. */
typedef enum { FL_TRANSFERS, FL_BUNDLES } fl_detail;
typedef struct {
  int64_t iteration_time; /* if it was simulated */
  int64_t missing;        /* bytes, of all memories that do not suffice */
  int64_t tasks;          /* of its task graph, hops included */
  int64_t all_tasks;      /* those that it has if each transfer is looked at */
} fl_judged;
/* A task graph of more tasks takes gigabytes: it is FL_TOO_FINE, and nothing else is told of it. */
enum { FL_MOST_JUDGED = 200000000 };
/* Judges a strategy as a proposal is: whether memories hold it and, if so, how long an iteration
 * takes, unless that is sure to be longer than `limit`; 0: none. If it has to be simulable, it is
 * FL_TOO_FINE also if it has too many tasks when each transfer is looked at. Returns a verdict. */
int fl_problem_judge(fl_problem *problem, const fl_strategy *strategy, int detail, int64_t limit,
                     int simulable, fl_judged *out);
typedef struct {
  int64_t time;        /* ns, of any strategy whose splits stand in the cost table */
  int64_t chain, work; /* what follows from the chain of dependencies alone, and from the work */
  double weight;       /* of the work, in the mean of both that decides */
} fl_least_time;
/* What an iteration takes at least. */
int fl_problem_least_time(const fl_problem *problem, fl_least_time *out);
/* Tries other configurations of some operators; `limit` 0: none. Returns a verdict, and tells the
 * iteration time of a proposal that was simulated. Then decide whether to accept it or return to
 * what was held. */
int fl_simulator_propose(fl_simulator *simulator, const fl_strategy *changes, int algorithm,
                         int64_t limit, int64_t *iteration_time);
int fl_simulator_decide(fl_simulator *simulator, int accept);
typedef struct {
  int32_t device;               /* from n_devices on: links */
  int32_t pass_id, index, part; /* index: the operator, or if the pass is of inputs the tensor; of a
                                   communication task: its writer's */
  int32_t flow;                 /* of a communication task: FL_FLOW_...; or -1 */
  int32_t tensor; /* for weights an operator, for the iteration a field; of a task that moves
                     nothing -1 */
  int32_t source, destination; /* memories of a communication task, or -1 */
  int32_t hop;                 /* of a communication task, or -1 */
  int32_t round;               /* which micro-batch it works on; of what ends it, the last */
  int64_t bytes, exe_time, ready_time, start_time, end_time;
  int64_t contention_time, runtime_time; /* what busy neighbours and the runtime took on top */
} fl_task;
typedef enum {
  FL_CONTENT_BATCH,
  FL_CONTENT_ACTIVATIONS,
  FL_CONTENT_GRADIENTS,
  FL_CONTENT_WEIGHTS,
  FL_CONTENT_WEIGHT_GRADIENTS,
  FL_CONTENT_OPTIMIZER_STATES
} fl_content;
/* Of what is held, or of a proposal that was simulated; until the simulator is called again. */
typedef struct {
  int64_t iteration_time; /* the latest end, or a utility processor's work if that takes longer */
  const int64_t *computation; /* of each pass, the time that its tasks take, of all together */
  const int64_t *moved;       /* of each pass, the bytes of transfers of what it writes */
  int64_t crossings;          /* dependencies between tasks of two devices that share a memory */
  const int64_t *load;        /* of each device and link, the time that it is busy */
  const int64_t *allocated;   /* of each memory, the bytes that it holds throughout */
  const int64_t *contents;    /* of each memory, of each content: its share of these */
  const int64_t *peak;        /* of each memory, the most bytes at one time */
  int64_t played;             /* tasks, without those that are replicas of others */
} fl_timeline;
int fl_simulator_timeline(fl_simulator *simulator, fl_timeline *out);
/* All of its tasks, which may be millions: as long as the timeline. */
typedef struct {
  int32_t n_tasks;
  const fl_task *tasks;
} fl_tasks;
int fl_simulator_tasks(fl_simulator *simulator, fl_tasks *out);

/* The search: a chain of strategies. The problem has to live as long, and its cost table
 * must not change: every entry in it that fits the machine is a candidate. */
typedef struct fl_chain fl_chain;
typedef struct {
  double temperature; /* share of `scale` by which a worse strategy passes in 1 of e */
  int64_t scale;      /* ns; 0: the current iteration time */
  int32_t tied, critical, neighbours, uniform, early_rejection, algorithm;
} fl_chain_options;
typedef struct {
  int64_t best_time, current_time; /* ns; best_time -1: nothing fits into memory */
  int64_t proposals, accepted, unchanged, overloaded, overlong, stopped, out_of_memory, too_fine,
      simulated, improved;
  int64_t tasks_played;
  fl_strategy best;
} fl_chain_state;
/* `groups`: one number an operator; equal ones may be tied. `state` is kept up to date by the calls
 * below, until the chain is destroyed. */
fl_chain *fl_chain_create(fl_problem *problem, int n_groups, const int32_t *groups, uint64_t seed,
                          const fl_strategy *start, int detail, const fl_chain_state **state);
void fl_chain_destroy(fl_chain *chain);
/* At most that many proposals and seconds (0: any number of seconds). */
int fl_chain_run(fl_chain *chain, int64_t proposals, double seconds,
                 const fl_chain_options *options);
/* Descends to a strategy that no change of one operator (or of one group) improves; returns 1 when
 * it got there, 0 when the seconds were over. It changes every `parts`th operator, from the one
 * numbered `part` on: several chains can share the work. */
int fl_chain_descend(fl_chain *chain, double seconds, int tied, int part, int parts);
int fl_chain_adopt(fl_chain *chain, const fl_strategy *strategy);
typedef struct {
  int64_t root_bound;       /* ns, which no strategy falls below */
  int64_t nodes, simulated; /* strategies bounded, partial ones too; simulated */
} fl_branches;
/* Looks for the optimum over all strategies that a chain can propose, by branch and bound from its
 * best one; on at most eight devices. Returns 1 when the best is the optimum, 0 when the seconds
 * (0: any number) were over; the next call goes on from there. */
int fl_chain_exhaust(fl_chain *chain, double seconds, fl_branches *out);

/* Summed costs (OptCNN), in ns, of operators split over the first devices. What was found is kept:
 * the problem has to live as long. Several threads may ask. `degrees`: tuple after tuple. A
 * transfer's: what `reader` takes by that operand, forward and back, [writers x readers].
 * `least_message`: bytes that each message between two devices counts as, at least. */
typedef struct fl_summed_costs fl_summed_costs;
fl_summed_costs *fl_summed_create(const fl_problem *problem, int64_t least_message);
void fl_summed_destroy(fl_summed_costs *costs);
int fl_summed_operators(const fl_summed_costs *costs, int op, int count, const int32_t *degrees,
                        int64_t *computation, int64_t *synchronisation);
int fl_summed_transfers(fl_summed_costs *costs, int writer, int writers,
                        const int32_t *writer_degrees, int reader, int operand, int readers,
                        const int32_t *reader_degrees, int64_t *of_pairs);

/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
