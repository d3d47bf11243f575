// Passing the memory's descriptor around; see rendezvous.h.
//
// The store carries an invitation: the socket's random name, a token that each connecting rank must show, and a token
// that rank 0 answers with. Both sides also check the other's user id, which the kernel tells.
#include "rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "segment.h"
#include "shared.h"

namespace hvd::shm {
namespace {

constexpr const char* kKey = "shm/memory";
constexpr int64_t kRequestNs = 2000000000;  // how long one connection may keep the others waiting
constexpr int64_t kSliceNs = 100000000;     // how often a wait for another rank looks whether it is still wanted

struct Invitation {
  uint32_t ready, reserved;  // ready 0: rank 0 failed, `reason` says why
  unsigned char name[32], request_token[32], answer_token[32];
  char reason[256];
};

struct SegmentRequest {
  unsigned char token[32];
  uint32_t rank, reserved;
};

socklen_t abstract_address(const Invitation& invitation, sockaddr_un* address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, invitation.name, sizeof invitation.name);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + sizeof invitation.name);
}

bool same_user(int socket) {
  ucred credentials;
  socklen_t n = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &n) == 0 && credentials.uid == geteuid();
}

// True when `fd` is ready for `events`; false when the deadline passed.
bool await(int fd, short events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left = deadline_ns - now_ns();
    pollfd p = {fd, events, 0};
    const int n = poll(&p, 1, left <= 0 ? 0 : static_cast<int>(std::min<int64_t>(left / 1000000 + 1, 1000)));
    if (n > 0) return true;
    if (n == 0 && left <= 0) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

// The same, for a wait that ends early (throws ABORTED) if the host has given the creation up.
bool await_wanted(const Meeting& meeting, int fd, int64_t deadline_ns) {
  while (!await(fd, POLLIN, std::min(deadline_ns, now_ns() + kSliceNs))) {
    if (now_ns() >= deadline_ns) return false;
    check_wanted(meeting);
  }
  return true;
}

// One message each way; both fit a SOCK_SEQPACKET record, so there are no partial ones.
bool send_segment(int connection, const unsigned char* token, int segment) {
  iovec data = {const_cast<unsigned char*>(token), 32};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &segment, sizeof segment);
  return sendmsg(connection, &message, MSG_NOSIGNAL) == 32;
}

// No descriptor if rank 0 did not answer with the expected token.
Descriptor receive_segment(int socket, const unsigned char* expected) {
  unsigned char token[32];
  iovec data = {token, sizeof token};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof token)) {
    return Descriptor();
  }
  if (message.msg_flags & MSG_CTRUNC) throw no_descriptor_left();
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) {
    return Descriptor();
  }
  int fd;
  memcpy(&fd, CMSG_DATA(c), sizeof fd);
  Descriptor segment(fd);
  return equal_digests(token, expected) ? std::move(segment) : Descriptor();
}

// Answers requests until every other rank has the segment.
void serve(const Meeting& meeting, int listener, const Invitation& invitation, int segment, int64_t deadline_ns) {
  const uint32_t size = meeting.size;
  std::vector<bool> served(size, false);
  uint32_t missing = size - 1;
  while (missing > 0) {
    if (!await_wanted(meeting, listener, deadline_ns)) {
      const uint32_t first = static_cast<uint32_t>(std::find(served.begin() + 1, served.end(), false) - served.begin());
      throw formatted_error(HVD_E_TIMEOUT, 0,
                            "%u of %u ranks did not come for the shared memory in time, rank %u first", missing,
                            size - 1, first);
    }
    const Descriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection && out_of_descriptors(errno)) throw no_descriptor_left();
    if (!connection || !same_user(connection.get())) continue;
    SegmentRequest request;
    if (!await(connection.get(), POLLIN, std::min(deadline_ns, now_ns() + kRequestNs))) continue;
    if (recv(connection.get(), &request, sizeof request, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof request))
      continue;
    if (!equal_digests(request.token, invitation.request_token) || request.rank == 0 || request.rank >= size) continue;
    if (!send_segment(connection.get(), invitation.answer_token, segment) || served[request.rank]) continue;
    served[request.rank] = true;
    --missing;
  }
}

void publish(const Meeting& meeting, const Invitation& invitation) {
  meeting.store.set(kKey, std::string(reinterpret_cast<const char*>(&invitation), sizeof invitation));
}

