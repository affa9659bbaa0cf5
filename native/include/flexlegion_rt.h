/* libflexlegion_rt: the plan executed on Legion. To be loaded inside a Legate program only. The
 * conventions are those of flexlegion_core.h, whose types and constants are used here. */
#ifndef FLEXLEGION_RT_H
#define FLEXLEGION_RT_H

#include "flexlegion_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef begin */

typedef enum { FL_CPU, FL_GPU } fl_device_kind;
typedef struct {
  int32_t kind, rank, memory; /* devices with the same memory share it */
  int32_t threads;            /* that compute a task; of other ranks' devices, 0 */
  int64_t memory_bytes;       /* without what a GPU keeps as scratch memory */
} fl_device;
typedef struct {
  int32_t ranks, rank, n_devices; /* rank: this process's */
  const fl_device *devices;       /* of all ranks, for the life of the process */
  const char *kernel_library;     /* what computes, and its version: "oneDNN 3.2.1" */
  int32_t has_bfloat16;           /* whether this rank's CPU processors have instructions for it */
} fl_running;
/* Starts what the runtime needs in this process; 0, or -1. Every rank has to call it, before
 * anything below. From then on ranks watch each other (watchdog.h).
 *
 * `threads`: how many compute a task on each CPU processor of this rank, or one number for all;
 * 0: as many as Realm has cores for it, where these threads run then. Where more than one is told,
 * processors keep to their own of the `cores`, in their order. Teams share out work of so many
 * elements at least. */
int fl_rt_start(int n_threads, const int32_t *threads, int n_cores, const int32_t *cores,
                int64_t worth_sharing, fl_running *out);
/* Ends this process at once with a status that is not 0, and the other ranks with it. */
void fl_rt_leave(int status);
/* What a GPU of this rank is. Clocks are the highest; 0 where the driver does not tell. */
typedef struct {
  char name[96], software[160]; /* "NVIDIA H200"; libraries and their versions */
  int32_t major, minor;         /* compute capability */
  int32_t multiprocessors, clock_khz, memory_clock_khz, memory_bus_bits;
} fl_gpu;
/* `ways`: of each device, how this GPU reaches its memory without the host: 1 for the fastest way,
 * higher numbers for others; 0 if it does not, as no CPU processor's and no other rank's. */
int fl_rt_gpu(int device, fl_gpu *out, int32_t *ways);
/* What Legion does with the memories of devices, beside what plans say of it. Bytes. */
typedef struct {
  const int64_t *in_use;  /* of each device, what of its memory is given out: all instances of all
                             programs, and whatever else of the process lies there; of other ranks'
                             devices -1 */
  int64_t copied;         /* to bring tasks their data, while that was counted */
  const int64_t *between; /* devices x devices, from-major: of that, what went from the one's memory
                             to the other's */
} fl_traffic;
/* Waits for all that was issued, and tells; until it is called again. Then copies are counted from
 * 0 on, or not at all. (A trace's first run shows its copies.) They can be counted on one rank
 * only: this Legion does not survive profiling copies between ranks. */
int fl_rt_traffic(int count_copies, fl_traffic *out);

/* What products and convolutions on GPUs round their factors to. */
typedef enum { FL_FP32, FL_TF32, FL_BF16 } fl_precision;

/* Weights that are updated by other hyperparameters than the rest. */
typedef struct {
  fl_attributes attributes;
  double rate; /* what the learning rate is multiplied with */
} fl_parameter_group;
typedef struct {
  const char *type; /* "adam" */
  fl_attributes attributes;
  double ema;       /* of a moving average of each weight, the last state; 0: none */
  int32_t n_groups; /* 0: there are none, and no `group_of` */
  const fl_parameter_group *groups;
  const int32_t *group_of; /* of each tensor of the plan's graph; -1: none */
} fl_optimizer;

/* Measuring. Every rank makes the same calls, and gets the same times. How often a task runs: */
typedef struct {
  int32_t warmups, least, most; /* runs before, and bounds of the runs that count */
  int64_t budget_ns;            /* within which, between the bounds, it runs as often as it can */
  int64_t sweep_bytes;          /* of other memory that is read and written before each run */
} fl_repeats;
/* Times in ns, until the next measurement. */
typedef struct {
  int32_t n, n_alone;
  const int64_t *times; /* of a task: while the devices that share its memory do the same */
  const int64_t *alone; /* then while they are idle, if there are any */
} fl_times;
/* The leaf task `part` of a launch of the plan on the device that the plan says, over made-up
 * numbers (int32: below `bound`). */
int fl_rt_measure_task(const fl_plan *plan, const fl_optimizer *optimizer, int launch, int part,
                       int bound, int precision, const fl_repeats *repeats, fl_times *out);
/* The sum of `slots` partial gradients, as a task. */
int fl_rt_measure_sum(int device, int64_t slots, int64_t elements, const fl_repeats *repeats,
                      fl_times *out);
/* Round trips of a region between the memories of two devices, in which it is copied; on one
 * memory: of the two tasks alone. Regions travel on all ways at once; the first one's is timed. */
int fl_rt_measure_round_trips(int n_ways, const int32_t *from, const int32_t *to, int64_t bytes,
                              int trips, fl_times *out);
