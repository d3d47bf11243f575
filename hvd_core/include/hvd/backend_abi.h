/* The contract between hvd-core and a backend plugin: one C header, no library to link.
 *
 * A plugin is a shared object that exports hvd_backend_entry_v1 and answers with static, constant tables. The
 * engine ("host") calls the tables; the plugin calls the host through hvd_host_api. There is no other interface.
 *
 * Threads
 *   T1  The host makes one call at a time into the communicators of one device (or of host memory), and one at a time
 *       into the table of a device, but from changing threads. A call of one kind may run while one of the other does.
 *   T2  abort, async_error, query, event_query, mem_query, count, stream_native, id_bytes and info may come from any
 *       thread at any time; so may window_free, event_wait and stream_sync, several at once and during all other calls.
 *   T3  no call waits for another rank except create, split, finalize, window_create, window_destroy, stream_sync,
 *       event_wait and req_wait; these keep their deadline. A collective marked HVD_COLL_AGREED may also block in
 *       collective, group_end and req_test, until its deadline or an abort; the first operations of a communicator may
 *       block there in any case.
 *   T4  a plugin's own thread announces itself with host->thread_enter before its first host call.
 *   T5  after abort, destroy is local and bounded in time. A create or window_create that the host has given up may
 *       still run then.
 *
 * Versions
 *   The major is in the entry symbol's name; the minor is the size of the structs. Structs only grow, at the end.
 *   The reader of a struct uses at most hdr.struct_size bytes of it; a callee that fills a caller's out-struct writes
 *   at most out->hdr.struct_size bytes. Arrays of structs are walked with the first element's hdr.struct_size as
 * stride. A zero in a field always means the behaviour from before the field existed. A callee that gets a struct
 * longer than it knows answers HVD_E_UNSUPPORTED unless every byte beyond its own version of the struct is zero.
 *   Numbers (element types, reductions, collectives, kinds of memory, codes) grow likewise. To a number that it does
 * not know, a callee answers HVD_E_UNSUPPORTED or HVD_E_INVALID, in query as in the call itself, and changes nothing.
 *   It ignores bits of `flags` that it does not know: they are advice. There is no hidden padding (-Wpadded is an error
 * in the tests), so sizeof(T) is the end of T's last field.
 *
 * Deadlines are absolute CLOCK_MONOTONIC nanoseconds, HVD_NO_DEADLINE is no deadline. 0 means that the caller names
 * none and the callee chooses: in store_get the host takes the deadline of the creation; a backend takes a limit of its
 * own in calls that wait (the C++ layer has 60 s), and none for a collective. The host never passes 0 itself. At a
 * deadline that has passed, a call looks once and does not wait.
 */
#ifndef HVD_BACKEND_ABI_H_
#define HVD_BACKEND_ABI_H_

#include <stddef.h>
#include <stdint.h>

#define HVD_ABI_MAJOR 1
#define HVD_ABI_MINOR 1
#define HVD_NO_DEADLINE INT64_MAX

