/* The table by which a front end written in C or C++ calls the engine of its process: operations in, completions by
 * callback.
 *
 * For code that runs without Python: kernels of a framework's graph, handlers that a compiler calls. Python gets the
 * table's address from hvd_core.frontend_table() and passes it to that code, so that no library is linked. The table
 * lives as long as the process and serves the engine that runs now: before init(), after shutdown() and in a forked
 * child every call ends with HVD_FE_FAILED_PRECONDITION. Plain C, all types of fixed size. Any thread may call, without
 * Python's lock; run() must be called without it.
 *
 * Structures only grow at their ends; `struct_size` is the size that the caller was compiled with.
 */
#ifndef HVD_FRONTEND_ABI_H
#define HVD_FRONTEND_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_FRONTEND_VERSION 1

typedef enum hvd_fe_op {
  HVD_FE_ALLREDUCE = 0,
  HVD_FE_ALLGATHER = 1,
  HVD_FE_BROADCAST = 2,
  HVD_FE_BARRIER = 3,
  HVD_FE_ALLTOALL = 4,
  HVD_FE_REDUCESCATTER = 5,
  HVD_FE_JOIN = 6
} hvd_fe_op;

/* reduce_op: HVD_SUM ... HVD_AVG of backend_abi.h, or this for an allreduce by Adasum. */
#define HVD_FE_ADASUM 100

typedef enum hvd_fe_status {
  HVD_FE_OK = 0,
  HVD_FE_INVALID_ARGUMENT = 1,    /* a mistake: this rank's call, or a peer's of the same name, makes no sense */
  HVD_FE_FAILED_PRECONDITION = 2, /* the ranks disagree about an operation, or no engine runs */
  HVD_FE_ABORTED = 3,             /* the process set has been removed */
  HVD_FE_UNKNOWN = 4              /* the job has ended or is broken */
} hvd_fe_status;

/* A dense tensor, first index slowest. The caller keeps its memory until done(), and this struct, with the shape and
 * the device type that it points to, until the call returns. On a device done() may come before the work is over: the
 * memory is then freed, or used again, in the order of `stream` only. */
typedef struct hvd_fe_tensor {
  void* data;
  const int64_t* shape;
  int32_t ndim;
  int32_t dtype;           /* HVD_* of backend_abi.h */
  const char* device_type; /* NULL: host memory */
  int32_t device_id;       /* the backend's number of the device; negative if unknown: then the backend is asked */
  int32_t has_stream;
  void* stream; /* native: its work so far produces the data; work that it is given after done() comes after */
} hvd_fe_tensor;

typedef struct hvd_fe_result {
  uint32_t struct_size;
  int32_t status;      /* hvd_fe_status */
  const char* message; /* of a failure; "" otherwise */
  /* The results that the engine allocated (allgather, alltoall, and reducescatter without `out`). They are valid while
   * done() runs. Results on a device have to be copied by `copy` of this result. */
  int32_t n_outputs;
  const hvd_fe_tensor* outputs;
  /* alltoall: rows from each rank of the set; NULL otherwise. */
  int32_t n_received;
  const int64_t* received_splits;
  int32_t last_joined; /* join: the rank that joined last */
  /* A backend may still use the tensors after an abort: their memory must not be used again, or freed. */
  int32_t lingers;
  /* Copies output `index` to `target` (its shape and dtype, any device of the call). 0 or an hvd_fe_status. */
  int32_t (*copy)(const struct hvd_fe_result* self, int32_t index, const hvd_fe_tensor* target);
  const void* context; /* the engine's */
} hvd_fe_result;

typedef struct hvd_fe_call {
  uint32_t struct_size;
  int32_t op; /* hvd_fe_op */
  const char*
      name; /* without prefix. NULL or "": the engine counts the calls, equally on ranks that call in one order */
  int32_t process_set;
  int32_t reduce_op;
  int32_t root_rank; /* broadcast: rank in the job */
  int32_t n;         /* tensors; several make a group */
  double prescale, postscale;
  const hvd_fe_tensor* in;
  const hvd_fe_tensor* out; /* n of them, may be the inputs' memory; NULL: the engine allocates */
  const int64_t* splits;    /* alltoall (n == 1): rows for each rank of the set; NULL: equal shares */
  int32_t n_splits;
  /* The caller does nothing else until this call is done: it must not be coalesced with later ones. */
  int32_t urgent;
  /* Called exactly once, also for a call that is refused. After submit(): on a thread of the engine or on one that is
   * in submit() with `stay_ns`, with no lock held; perhaps before submit() returns. After run(): on the calling thread
   * before run() returns. It may call the table. */
  void (*done)(void* arg, const hvd_fe_result* result);
  void* arg;
  /* The type of the device whose tensors the framework has copied to the host memory `in`; it copies the results from
   * host memory as well. NULL: the tensors were there. The ranks of one operation must agree on it. A call whose
   * struct_size ends before it has NULL. */
  const char* staged_from;
  /* How long submit() may stay on the calling thread, in nanoseconds, to drive the engine until the call is done; after
   * that the call goes on without the thread. So the caller's thread may be needed elsewhere, and waits only for a
   * moment. In this time the thread may call done() of any call. 0, or a struct_size that ends before it: submit()
   * returns at once. It has no effect on run(), on a join and on tensors on a device. */
  int64_t stay_ns;
} hvd_fe_call;

typedef struct hvd_fe_table {
  uint32_t struct_size;
  uint32_t version;
  void (*submit)(const hvd_fe_call* call);
  /* Waits, and drives the engine meanwhile on the calling thread. */
  void (*run)(const hvd_fe_call* call);
  /* This front end has refused a call itself: the matching calls of the other ranks fail too. */
  void (*poison)(int32_t op, int32_t reduce_op, const char* name, int32_t process_set, const char* text);
  /* -1 if no engine runs. `process_set_rank` and `_size`: -3 for an unknown set; `_rank`: -4 if this rank is no member.
   */
  int32_t (*rank)(void);
  int32_t (*size)(void);
  int32_t (*local_rank)(void);
  int32_t (*local_size)(void);
  int32_t (*process_set_rank)(int32_t process_set);
  int32_t (*process_set_size)(int32_t process_set);
  /* The rows that this rank gets from a reducescatter of `rows` rows; negative as process_set_rank. */
  int64_t (*scattered_rows)(int64_t rows, int32_t process_set);
  /* 1 if the engine takes tensors on devices of this type, 0 if not, -1 if no engine runs. */
  int32_t (*serves)(const char* device_type);
} hvd_fe_table;

#ifdef __cplusplus
}
#endif

#endif /* HVD_FRONTEND_ABI_H */