/* The clocks of two devices' ranks: three times a trip, here, there, and here again. */
int fl_rt_measure_clocks(int here, int there, int trips, fl_times *out);
/* `bytes` bytes of each rank, for all ranks, in their order. */
int fl_rt_all_gather(const void *mine, int64_t bytes, void *all);

/* A plan made executable. Device numbers of the plan are those of fl_running. */
typedef struct fl_program fl_program;
/* Of a weight, as it is kept between iterations. */
typedef struct {
  int32_t weight, device;
  int64_t lo[FL_MAX_RANK], hi[FL_MAX_RANK]; /* of the weight's dimensions */
} fl_shard;
/* As long as the program is there. */
typedef struct {
  int32_t n_shards;
  const fl_shard *shards; /* weight after weight; those of one leave nothing out, and are apart */
  /* In iterations of each kind: of each of the plan's launches, which of the iteration's Legion
   * launches (0, 1, ...) runs it; -1: none. Those with one number run as one. */
  const int32_t *trains, *evaluates, *predicts;
} fl_program_facts;
fl_program *fl_program_create(
    const fl_plan *plan, const fl_optimizer *optimizer, uint64_t seed,
    double clip_norm, /* of the whole gradient; 0 where the plan clips none */
    int precision, fl_program_facts *out);
void fl_program_destroy(fl_program *program);

/* Rows of 4-byte elements that batches of `tensor` are made of; or, where `byte_values` is not
 * null, of bytes that stand for one of its 256 values each. The memory of the rows stays the
 * caller's and has to live until fl_program_drop_data. Returns a number to name it by. */
int fl_program_add_data(fl_program *program, int tensor, const void *base, int64_t rows,
                        const float *byte_values);
/* Waits until nothing reads these any more, and forgets them. */
int fl_program_drop_data(fl_program *program, int n_data, const int32_t *data);

typedef struct {
  int32_t n_data, n_rows; /* n_data 0: there is none */
  const int32_t *data;    /* arrays, at most one an input tensor */
  const int64_t *rows;    /* of each of them, those that become samples 0, 1, ... */
} fl_batch;
/* Brings a batch into the staging tensors for an iteration of kind `runs` (FL_TRAINS, ...). */
int fl_program_stage(fl_program *program, int runs, const fl_batch *batch);
/* Issues one iteration over what was staged, of which the first `valid_samples` count, and stages
 * the next batch meanwhile. A value of a loss that counts adds `label_shares` of it to what
 * training minimises: one a loss operator, in the graph's order. Gradients are multiplied with
 * `loss_scale` until they are used, and are not used if they overflow; 0: they are as they are,
 * unless tensors are stored as float16. Returns a ticket. */
int64_t fl_program_step(fl_program *program, int runs, int64_t step, int64_t valid_samples,
                        int n_losses, const double *label_shares, double learning_rate,
                        double loss_scale, const fl_batch *next);

typedef struct {
  double loss, correct, correct_top5, squared_error, absolute_error;
  int64_t labels, samples; /* losses that count, one a sample, or a sample and step */
  int64_t overflows;       /* of the first loss: iterations whose gradients were not finite */
} fl_metrics;
/* Waits until this rank has read that iteration's batch and computed its part of the losses; -1:
 * until all that was issued is done. */
int fl_program_wait(fl_program *program, int64_t ticket);
/* Of each ticket, of each loss operator, sums over the values of that iteration that count, of all
 * ranks: `n_tickets` x `n_losses`; waits for them. Every rank also says a number that is not
 * negative; returns what the first rank said. */
int64_t fl_program_metrics(fl_program *program, int n_tickets, const int64_t *tickets, int n_losses,
                           fl_metrics *out, int64_t say);

/* Whole tensors, row-major. Reading a gradient sums its partial values. Of what each micro-batch
 * has its own, the first `rounds` are read. */
int fl_program_write(fl_program *program, int tensor, int field, int state, const void *host);
int fl_program_read(fl_program *program, int tensor, int field, int state, int rounds, void *host);
typedef struct {
  int32_t tensor, field, state, shard; /* shard: among the weight's, in fl_program_facts */
  void *to;                            /* null: it is another rank's */
  int64_t stride[FL_MAX_SPACE];        /* of the host array, in elements, of each dimension */
} fl_host_shard;
/* Copies the shards of weights and states to the host, each rank its own; all ranks name the same
 * ones, those of a field together. Returns when they are there. */
int fl_program_save(fl_program *program, int n, const fl_host_shard *shards);
/* Launches that are not the plan's. */
typedef enum { FL_STAGED = -1, FL_OTHER = -2 } fl_own_launch;
typedef struct {
  int32_t launch, part, device; /* the plan's launch, or one of the above */
  int32_t round;                /* which micro-batch it worked on */
  int32_t thread;               /* the system's number of the one that ran it */
  int64_t start_time, end_time; /* ns, of the rank's clock */
  int64_t computing_time;       /* ns in which its thread had a core */
} fl_record;
typedef struct {
  int64_t n;
  const fl_record *records; /* in the order in which tasks ended; until this is called again */
} fl_records;
/* What was noted, and whether to note when each task of this rank runs from the next iteration on.
 * Waits for all that was issued. */
int fl_program_record(fl_program *program, int on, fl_records *out);
/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
