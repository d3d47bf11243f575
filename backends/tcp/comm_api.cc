// The communicator table of this backend.
#include "backend.h"
#include "comm.h"
#include "host_kernels/comm_table.h"

namespace hvd::tcp {

constexpr uint64_t kCaps =
    HVD_CAP_REQUEST | HVD_CAP_VECTORED | HVD_CAP_ABORT | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;

constexpr hvd_comm_api kTable = host_kernels::CommTable<Comm>::make(kCaps);
const hvd_comm_api kCommunicator = kTable;

}  // namespace hvd::tcp
