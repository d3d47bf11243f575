/* The part of the TOPS device runtime that a backend needs, as libeccl_sim.so implements it on ordinary memory and
 * threads. Names, signatures and values follow what is public about the real runtime; the README of hvd-core's template
 * says where each of them comes from. What begins with topsSim exists in the simulator only.
 *
 * Rules, stricter than most hardware so that mistakes show:
 *   - Each thread has a current device (0 at first). Memory, copies, launches, recording and communicators belong to
 *     the device that is current; another device's stream or pointer is refused.
 *   - A stream is a queue of its own and nothing synchronises two streams but events and the host. Stream NULL is the
 *     device's default stream: one queue shared by all threads, no implicit order with the others.
 *   - *Async calls return before anything has happened, also with pageable host memory.
 *   - Device memory cannot be read or written by the host: a touch is a segmentation fault.
 *   - A failing operation on a stream is reported once, by the next query or synchronisation of that stream.
 *   - A forked child has no devices: every call answers topsErrorNotInitialized.
 */
#ifndef TOPS_RUNTIME_H_
#define TOPS_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#define TOPS_PUBLIC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum topsError_t {
  topsSuccess = 0,
  topsErrorInvalidValue = 1,
  topsErrorOutOfMemory = 2,
  topsErrorNotInitialized = 3,
  topsErrorInvalidDevicePointer = 17,
  topsErrorInvalidMemcpyDirection = 21,
  topsErrorNoDevice = 100,
  topsErrorInvalidDevice = 101,
  topsErrorOperatingSystem = 304,
  topsErrorInvalidHandle = 400,
  topsErrorNotReady = 600,
  topsErrorIllegalAddress = 700,
  topsErrorLaunchFailure = 719,
  topsErrorNotSupported = 801,
  topsErrorUnknown = 999
} topsError_t;

typedef enum topsMemcpyKind {
  topsMemcpyHostToHost = 0,
  topsMemcpyHostToDevice = 1,
  topsMemcpyDeviceToHost = 2,
  topsMemcpyDeviceToDevice = 3,
  topsMemcpyDefault = 4 /* found out from the pointers */
} topsMemcpyKind;

typedef enum topsMemoryType {
  topsMemoryTypeHost = 1,   /* from topsHostMalloc */
  topsMemoryTypeDevice = 2, /* an address */
  topsMemoryTypeScatter = 4 /* a handle: TOPS_SIM_MEMORY=handle */
} topsMemoryType;

typedef struct itopsStream_t* topsStream_t;
typedef struct itopsEvent_t* topsEvent_t;
typedef void (*topsHostFn_t)(void* userData);

/* Offsets are those of the published struct; what the simulator does not fill is zero. */
typedef struct topsDeviceProp_t {
  char name[256];
  size_t totalGlobalMem; /* bytes */
  size_t sharedMemPerBlock;
  int reservedLimits[10];
  int major, minor;
  int multiProcessorCount;
  int reservedClocks[5];
  int pciDomainID, pciBusID, pciDeviceID;
  size_t reservedShared;
  int canMapHostMemory;
  char gcuArchName[256];
  char reservedTail[1024]; /* longer than the published tail, so that a real library cannot write past the end */
} topsDeviceProp_t;

typedef struct topsPointerAttribute_t {
  topsMemoryType memoryType;
  int device;
  void* device_pointer; /* NULL for host memory */
  void* host_pointer;   /* NULL for device memory */
  int isManaged;
  unsigned allocationFlags;
} topsPointerAttribute_t;

#define topsStreamDefault 0x0u
#define topsStreamNonBlocking 0x1u
#define topsEventDefault 0x0u
#define topsEventBlockingSync 0x1u
#define topsEventDisableTiming 0x2u
#define topsHostMallocDefault 0x0u

/* Errors. topsGetLastError returns and clears the calling thread's last error. */
TOPS_PUBLIC_API const char* topsGetErrorName(topsError_t error);
TOPS_PUBLIC_API const char* topsGetErrorString(topsError_t error);
TOPS_PUBLIC_API topsError_t topsGetLastError(void);

/* Devices. topsGetDeviceCount creates nothing on a device. */
TOPS_PUBLIC_API topsError_t topsRuntimeGetVersion(int* version);
TOPS_PUBLIC_API topsError_t topsGetDeviceCount(int* count);
TOPS_PUBLIC_API topsError_t topsSetDevice(int device);
TOPS_PUBLIC_API topsError_t topsGetDevice(int* device);
TOPS_PUBLIC_API topsError_t topsGetDeviceProperties(topsDeviceProp_t* prop, int device);
TOPS_PUBLIC_API topsError_t topsDeviceGetPCIBusId(char* pciBusId, int len, int device);
TOPS_PUBLIC_API topsError_t topsDeviceSynchronize(void);

