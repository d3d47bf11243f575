// OHCL, a small library of collectives between the processes of one host: the stand-in for yours. Each call blocks,
// returns a code, throws nothing and starts no thread. One thread at a time per communicator, except for ohclInterrupt.
#pragma once
#include <stddef.h>

typedef struct ohclComm* ohclComm_t;
enum { ohclSuccess, ohclTimeout, ohclPeerLost, ohclInterrupted, ohclMismatch, ohclSystem };
// Adds `in` to `inout`, element by element.
typedef void (*ohclCombine_t)(void* inout, const void* in, size_t count, const void* context);

extern "C" {
const char* ohclVersion(void);
// Makes the place where the ranks meet, and its name, of at most 64 characters.
int ohclCreate(int size, char* name);
void ohclRemove(const char* name);
// Every rank joins with the name. When all have joined, the name may be removed.
int ohclJoin(const char* name, int rank, int size, double seconds, ohclComm_t* comm);
int ohclAllreduce(ohclComm_t, const void* in, void* out, size_t count, size_t width, ohclCombine_t, const void* context,
                  double seconds);
int ohclBroadcast(ohclComm_t, const void* in, void* out, size_t bytes, int root, double seconds);
int ohclAllgatherv(ohclComm_t, const void* in, void* out, const size_t* bytes, double seconds);
// Ends a call that blocks, and fails all later ones, on this rank. Any thread.
void ohclInterrupt(ohclComm_t);
void ohclLeave(ohclComm_t);
}