// A socket that listens under a random name, which goes into the invitation with two random tokens.
Descriptor open_listener(Invitation* invitation) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const bool drawn = random_bytes(invitation->name, sizeof invitation->name) &&
                     random_bytes(invitation->request_token, sizeof invitation->request_token) &&
                     random_bytes(invitation->answer_token, sizeof invitation->answer_token);
  const socklen_t n = abstract_address(*invitation, &address);
  if (!drawn || !listener || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 ||
      listen(listener.get(), 128) != 0) {
    if (!listener && out_of_descriptors(errno)) throw no_descriptor_left();
    throw formatted_error(HVD_E_UNAVAILABLE, 0, "a Unix socket to pass shared memory through: %s", strerror(errno));
  }
  return listener;
}

Descriptor share_memory(const Meeting& meeting, const std::function<Descriptor()>& make, int64_t deadline_ns) {
  Invitation invitation = {};
  Descriptor memory, listener;
  try {
    memory = make();
    listener = open_listener(&invitation);
  } catch (const Error& error) {
    // The other ranks wait for the invitation, and would otherwise run into their deadline.
    strncpy(invitation.reason, error.what(), sizeof invitation.reason - 1);
    try {
      publish(meeting, invitation);
    } catch (const Error&) {
    }
    throw;
  }
  invitation.ready = 1;
  publish(meeting, invitation);
  serve(meeting, listener.get(), invitation, memory.get(), deadline_ns);
  return memory;
}

Descriptor fetch_memory(const Meeting& meeting, int64_t deadline_ns) {
  Invitation invitation = {};
  const std::string value = meeting.store.get(kKey, deadline_ns, sizeof invitation);
  if (value.size() != sizeof invitation) {
    throw formatted_error(HVD_E_REMOTE, 0,
                          "rank 0's invitation has %zu bytes instead of %zu: the ranks run different "
                          "versions of this backend",
                          value.size(), sizeof invitation);
  }
  memcpy(&invitation, value.data(), sizeof invitation);
  if (invitation.ready == 0) {
    invitation.reason[sizeof invitation.reason - 1] = '\0';
    throw formatted_error(HVD_E_REMOTE, 0, "rank 0 could not make the shared memory: %s", invitation.reason);
  }
  const Descriptor server(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!server && out_of_descriptors(errno)) throw no_descriptor_left();
  sockaddr_un address;
  const socklen_t length = abstract_address(invitation, &address);
  int connected;
  do {
    connected = connect(server.get(), reinterpret_cast<sockaddr*>(&address), length);
  } while (connected != 0 && errno == EINTR);
  if (!server || connected != 0) {
    throw formatted_error(HVD_E_UNAVAILABLE, 0,
                          "rank 0's Unix socket cannot be reached (%s): it has ended, or runs in "
                          "another network namespace (container); ranks there cannot share memory",
                          strerror(errno));
  }
  if (!same_user(server.get())) {
    throw formatted_error(HVD_E_UNAVAILABLE, 0,
                          "rank 0 runs as another user; ranks that share memory must be one user's");
  }
  SegmentRequest request = {};
  memcpy(request.token, invitation.request_token, sizeof request.token);
  request.rank = meeting.rank;
  if (send(server.get(), &request, sizeof request, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof request)) {
    throw formatted_error(HVD_E_REMOTE, 0, "asking rank 0 for the shared memory: %s", strerror(errno));
  }
  if (!await_wanted(meeting, server.get(), deadline_ns)) {
    throw formatted_error(HVD_E_TIMEOUT, 0, "rank 0 did not pass the shared memory in time");
  }
  Descriptor segment = receive_segment(server.get(), invitation.answer_token);
  if (!segment) throw Error(HVD_E_REMOTE, "rank 0 closed the connection without passing the shared memory");
  return segment;
}

}  // namespace

Descriptor exchange_memory(const Meeting& meeting, const std::function<Descriptor()>& make, int64_t deadline_ns) {
  if (meeting.rank == 0) return share_memory(meeting, make, deadline_ns);
  return fetch_memory(meeting, deadline_ns);
}

void check_wanted(const Meeting& meeting) { meeting.store.del("shm/wanted"); }

void remove_invitation(const Meeting& meeting) {
  try {
    meeting.store.del(kKey);
  } catch (const Error&) {  // the host deletes it with the rest of the communicator's keys
  }
}

}  // namespace hvd::shm