#ifdef __cplusplus
extern "C" {
#endif

/* First member of every struct. `ext` is NULL in this minor. It is for experiments, whose structs begin with a hvd_hdr
 * and a uint64_t that identifies them. A reader that does not know the struct treats `ext` as NULL. */
typedef struct hvd_hdr {
  uint32_t struct_size;
  uint16_t major, minor;
  const void* ext;
} hvd_hdr;

/* True if a table is long enough for slot f and fills it. */
#define HVD_HAS(p, T, f) ((p) && (p)->hdr.struct_size >= offsetof(T, f) + sizeof((p)->f) && (p)->f)

/* ------------------------------------------------------------------------------------------------ numbers, fixed */

typedef int32_t hvd_rc;
enum {
  HVD_OK = 0,
  HVD_INPROGRESS = 1,    /* started; ask again with the matching test or wait call */
  HVD_E_INVALID = 2,     /* the caller broke a rule of this header */
  HVD_E_UNSUPPORTED = 3, /* this backend cannot do that, and query answered so */
  HVD_E_UNAVAILABLE = 4, /* could work, but not on this machine now */
  HVD_E_NOMEM = 5,
  HVD_E_TIMEOUT = 6, /* the deadline passed */
  HVD_E_ABORTED = 7, /* abort was called */
  HVD_E_REMOTE = 8,  /* a peer failed or disappeared */
  HVD_E_DEVICE = 9,  /* the device failed */
  HVD_E_INTERNAL = 10,
  HVD_E_ABI = 11
};

enum { HVD_EF_RETRYABLE = 1, HVD_EF_COMM_DEAD = 2, HVD_EF_DEVICE_DEAD = 4 };

/* Element types. 0..9 are Horovod's wire numbers. */
enum {
  HVD_UINT8 = 0,
  HVD_INT8 = 1,
  HVD_UINT16 = 2,
  HVD_INT16 = 3,
  HVD_INT32 = 4,
  HVD_INT64 = 5,
  HVD_FLOAT16 = 6,
  HVD_FLOAT32 = 7,
  HVD_FLOAT64 = 8,
  HVD_BOOL = 9,
  HVD_BFLOAT16 = 10,
  HVD_FLOAT8_E4M3FN = 11,
  HVD_FLOAT8_E5M2 = 12,
  HVD_UINT32 = 13,
  HVD_UINT64 = 14,
  HVD_DTYPE_COUNT = 15
};

/* Reductions. On HVD_BOOL: SUM and MAX are logical or, PROD and MIN logical and. AVG of integers divides the exact sum
 * and truncates toward zero; AVG of bool is invalid. */
enum { HVD_SUM = 0, HVD_PROD = 1, HVD_MIN = 2, HVD_MAX = 3, HVD_AVG = 4, HVD_REDOP_COUNT = 5 };

/* Collectives. Required: an ALLGATHER of one element type, from which the host can compose all others
 * (docs/backend-abi.md, "What a backend can leave out"). The host calls SEND and RECV on communicators of two ranks. */
enum {
  HVD_ALLREDUCE = 0,
  HVD_REDUCE = 1,
  HVD_BROADCAST = 2,
  HVD_ALLGATHER = 3, /* with out_counts: the v form */
  HVD_REDUCESCATTER = 4,
  HVD_ALLTOALL = 5,
  HVD_SEND = 6,
  HVD_RECV = 7,
  HVD_BARRIER = 8,
  HVD_COLL_COUNT = 9
};

/* DEVICE: device memory. PINNED: host memory that the device itself copies from and to. HOST: any host memory. MANAGED:
 * memory that moves between both. REGISTERED: device memory allocated so that communicators can mem_register it. */
enum { HVD_MEM_DEVICE = 1, HVD_MEM_PINNED = 2, HVD_MEM_HOST = 3, HVD_MEM_MANAGED = 4, HVD_MEM_REGISTERED = 5 };

/* Bits of hvd_comm_api.caps. */
enum {
  HVD_CAP_STREAM = 1u << 0,      /* collective() enqueues on args->stream and returns HVD_OK; on host memory (no stream)
                                    the collective is complete then */
  HVD_CAP_REQUEST = 1u << 1,     /* collective() returns a request that req_test/req_wait drive */
  HVD_CAP_VECTORED = 1u << 2,    /* takes n_bufs > 1; otherwise the host packs */
  HVD_CAP_GROUP_SAME = 1u << 3,  /* group_begin/group_end around calls of one kind */
  HVD_CAP_GROUP_MIXED = 1u << 4, /* ... of any kinds */
  HVD_CAP_ABORT = 1u << 5,
  HVD_CAP_ONE_HOST = 1u << 6,     /* all ranks of a communicator must share a host */
  HVD_CAP_MEM_HOST = 1u << 7,     /* reads and writes host memory */
  HVD_CAP_MEM_DEVICE = 1u << 8,   /* reads and writes memory of `device_types` */
  HVD_CAP_PROCESS_LOCAL = 1u << 9 /* works between threads of one process too (tests, sanitizers) */
};

/* How an operation is served, in hvd_coll_caps.support. */
enum { HVD_UNSERVED = 0, HVD_NATIVE = 1, HVD_EMULATED = 2 };

enum { HVD_LOG_TRACE = 0, HVD_LOG_DEBUG = 1, HVD_LOG_INFO = 2, HVD_LOG_WARN = 3, HVD_LOG_ERROR = 4, HVD_LOG_FATAL = 5 };

/* --------------------------------------------------------------------------------------------------- small structs */

/* The caller owns it and sets hdr.struct_size; the callee fills it only if the call fails. The host never passes NULL
 * for an hvd_error, a plugin may. Texts end in a NUL. */
typedef struct hvd_error {
  hvd_hdr hdr;
  int32_t code, flags;
  int64_t vendor_code;
  char text[992];
} hvd_error;

typedef struct hvd_device_s* hvd_device;
typedef struct hvd_stream_s* hvd_stream;
typedef struct hvd_event_s* hvd_event;
typedef struct hvd_mem_s* hvd_mem;
typedef struct hvd_comm_s* hvd_comm;
typedef struct hvd_req_s* hvd_req;
typedef struct hvd_window_s* hvd_window; /* since 1.1 */

/* A buffer. `base` may be a handle: never add to it, use `offset`. */
typedef struct hvd_buf {
  void* base;
  uint64_t offset;
  uint64_t bytes;
} hvd_buf;

/* ------------------------------------------------------------------------------------------------- host -> plugin */

typedef struct hvd_host_api {
  hvd_hdr hdr;
  void (*log)(int32_t level, const char* file, int32_t line, const char* text);
  /* Key-value rendezvous; `store` comes from hvd_comm_args. Keys are private to the communicator being created. get
   * waits until the key exists or the deadline passes (HVD_E_TIMEOUT); with a deadline in the past it tries once. *n is
   * the capacity on entry, the size on return, also if the value does not fit and the answer is HVD_E_INVALID. */
  hvd_rc (*store_set)(void* store, const char* key, const void* p, uint64_t n, hvd_error*);
  hvd_rc (*store_get)(void* store, const char* key, void* p, uint64_t* n, int64_t deadline_ns, hvd_error*);
  hvd_rc (*store_add)(void* store, const char* key, int64_t delta, int64_t* now, hvd_error*);
  hvd_rc (*store_del)(void* store, const char* key, hvd_error*);
  /* Value of one of the plugin's own options as text that ends in a NUL, which *n counts; *n as in store_get.
   * HVD_E_UNAVAILABLE if the option is not set. */
  hvd_rc (*option)(const char* key, char* text, uint64_t* n);
  void (*thread_enter)(const char* role);
  /* A phase of the operation with this seq begins (1) or ends (0); phases of one operation may nest. */
  void (*activity)(hvd_comm, uint64_t seq, const char* phase, int32_t begin_end);
  /* A thread of the plugin has seen a completion: the host calls req_test or event_query soon. */
  void (*notify)(void* token);
} hvd_host_api;

/* ------------------------------------------------------------------------------------------------------- devices */

/* Bits of hvd_device_props.flags. */
enum {
  HVD_DEVICE_HANDLES = 1 << 0 /* `base` of its memory is a handle that only this table understands */
};

/* Unknown values are 0 or "". An unknown NUMA node is -1. */
typedef struct hvd_device_props {
  hvd_hdr hdr;
  uint64_t free_bytes, total_bytes;
  int32_t numa_node, flags;
  /* The device works best on addresses that are multiples of `alignment` (a power of two, or 0), and takes this many
   * items in one batched_copy_scale (0: any number). */
  uint32_t alignment, batch_limit;
  char pci[32], uuid[48], arch[48]; /* "0000:3b:00.0", the vendor's format, "sm_90" */
} hvd_device_props;

/* Flags of event_create. An event without flags only orders streams, which costs runtimes less. */
enum {
  HVD_EVENT_TIMING = 1 << 0 /* event_elapsed_ns works with it; without this flag it may answer HVD_E_INVALID */
};

/* Copies `count` elements, converts each to dst_dtype, and multiplies it by `scale` unless that is 0 or 1. Between
 * equal types without a scale, the bits are copied, at any address; elements that are converted or scaled lie at
 * multiples of their size. No two items of a call overlap, so their order is free; src and dst of one item may be the
 * same buffer. */
typedef struct hvd_copy_item {
  hvd_hdr hdr;
  hvd_buf src, dst;
  double scale;
  uint64_t count;
  int32_t src_dtype, dst_dtype;
} hvd_copy_item;

typedef struct hvd_device_api {
  hvd_hdr hdr;
  const char* device_type; /* "cuda", "gcu", "cpu" */
  hvd_rc (*count)(int32_t*, hvd_error*);
  hvd_rc (*open)(int32_t ordinal, void* native_context, hvd_device*,
                 hvd_error*); /* context: NULL for the default one */
  hvd_rc (*close)(hvd_device, hvd_error*);
  hvd_rc (*props)(hvd_device, hvd_device_props*, hvd_error*);
  hvd_rc (*stream_create)(hvd_device, int32_t priority, hvd_stream*,
                          hvd_error*); /* below 0: before others; 0: normal */
  /* `native` belongs to the caller and may be destroyed before its wrapper. The wrapper is used only while `native`
   * lives, and destroying it does not touch `native`. One native stream may be wrapped more than once. */
  hvd_rc (*stream_wrap)(hvd_device, void* native, hvd_stream*, hvd_error*);
  void* (*stream_native)(hvd_stream);
  hvd_rc (*stream_wait_event)(hvd_stream, hvd_event, hvd_error*);
  hvd_rc (*stream_query)(hvd_stream, hvd_error*);
  hvd_rc (*stream_sync)(hvd_stream, int64_t deadline_ns, hvd_error*);
  hvd_rc (*stream_destroy)(hvd_stream, hvd_error*);
  hvd_rc (*event_create)(hvd_device, int32_t flags, hvd_event*, hvd_error*);
  hvd_rc (*event_record)(hvd_event, hvd_stream, hvd_error*);
  hvd_rc (*event_query)(hvd_event, hvd_error*); /* OK done (or never recorded), INPROGRESS not yet */
  hvd_rc (*event_wait)(hvd_event, int64_t deadline_ns, hvd_error*);
  hvd_rc (*event_elapsed_ns)(hvd_event a, hvd_event b, int64_t*, hvd_error*);
  hvd_rc (*event_destroy)(hvd_event, hvd_error*);
  hvd_rc (*mem_alloc)(hvd_device, int32_t kind, uint64_t bytes, hvd_mem*, hvd_buf*, hvd_error*);
  hvd_rc (*mem_free)(hvd_mem, hvd_error*);
  hvd_rc (*mem_query)(const void* p, int32_t* kind, int32_t* ordinal, hvd_error*); /* ordinal of host memory: -1 */
  /* All three enqueue work: the caller keeps the memory until the stream has completed it, but may free the items at
   * once. Host memory that is not PINNED may also be copied before the call returns; only `copy` gets it.
   * batched_copy_scale and reduce_local get memory that the device itself reads and writes: DEVICE, PINNED, MANAGED or
   * REGISTERED memory. */
  hvd_rc (*copy)(hvd_stream, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error*);
  hvd_rc (*batched_copy_scale)(hvd_stream, const hvd_copy_item*, uint64_t n, hvd_error*);
  /* SUM, PROD, MIN or MAX; elements lie at multiples of their size. */
  hvd_rc (*reduce_local)(hvd_stream, hvd_buf inout, hvd_buf in, uint64_t count, int32_t dtype, int32_t op, hvd_error*);
} hvd_device_api;

/* -------------------------------------------------------------------------------------------------- communicators */

/* The plugin may read its pointers during create and split only, except the store: that lives until create, split or
 * create_test answers something else than INPROGRESS. */
typedef struct hvd_comm_args {
  hvd_hdr hdr;
  const char* key; /* unique for this communicator in this job, for ever; the same on all its ranks */
  void* store;     /* for host->store_* */
  const void* id;  /* from id_create on rank 0, id_bytes() long; NULL when id_bytes() is 0 */
  uint64_t id_bytes;
  const int32_t* ranks; /* world ranks of the members, in order; `size` of them */
  const int32_t* hosts; /* host index of each member */
  int32_t rank, size;   /* of this process within the communicator */
  hvd_device device;    /* the device whose memory it works on; NULL for host memory */
  int64_t deadline_ns;
  void* notify_token; /* argument of host->notify */
  /* The table that opened `device`: this backend's, or another backend's for one of this backend's device_types (a
   * foreign device). Streams and memory belong to that table: only its slots read their handles. NULL without a device.
   */
  const hvd_device_api* device_api;
} hvd_comm_args;

/* Bits of hvd_coll_args.flags; a backend may ignore any of them. */
enum {
  /* All members have asked for the same operation and carry it out: a backend need not check that again. A process
   * carries out agreed operations one at a time; any two of them that several processes share have the same order.
   * Operations that the host has under way beside those of another communicator are not marked. */
  HVD_COLL_AGREED = 1 << 0
};

/* One collective over a list of buffers that share dtype, op and scale factors.
 *   n_bufs     length of in, out and counts; 1 unless the communicator declares VECTORED; 0 for BARRIER
 *   counts[i]  elements of buffer i that this rank contributes (ALLREDUCE, REDUCE, BROADCAST: the same on all ranks)
 *   ALLGATHER       out_counts[i * size + r]: elements from rank r in out[i], in rank order; NULL: counts[i] from each
 *   REDUCESCATTER   out_counts[i * size + r]: elements that rank r receives of in[i]; NULL: counts[i] / size each
 *   ALLTOALL        in_counts[i * size + r] to rank r, out_counts[i * size + r] from rank r; NULL: counts[i] / size
 *   BROADCAST       reads in[i] on the root only; REDUCE writes results on the root only, and may use out[i] elsewhere
 *   SEND, RECV      peer; SEND has no `out` (NULL), RECV no `in`. BARRIER has neither
 * in[i] equal to out[i] means in place; the input of an ALLGATHER then lies at its place in the output. The host never
 * asks for a REDUCESCATTER or an ALLTOALL in place; a backend may refuse them with HVD_E_UNSUPPORTED. Results are those
 * of a reduction in rank order, prescale before and postscale after it; a factor of 0 means 1. The backend may read
 * `args` and all its pointers only during the call; buffers stay valid until the request completes, or until the stream
 * has completed the collective. */
typedef struct hvd_coll_args {
  hvd_hdr hdr;
  int32_t coll, dtype, op, flags;
  uint64_t n_bufs;
  const hvd_buf* in;
  const hvd_buf* out;
  const uint64_t* counts;
  const uint64_t* in_counts;
  const uint64_t* out_counts;
  int32_t root, peer; /* ranks within the communicator */
  double prescale, postscale;
  hvd_stream stream;
  int64_t deadline_ns;
  uint64_t seq; /* for host->activity */
} hvd_coll_args;

/* The answer to query. In all calls of this kind, each buffer's address must be a multiple of `alignment` bytes (0 or
 * 1: any address), and no buffer may hold more than max_count elements, an allgather's result included (0: any number).
 * The host copies and divides buffers to keep these limits.
 * pack_below is about lists in an ALLREDUCE, REDUCE or BROADCAST. In device memory, for a backend that is VECTORED:
 * buffers of fewer bytes are packed into one (0: no buffer is packed). In host memory, for a backend that is not
 * VECTORED: buffers of fewer bytes are packed into one, the others are sent one by one (0: all are packed). Of two
 * backends that serve the same collective, the one with the higher score is better. */
typedef struct hvd_coll_caps {
  hvd_hdr hdr;
  int32_t support, score;
  uint32_t alignment, flags; /* no flags yet: 0 */
  uint64_t max_count;
  uint64_t pack_below;
} hvd_coll_caps;

/* The arguments of window_create. `memory.base` may differ from rank to rank, all else is equal. The backend may read
 * the pointers during the call only. */
typedef struct hvd_window_args {
  hvd_hdr hdr;
  const char* key; /* unique for this window in this job, for ever */
  void* store;     /* for host->store_*, with keys that are private to this window */
  hvd_buf memory;  /* memory of this rank that becomes its part; a base of NULL: the backend allocates memory.bytes */
  int64_t deadline_ns;
} hvd_window_args;

typedef struct hvd_comm_api {
  hvd_hdr hdr;
  const char* device_types; /* "cuda,cpu" */
  uint64_t caps;
  uint64_t (*id_bytes)(void);
  hvd_rc (*id_create)(void* id, hvd_error*);
  hvd_rc (*create)(const hvd_comm_args*, hvd_comm*, hvd_error*); /* may return INPROGRESS: then create_test */
  hvd_rc (*create_test)(hvd_comm, hvd_error*);
  /* Like create, from a communicator whose ranks all make this call: each with the members of its own part, or with a
   * `size` of 0, which returns NULL. Parts share no rank; `id` is NULL. The host calls it while no operation of the
   * parent is in flight, for process sets that all ranks register, and destroys the parts before the parent. After
   * HVD_E_UNSUPPORTED on all ranks, before any peer was waited for, it calls create instead. */
  hvd_rc (*split)(hvd_comm, const hvd_comm_args*, hvd_comm*, hvd_error*);
  hvd_rc (*finalize)(hvd_comm, int64_t deadline_ns, hvd_error*);
  hvd_rc (*destroy)(hvd_comm, hvd_error*);
  hvd_rc (*abort)(hvd_comm, hvd_error*); /* never blocks, idempotent; later calls return ABORTED */
  hvd_rc (*async_error)(hvd_comm, hvd_error*);
  /* A pure function of arguments that are equal on all ranks; it reads no addresses. The scale factors count: the
   * answer for factors of 0 or 1 says nothing about others. Without a communicator (NULL): the best that a communicator
   * of this backend can serve; with one: how it serves the memory that it was created for. */
  hvd_rc (*query)(hvd_comm, const hvd_coll_args*, hvd_coll_caps*, hvd_error*);
  /* STREAM: enqueued, HVD_OK. REQUEST: HVD_OK if already complete (*req NULL), or HVD_INPROGRESS with a request. */
  hvd_rc (*collective)(hvd_comm, const hvd_coll_args*, hvd_req*, hvd_error*);
  /* After each group_begin that answered HVD_OK comes a group_end, also after a failure or an abort. */
  hvd_rc (*group_begin)(hvd_comm, hvd_error*);
  hvd_rc (*group_end)(hvd_comm, hvd_error*);
  hvd_rc (*req_test)(hvd_req, hvd_error*);                      /* OK, INPROGRESS or an error; makes progress */
  hvd_rc (*req_wait)(hvd_req, int64_t deadline_ns, hvd_error*); /* the same, but sleeps until done or the deadline */
  hvd_rc (*req_free)(hvd_req);
  /* Local. The host deregisters before it frees the buffer, and before it finalizes or destroys the communicator. */
  hvd_rc (*mem_register)(hvd_comm, hvd_buf, void** handle, hvd_error*);
  hvd_rc (*mem_deregister)(hvd_comm, void* handle, hvd_error*);
  /* A window is memory of every rank that the other ranks of the communicator reach without copies. Each rank has a
   * part of memory.bytes bytes. All ranks call window_create and window_destroy, at the same place in the order of
   * their collectives, while no collective is in flight.
   *   window_create   *part is this rank's part. A backend that only allocates, or only takes memory, answers
   *                   HVD_E_UNSUPPORTED to the other wish. Where the call fails on some ranks, the host destroys and
   *                   frees the windows of the others.
   *   window_destroy  No later collective uses the window. This rank's memory stays.
   *   window_free     Local, after window_destroy or after destroy: the memory that the backend has allocated goes. A
   *                   communicator is destroyed while its windows exist; their parts stay valid until they are freed.
   * A collective on a window is like any other: the backend finds by the address that a buffer lies in a window. The
   * buffers of one collective may lie in windows on some ranks and elsewhere on others, and at different offsets. */
  hvd_rc (*window_create)(hvd_comm, const hvd_window_args*, hvd_window*, hvd_buf* part, hvd_error*);
  hvd_rc (*window_destroy)(hvd_comm, hvd_window, int64_t deadline_ns, hvd_error*);
  hvd_rc (*window_free)(hvd_window, hvd_error*);
} hvd_comm_api;

/* -------------------------------------------------------------------------------------------------------- backend */

/* An option of the backend, which users set as HOROVOD_BACKEND_<NAME>_<OPTION> or in plugins.toml. The host checks what
 * users set by `type` and `range`, and passes the text on as it is (host->option).
 *   int, float  a number; range "low..high", either end may be missing
 *   size        bytes, "4096" or "64KiB" (K, M, G, T are powers of 1024); range as for numbers
 *   bool        1, true, yes, on, or 0, false, no, off, in upper or lower case
 *   enum        one of the words of range: "ring, tree"
 *   str, path   any text; range is for people
 * `fallback` is the value of an option that is not set, and within the range; "" if there is no such value. `doc` is
 * one sentence. */
typedef struct hvd_option {
  hvd_hdr hdr;
  const char *name, *type, *fallback, *range, *doc;
} hvd_option;

typedef struct hvd_backend_api {
  hvd_hdr hdr;
  const char *name, *tag, *version, *vendor_lib; /* "eccl", "ECCL", "0.3.1", "libeccl.so 3.1.0" */
  const hvd_device_api* device;                  /* either may be NULL */
  const hvd_comm_api* comm;
  const hvd_option* options;
  uint64_t option_count;
  /* A fact about the running library, as text for reports: *text ends in a NUL, *n is the capacity on entry and the
   * size with the NUL on return. HVD_E_INVALID if the text does not fit; HVD_E_UNAVAILABLE if the fact is not known, or
   * not yet. Any thread at any time; opens and starts nothing. */
  hvd_rc (*info)(const char* key, char* text, uint64_t* n, hvd_error*);
} hvd_backend_api;

/* The one exported symbol. `host` outlives the plugin. On success *out points to a static table. */
typedef hvd_rc (*hvd_backend_entry_fn)(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* err);
hvd_rc hvd_backend_entry_v1(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* err);

#ifdef __cplusplus
}
#endif
#endif /* HVD_BACKEND_ABI_H_ */
