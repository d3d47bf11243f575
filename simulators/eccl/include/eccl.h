/* ECCL 3.1 as libeccl_sim.so implements it: collectives between processes, really computed. Names, signatures and
 * values follow what is public about ECCL; the README of hvd-core's template says where each of them comes from.
 *
 * The library's limits, which the simulator enforces:
 *   - 64-bit types (int64, uint64, float64) only in ecclBroadcast and ecclAllGather: else ecclInvalidArgument. There
 *     is no bool and no 8-bit float.
 *   - A group holds one kind of operation (send and receive are one kind): else ecclInvalidUsage, and the whole group
 *     is dropped.
 *   - A communicator may be used only while the device it was made on is current: else ecclInvalidUsage.
 *   - Buffers are device memory of that device, long enough: else ecclInvalidArgument.
 *   - No split, no finalize, no non-blocking creation, no registration of memory, no all-to-all.
 *
 * Calls return when the operation is in the stream's queue. A later failure (a peer died, or asks for something else)
 * ends the communicator's operations on all ranks; ecclCommGetAsyncError tells it.
 */
#ifndef ECCL_H_
#define ECCL_H_

#include "tops_runtime.h"

#define ECCL_MAJOR 3
#define ECCL_MINOR 1
#define ECCL_PATCH 0
#define ECCL_VERSION_CODE 30100 /* major * 10000 + minor * 100 + patch */

#define ECCL_UNIQUE_ID_BYTES 128

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ecclComm* ecclComm_t;
typedef struct {
  char internal[ECCL_UNIQUE_ID_BYTES];
} ecclUniqueId;

typedef enum {
  ecclSuccess = 0,
  ecclUnhandledTopsError = 1,
  ecclSystemError = 2,
  ecclInternalError = 3,
  ecclInvalidArgument = 4,
  ecclInvalidUsage = 5,
  ecclRemoteError = 6,
  ecclInProgress = 7,
  ecclNumResults = 8
} ecclResult_t;

typedef enum {
  ecclInt8 = 0,
  ecclChar = 0,
  ecclUint8 = 1,
  ecclInt32 = 2,
  ecclInt = 2,
  ecclUint32 = 3,
  ecclInt64 = 4,
  ecclUint64 = 5,
  ecclFloat16 = 6,
  ecclHalf = 6,
  ecclFloat32 = 7,
  ecclFloat = 7,
  ecclFloat64 = 8,
  ecclDouble = 8,
  ecclBfloat16 = 9,
  ecclNumTypes = 10
} ecclDataType_t;

typedef enum {
  ecclSum = 0,
  ecclProd = 1,
  ecclMax = 2,
  ecclMin = 3,
  ecclAvg = 4,
  ecclNumOps = 5, /* what ecclRedOpCreatePreMulSum makes begins here */
  ecclMaxRedOp = 0x7fffffff
} ecclRedOp_t;

typedef enum {
  ecclScalarDevice = 0,       /* device memory, read when the collective runs */
  ecclScalarHostImmediate = 1 /* host memory, read before the call returns */
} ecclScalarResidence_t;

TOPS_PUBLIC_API ecclResult_t ecclGetVersion(int* version);
TOPS_PUBLIC_API const char* ecclGetErrorString(ecclResult_t result);
/* The last error of `comm`, or of the calling thread for NULL; valid until that one's next error. */
TOPS_PUBLIC_API const char* ecclGetLastError(ecclComm_t comm);

/* The id holds the address of a rendezvous in the calling process, which must live until all ranks have joined. */
TOPS_PUBLIC_API ecclResult_t ecclGetUniqueId(ecclUniqueId* id);
/* Blocks until all ranks have joined (ECCL_SIM_TIMEOUT_S); within a group, ecclGroupEnd does. */
TOPS_PUBLIC_API ecclResult_t ecclCommInitRank(ecclComm_t* comm, int nranks, ecclUniqueId id, int rank);
/* Waits for the communicator's operations, then ends it. */
TOPS_PUBLIC_API ecclResult_t ecclCommDestroy(ecclComm_t comm);
/* Ends it at once, without waiting: operations in flight end unfinished, and the peers see ecclRemoteError. A buffer
 * is no longer touched when its stream has been synchronised. */
TOPS_PUBLIC_API ecclResult_t ecclCommAbort(ecclComm_t comm);
TOPS_PUBLIC_API ecclResult_t ecclCommGetAsyncError(ecclComm_t comm, ecclResult_t* error);
TOPS_PUBLIC_API ecclResult_t ecclCommCount(const ecclComm_t comm, int* count);
TOPS_PUBLIC_API ecclResult_t ecclCommDevice(const ecclComm_t comm, int* device);
TOPS_PUBLIC_API ecclResult_t ecclCommUserRank(const ecclComm_t comm, int* rank);

/* A sum of each rank's input times that rank's scalar (of `datatype`). */
TOPS_PUBLIC_API ecclResult_t ecclRedOpCreatePreMulSum(ecclRedOp_t* op, void* scalar, ecclDataType_t datatype,
                                                      ecclScalarResidence_t residence, ecclComm_t comm);
TOPS_PUBLIC_API ecclResult_t ecclRedOpDestroy(ecclRedOp_t op, ecclComm_t comm);

/* Counts are elements. In place: equal pointers; for all-gather sendbuff == recvbuff + rank * sendcount, for
 * reduce-scatter recvbuff == sendbuff + rank * recvcount. */
TOPS_PUBLIC_API ecclResult_t ecclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype,
                                           ecclRedOp_t op, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype,
                                           int root, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclReduce(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype,
                                        ecclRedOp_t op, int root, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                           ecclDataType_t datatype, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                               ecclDataType_t datatype, ecclRedOp_t op, ecclComm_t comm,
                                               topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclGather(const void* sendbuff, void* recvbuff, size_t sendcount, ecclDataType_t datatype,
                                        int root, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                         ecclDataType_t datatype, int root, ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclSend(const void* sendbuff, size_t count, ecclDataType_t datatype, int peer,
                                      ecclComm_t comm, topsStream_t stream);
TOPS_PUBLIC_API ecclResult_t ecclRecv(void* recvbuff, size_t count, ecclDataType_t datatype, int peer, ecclComm_t comm,
                                      topsStream_t stream);

/* Per thread, may be nested. Nothing is checked against the peers or started before the outermost ecclGroupEnd. */
TOPS_PUBLIC_API ecclResult_t ecclGroupStart(void);
TOPS_PUBLIC_API ecclResult_t ecclGroupEnd(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ECCL_H_ */
