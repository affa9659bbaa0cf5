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
/* Whether this rank's CPU processors have instructions for bfloat16. */
int fl_rt_has_bfloat16(void);
/* Ends this process at once with a status that is not 0, and the other ranks with it. */
void fl_rt_leave(int status);
/* What a GPU of this rank is. Clocks are the highest; 0 where the driver does not tell. */
typedef struct {
  char name[96], software[160]; /* "NVIDIA H200"; libraries and their versions */
  int32_t major, minor;         /* compute capability */
  int32_t multiprocessors, clock_khz, memory_clock_khz, memory_bus_bits;
} fl_gpu;
int fl_rt_gpu(int device, fl_gpu *out);
/* How a GPU of this rank reaches the memory of another without the host: 1 for the fastest way,
 * higher numbers for others; 0 if it does not. */
int fl_rt_peer_class(int from, int to);
/* Bytes of that device's memory, which has to be this rank's, that Legion has given out: all
 * instances of all programs, and whatever else of the process lies there. Waits for all that was
 * issued. */
int64_t fl_rt_memory_in_use(int device);

/* Bytes that Legion copied to bring tasks their data, counted while on (a trace's first run shows
 * its copies). On one rank only: this Legion does not survive profiling copies between ranks. */
int fl_rt_count_copies(int on);
/* Of these, what went from one device's memory to another's; both -1: all. */
int64_t fl_rt_copied_bytes(int from, int to);

/* What products and convolutions on GPUs round their factors to. */
typedef enum { FL_FP32, FL_TF32, FL_BF16 } fl_precision;

/* Measuring. Every rank makes the same calls, and gets the same times (ns). */
typedef struct {
  int32_t warmups, least, most; /* runs before, and bounds of the runs that count */
  int64_t budget_ns;            /* within which, between the bounds, it runs as often as it can */
  int64_t sweep_bytes;          /* of other memory that is read and written before each run */
} fl_repeats;
/* The leaf task `part` of a launch of the plan on the device that the plan says, over made-up
 * numbers (int32: below `bound`): first while those that share its memory do the same, then, if
 * there are any, alone. `times` has room for twice the most runs; returns how many there were, the
 * last `alone` of them alone. */
int fl_rt_measure_task(const fl_plan *plan, const char *optimizer, int n_attributes,
                       const char *const *attribute_names, const char *const *attribute_values,
                       int launch, int part, int bound, int precision, const fl_repeats *repeats,
                       int64_t *times, int32_t *alone);
/* The sum of `slots` partial gradients. */
int fl_rt_measure_sum(int device, int64_t slots, int64_t elements, const fl_repeats *repeats,
                      int64_t *times, int32_t *alone);
/* Round trips of a region between the memories of two devices, in which it is copied; on one
 * memory: of the two tasks alone. Regions travel on all ways at once; the first one's is timed. */
int fl_rt_measure_round_trips(int n_ways, const int32_t *from, const int32_t *to, int64_t bytes,
                              int trips, int64_t *times);
/* The clocks of two devices' ranks: three times a trip, here, there, and here again. `times` has
 * room for three times the trips. */
int fl_rt_measure_clocks(int here, int there, int trips, int64_t *times);
/* `bytes` bytes of each rank, for all ranks, in their order. */
int fl_rt_all_gather(const void *mine, int64_t bytes, void *all);

/* A plan made executable. Device numbers of the plan are those of fl_rt_device. */
typedef struct fl_program fl_program;
fl_program *fl_program_create(
    const fl_plan *plan, const char *optimizer, int n_attributes,
    const char *const *attribute_names, const char *const *attribute_values, uint64_t seed,
    double clip_norm, /* of the whole gradient; 0 where the plan clips none */
    int precision);
void fl_program_destroy(fl_program *program);

/* Rows of 4-byte elements that batches of `tensor` are made of; or, where `byte_values` is not
 * null, of bytes that stand for one of its 256 values each. The memory of the rows stays the
 * caller's and has to live until fl_program_drop_data. Returns a number to name it by. */
int fl_program_add_data(fl_program *program, int tensor, const void *base, int64_t rows,
                        const float *byte_values);
/* Waits until nothing reads these any more, and forgets them. */
int fl_program_drop_data(fl_program *program, int n_data, const int32_t *data);

/* Brings rows of the arrays `data` into the staging tensors for an iteration of kind `runs`
 * (FL_TRAINS, ...). */
int fl_program_stage(fl_program *program, int runs, int n_data, const int32_t *data, int n_rows,
                     const int64_t *rows);
/* Issues one iteration over what was staged, of which the first `valid_samples` count, and stages
 * the next batch meanwhile (n_data 0: none). A value of a loss that counts adds `label_shares` of
 * it to what training minimises: one a loss operator, in the graph's order. Gradients are
 * multiplied with `loss_scale` until they are used, and are not used if they overflow; 0: they are
 * as they are, unless tensors are stored as float16. Returns a ticket. */
int64_t fl_program_step(fl_program *program, int runs, int64_t step, int64_t valid_samples,
                        int n_losses, const double *label_shares, double learning_rate,
                        double loss_scale, int n_data, const int32_t *data, int n_rows,
                        const int64_t *rows);

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

/* Whole tensors, row-major. Reading a gradient sums its partial values. */
int fl_program_write(fl_program *program, int tensor, int field, int state, const void *host);
int fl_program_read(fl_program *program, int tensor, int field, int state, void *host);
/* The shards of a weight as it is kept between iterations; returns how many there are. Notes of up
 * to `n` of them the device, and for each dimension of the weight the bounds, first all lower
 * ones, then all upper ones. */
int fl_program_home(fl_program *program, int weight, int n, int32_t *devices, int64_t *bounds);
typedef struct {
  int32_t tensor, field, state, shard; /* of fl_program_home */
  void *to;                            /* null: it is another rank's */
  int64_t stride[6];                   /* of the host array, in elements, of each dimension */
} fl_host_shard;
/* Copies the shards of weights and states to the host, each rank its own; all ranks name the same
 * ones, those of a field together. Returns when they are there. */
int fl_program_save(fl_program *program, int n, const fl_host_shard *shards);
/* Launches that are not the plan's. */
typedef enum { FL_STAGED = -1, FL_OTHER = -2 } fl_own_launch;
typedef struct {
  int32_t launch, part, device; /* the plan's launch, or one of the above */
  int32_t thread;               /* the system's number of the one that ran it */
  int64_t start_time, end_time; /* ns, of the rank's clock */
  int64_t computing_time;       /* ns in which its thread had a core */
} fl_record;
typedef struct {
  int64_t n;
  const fl_record *records; /* in the order in which tasks ended; until this is called again */
} fl_records;
/* What was noted, and whether to note when each task of this rank runs from the next iteration on.
 */
int fl_program_record(fl_program *program, int on, fl_records *out);
/* Which of an iteration's Legion launches (0, 1, ...) runs each of the plan's launches, of which
 * there are `n`, in iterations of that kind; -1: none. Those with one number run as one. */
int fl_program_issued(fl_program *program, int runs, int n, int32_t *numbers);
/* For each task of the plan's launch: the device it last ran on, and how long (ns) it took; both -1
 * if it did not run on this rank. */
int fl_program_last(fl_program *program, int launch, int32_t *devices, int64_t *times);

/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
