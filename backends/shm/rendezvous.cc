// Passing the segment's descriptor around; see rendezvous.h.
//
// The store carries an invitation: the socket's random name, a token that a guest must show, and a token that rank 0
// answers with. Both sides also look at the other's user id as the kernel knows it.
#include "rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "segment.h"
#include "shared.h"

namespace hvd::shm {
namespace {

constexpr const char* kKey = "shm/segment";
constexpr int64_t kGuestNs = 2000000000;  // how long one guest may keep the others waiting

struct Invitation {
  uint32_t ready, reserved;  // ready 0: rank 0 failed, `reason` says why
  unsigned char name[32], guest_token[32], host_token[32];
  char reason[256];
};

struct Request {
  unsigned char token[32];
  uint32_t rank, reserved;
};

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

bool random_bytes(void* p, size_t n) { return getrandom(p, n, 0) == static_cast<ssize_t>(n); }

// Takes the same time whatever the difference.
bool equal_tokens(const unsigned char* a, const unsigned char* b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < 32; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

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

// One message each way; both fit a SOCK_SEQPACKET record, so there are no partial ones.
bool send_segment(int guest, const unsigned char* token, int segment) {
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
  return sendmsg(guest, &message, MSG_NOSIGNAL) == 32;
}

int receive_segment(int socket, const unsigned char* expected) {
  unsigned char token[32];
  iovec data = {token, sizeof token};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof token)) return -1;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
  int fd;
  memcpy(&fd, CMSG_DATA(c), sizeof fd);
  if (!equal_tokens(token, expected)) {
    close(fd);
    return -1;
  }
  return fd;
}

// Answers guests until every other rank has been served.
hvd_rc serve(int listener, const Invitation& invitation, int segment, uint32_t size, int64_t deadline_ns,
             hvd_error* err) {
  std::vector<bool> served(size, false);
  uint32_t missing = size - 1;
  while (missing > 0) {
    if (!await(listener, POLLIN, deadline_ns)) {
      const uint32_t first = static_cast<uint32_t>(std::find(served.begin() + 1, served.end(), false) - served.begin());
      return fail(err, HVD_E_TIMEOUT, 0, "%u of %u ranks did not come for the shared segment in time, rank %u first",
                  missing, size - 1, first);
    }
    const Descriptor guest(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (guest.get() < 0 || !same_user(guest.get())) continue;
    Request request;
    if (!await(guest.get(), POLLIN, std::min(deadline_ns, now_ns() + kGuestNs))) continue;
    if (recv(guest.get(), &request, sizeof request, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof request)) continue;
    if (!equal_tokens(request.token, invitation.guest_token) || request.rank == 0 || request.rank >= size) continue;
    if (!send_segment(guest.get(), invitation.host_token, segment) || served[request.rank]) continue;
    served[request.rank] = true;
    --missing;
  }
  return HVD_OK;
}

hvd_rc publish(const hvd_comm_args& args, const Invitation& invitation, hvd_error* err) {
  return host()->store_set(args.store, kKey, &invitation, sizeof invitation, err);
}

hvd_rc host_segment(const hvd_comm_args& args, uint64_t slot_bytes, uint64_t small_bytes, int64_t deadline_ns, int* fd,
                    hvd_error* err) {
  Invitation invitation = {};
  hvd_error problem = {};
  problem.hdr.struct_size = sizeof problem;
  int segment = -1;
  hvd_rc rc = Segment::make(static_cast<uint32_t>(args.size), slot_bytes, small_bytes, &segment, &problem);
  const Descriptor segment_owner(segment);
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (rc == HVD_OK) {
    sockaddr_un address;
    const bool drawn = random_bytes(invitation.name, sizeof invitation.name) &&
                       random_bytes(invitation.guest_token, sizeof invitation.guest_token) &&
                       random_bytes(invitation.host_token, sizeof invitation.host_token);
    const socklen_t n = abstract_address(invitation, &address);
    if (!drawn || listener.get() < 0 || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 ||
        listen(listener.get(), 128) != 0) {
      rc = fail(&problem, HVD_E_UNAVAILABLE, 0, "a Unix socket to pass shared memory through: %s", strerror(errno));
    }
  }
  if (rc != HVD_OK) {
    // The others wait for the invitation; tell them rather than let them run into their deadline.
    memcpy(invitation.reason, problem.text, sizeof invitation.reason - 1);
    publish(args, invitation, nullptr);
    return fail(err, rc, problem.flags, "%s", problem.text);
  }
  invitation.ready = 1;
  if ((rc = publish(args, invitation, err)) != HVD_OK) return rc;
  rc = serve(listener.get(), invitation, segment, static_cast<uint32_t>(args.size), deadline_ns, err);
  if (rc != HVD_OK) return rc;
  *fd = const_cast<Descriptor&>(segment_owner).release();
  return HVD_OK;
}

hvd_rc fetch_segment(const hvd_comm_args& args, int64_t deadline_ns, int* fd, hvd_error* err) {
  Invitation invitation = {};
  uint64_t n = sizeof invitation;
  hvd_rc rc = host()->store_get(args.store, kKey, &invitation, &n, deadline_ns, err);
  if (rc != HVD_OK) return rc;
  if (n != sizeof invitation) {
    return fail(err, HVD_E_REMOTE, 0,
                "rank 0's invitation has %llu bytes instead of %zu: the ranks run different "
                "versions of this backend",
                (unsigned long long)n, sizeof invitation);
  }
  if (invitation.ready == 0) {
    invitation.reason[sizeof invitation.reason - 1] = '\0';
    return fail(err, HVD_E_REMOTE, 0, "rank 0 could not make the shared segment: %s", invitation.reason);
  }
  const Descriptor server(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(invitation, &address);
  int connected;
  do {
    connected = connect(server.get(), reinterpret_cast<sockaddr*>(&address), length);
  } while (connected != 0 && errno == EINTR);
  if (server.get() < 0 || connected != 0) {
    return fail(err, HVD_E_UNAVAILABLE, 0,
                "rank 0's Unix socket cannot be reached (%s): it has ended, or runs in "
                "another network namespace (container); ranks there cannot share memory",
                strerror(errno));
  }
  if (!same_user(server.get())) {
    return fail(err, HVD_E_UNAVAILABLE, 0, "rank 0 runs as another user; ranks that share memory must be one user's");
  }
  Request request = {};
  memcpy(request.token, invitation.guest_token, sizeof request.token);
  request.rank = static_cast<uint32_t>(args.rank);
  if (send(server.get(), &request, sizeof request, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof request)) {
    return fail(err, HVD_E_REMOTE, 0, "asking rank 0 for the shared segment: %s", strerror(errno));
  }
  if (!await(server.get(), POLLIN, deadline_ns)) {
    return fail(err, HVD_E_TIMEOUT, 0, "rank 0 did not pass the shared segment in time");
  }
  *fd = receive_segment(server.get(), invitation.host_token);
  if (*fd < 0) return fail(err, HVD_E_REMOTE, 0, "rank 0 closed the connection without passing the shared segment");
  return HVD_OK;
}

}  // namespace

hvd_rc exchange_segment(const hvd_comm_args& args, uint64_t slot_bytes, uint64_t small_bytes, int64_t deadline_ns,
                        int* fd, hvd_error* err) {
  if (args.rank == 0) return host_segment(args, slot_bytes, small_bytes, deadline_ns, fd, err);
  return fetch_segment(args, deadline_ns, fd, err);
}

void forget_segment(const hvd_comm_args& args) { host()->store_del(args.store, kKey, nullptr); }

}  // namespace hvd::shm
