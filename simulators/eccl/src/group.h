// Groups: what a thread collects between ecclGroupStart and ecclGroupEnd. Everything here belongs to the calling
// thread.
#pragma once

#include <eccl.h>

#include <functional>
#include <string>

#include "comm.h"
#include "operation.h"
#include "stream.h"

namespace sim {

// Queues the operation on its stream, or keeps it until the group ends.
ecclResult_t submit(CommRef comm, StreamRef stream, Operation op);
// The same for the making of a communicator, which blocks.
ecclResult_t submit_creation(std::function<ecclResult_t()> create);

void group_start();
ecclResult_t group_end();

// Remembers a call's failure: in a group it fails the whole group. Returns `code`.
ecclResult_t refuse(ecclResult_t code, const std::string& text);
// Of the calling thread.
const std::string& last_text();

}  // namespace sim
