/* libflexlegion_core: the plan. The only text that crosses the boundary to Python: cffi reads the
 * part between the cdef marks. Functions that can fail return null or a negative number;
 * fl_last_error() then says why. Indices are zero-based; arrays are flat and row-major; rectangles
 * are half-open, all lower bounds first. */
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
enum { FL_INPUT = 0, FL_WEIGHT = 1, FL_ACTIVATION = 2 };              /* kinds of tensors */
enum { FL_ROLE_INPUT = 0, FL_ROLE_WEIGHT = 1, FL_ROLE_OUTPUT = 2 };   /* roles of operands */
enum { FL_SAMPLE = 0, FL_ATTRIBUTE = 1, FL_PARAMETER = 2 };           /* kinds of dimensions */
enum { FL_LOAD = 0, FL_FORWARD = 1, FL_BACKWARD = 2, FL_UPDATE = 3 }; /* passes; load: op is -1 */
enum { FL_VALUE = 0, FL_GRADIENT = 1, FL_STATE = 2 };                 /* fields of a tensor */
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

/* The plan of a graph under a strategy: for operator after operator, its degrees, and a device for
 * each task. `output` is the tensor to predict. */
typedef struct fl_plan fl_plan;
fl_plan *fl_plan_create(const fl_graph *graph, int n_degrees, const int32_t *degrees, int n_devices,
                        const int32_t *devices, int output, int optimizer_states);
void fl_plan_destroy(fl_plan *plan);

typedef struct {
  int32_t op, pass, runs, tasks, requirements;
} fl_launch;
typedef struct {
  int32_t operand, tensor, field, state, privilege, rank;
} fl_requirement;

int fl_plan_launches(const fl_plan *plan);
int fl_plan_launch(const fl_plan *plan, int launch, fl_launch *out);
int fl_plan_devices(const fl_plan *plan, int launch, int32_t *devices);
int fl_plan_requirement(const fl_plan *plan, int launch, int requirement, fl_requirement *out);
/* tasks x (lo[rank], hi[rank]); a gradient's first dimension is its slots. `adds`: one a task. */
int fl_plan_rects(const fl_plan *plan, int launch, int requirement, int64_t *rects, uint8_t *adds);
/* How many partial values the gradient of `tensor` is the sum of; 0: it is not computed. */
int fl_plan_gradient_slots(const fl_plan *plan, int tensor);
int64_t fl_plan_bytes_on_device(const fl_plan *plan, int device);

/* The simulation of one training iteration. Times are in ns, sizes in bytes. */
typedef struct fl_simulation fl_simulation;
typedef struct {
  int32_t n_devices; /* as many as the plan's numbers need */
  const int32_t *memory_of;
  int32_t n_links;          /* communication devices */
  const int64_t *bandwidth; /* bytes a second */
  const int64_t *latency;
  int32_t memories;
  const int32_t *route_lengths; /* memories x memories, from-major */
  const int32_t *routes;        /* the links of all routes, one after the other */
} fl_machine;
/* `exe_time`: for every launch of the plan and every task of it. */
fl_simulation *fl_simulation_create(const fl_plan *plan, const fl_machine *machine, int n_times,
                                    const int64_t *exe_time);
void fl_simulation_destroy(fl_simulation *simulation);
typedef struct {
  int32_t device;       /* from n_devices on: links */
  int32_t launch, part; /* of a communication task: its producer's */
  int32_t destination;  /* the memory that a communication task is for, or -1 */
  int32_t hop;          /* of a communication task, or -1 */
  int64_t bytes, exe_time, ready_time, start_time, end_time;
} fl_task;
int fl_simulation_tasks(const fl_simulation *simulation);
int fl_simulation_read(const fl_simulation *simulation, fl_task *tasks);
int64_t fl_simulation_iteration_time(const fl_simulation *simulation);

/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