/* Memory. Zero bytes: success, and a NULL pointer. */
TOPS_PUBLIC_API topsError_t topsMalloc(void** ptr, size_t bytes);
TOPS_PUBLIC_API topsError_t topsFree(void* ptr);
TOPS_PUBLIC_API topsError_t topsHostMalloc(void** ptr, size_t bytes, unsigned int flags);
TOPS_PUBLIC_API topsError_t topsHostFree(void* ptr);
TOPS_PUBLIC_API topsError_t topsMemGetInfo(size_t* free_bytes, size_t* total_bytes);
/* topsErrorInvalidValue: memory that the runtime did not allocate. */
TOPS_PUBLIC_API topsError_t topsPointerGetAttributes(topsPointerAttribute_t* attributes, const void* ptr);

/* Copies. The blocking ones go over the default stream and wait for it. */
TOPS_PUBLIC_API topsError_t topsMemcpy(void* dst, const void* src, size_t bytes, topsMemcpyKind kind);
TOPS_PUBLIC_API topsError_t topsMemcpyAsync(void* dst, const void* src, size_t bytes, topsMemcpyKind kind,
                                            topsStream_t stream);
TOPS_PUBLIC_API topsError_t topsMemset(void* dst, int value, size_t bytes);
TOPS_PUBLIC_API topsError_t topsMemsetAsync(void* dst, int value, size_t bytes, topsStream_t stream);

/* Streams. A lower number is a higher priority; the simulator only remembers it. Destroying returns at once; what is
 * queued is still executed. */
TOPS_PUBLIC_API topsError_t topsStreamCreate(topsStream_t* stream);
TOPS_PUBLIC_API topsError_t topsStreamCreateWithFlags(topsStream_t* stream, unsigned int flags);
TOPS_PUBLIC_API topsError_t topsStreamCreateWithPriority(topsStream_t* stream, unsigned int flags, int priority);
TOPS_PUBLIC_API topsError_t topsDeviceGetStreamPriorityRange(int* least, int* greatest);
TOPS_PUBLIC_API topsError_t topsStreamDestroy(topsStream_t stream);
TOPS_PUBLIC_API topsError_t topsStreamQuery(topsStream_t stream); /* topsErrorNotReady: not yet */
TOPS_PUBLIC_API topsError_t topsStreamSynchronize(topsStream_t stream);
TOPS_PUBLIC_API topsError_t topsStreamWaitEvent(topsStream_t stream, topsEvent_t event, unsigned int flags);
/* A host function in stream order; it must not call the runtime. */
TOPS_PUBLIC_API topsError_t topsLaunchHostFunc(topsStream_t stream, topsHostFn_t fn, void* userData);

/* Events. One that was never recorded counts as done. Recording again replaces what the event stands for; who waited
 * for it before goes on waiting for the earlier record. Milliseconds; only of events without DisableTiming. */
TOPS_PUBLIC_API topsError_t topsEventCreate(topsEvent_t* event);
TOPS_PUBLIC_API topsError_t topsEventCreateWithFlags(topsEvent_t* event, unsigned int flags);
TOPS_PUBLIC_API topsError_t topsEventRecord(topsEvent_t event, topsStream_t stream);
TOPS_PUBLIC_API topsError_t topsEventQuery(topsEvent_t event); /* topsErrorNotReady: not yet */
TOPS_PUBLIC_API topsError_t topsEventSynchronize(topsEvent_t event);
TOPS_PUBLIC_API topsError_t topsEventElapsedTime(float* milliseconds, topsEvent_t start, topsEvent_t stop);
TOPS_PUBLIC_API topsError_t topsEventDestroy(topsEvent_t event);

/* Simulator only: a "kernel". fn runs in stream order on the stream's thread and reaches device memory by
 * topsSimAddress, which answers NULL outside of such a function, for a pointer that is not device memory, and where
 * `bytes` would pass the end. fn must not call anything else of the runtime. */
typedef void (*topsSimKernel_t)(void* arg);
TOPS_PUBLIC_API topsError_t topsSimLaunch(topsStream_t stream, topsSimKernel_t fn, void* arg);
TOPS_PUBLIC_API void* topsSimAddress(const void* device_ptr, size_t bytes);

/* Simulator only: what stands for `base` + `offset` and may be given to every function that takes device memory. With
 * addresses (the default) that is the sum. With TOPS_SIM_MEMORY=handle a device pointer is the name of an object,
 * arithmetic on it is refused, and this is the only way to an offset; the result lives as long as `base`, and the same
 * offset gives the same one. topsErrorInvalidValue: `offset` + `bytes` passes the end. */
TOPS_PUBLIC_API topsError_t topsSimSubBuffer(void** view, void* base, size_t offset, size_t bytes);

/* Simulator only: the copies that this process has asked for so far, by topsMemcpyKind (never topsMemcpyDefault).
 * Collectives and kernels do not count. */
typedef struct topsSimTraffic_t {
  uint64_t calls[4];
  uint64_t bytes[4];
} topsSimTraffic_t;
TOPS_PUBLIC_API topsError_t topsSimTraffic(topsSimTraffic_t* traffic);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TOPS_RUNTIME_H_ */
