// Opening and calling endpoints. Connections are non-blocking from the start; who waits says until when.
#include "endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sim {
namespace {

constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr auto kPerAddress = std::chrono::seconds(3);  // an interface that cannot be reached from here may not answer

socklen_t unix_address(const Token& name, sockaddr_un* out) {
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  char* at = out->sun_path + 1;  // abstract: begins with a zero
  at += sprintf(at, "eccl-sim-");
  for (const unsigned char byte : name) at += sprintf(at, "%02x", byte);
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(out));
}

void add_interfaces(Address* address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  for (const ifaddrs* at = all; at != nullptr && address->count < Address::kMost; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || !(at->ifa_flags & IFF_UP)) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) continue;  // who could use it has the abstract socket
    sockaddr_in in;
    memcpy(&in, at->ifa_addr, sizeof in);
    address->ipv4[address->count++] = in.sin_addr.s_addr;
  }
  freeifaddrs(all);
}

// 0, or why not.
int try_connect(int fd, const sockaddr* to, socklen_t length, Clock::time_point deadline) {
  if (connect(fd, to, length) == 0) return 0;
  int failed = errno;
  if (failed == EINPROGRESS) {
    if (!wait_for(fd, POLLOUT, deadline)) return ETIMEDOUT;
    socklen_t size = sizeof failed;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
  }
  return failed;
}

void tune(int fd) {
  const int yes = 1, buffer = 4 << 20;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // fails on Unix sockets, which do not need it
  sockaddr_storage name;
  socklen_t length = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && name.ss_family == AF_UNIX) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  }
}

}  // namespace

bool Listener::open(int backlog) {
  address_ = Address{};
  address_.name = random_token();
  unix_ = Socket(socket(AF_UNIX, kType, 0));
  sockaddr_un local;
  const socklen_t length = unix_address(address_.name, &local);
  if (!unix_ || bind(unix_.fd(), reinterpret_cast<sockaddr*>(&local), length) != 0 ||
      listen(unix_.fd(), backlog) != 0) {
    return false;
  }
  tcp_ = Socket(socket(AF_INET, kType, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t any_length = sizeof any;
  if (!tcp_ || bind(tcp_.fd(), reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(tcp_.fd(), backlog) != 0 ||
      getsockname(tcp_.fd(), reinterpret_cast<sockaddr*>(&any), &any_length) != 0) {
    return false;
  }
  address_.port = ntohs(any.sin_port);
  add_interfaces(&address_);
  return true;
}

Socket Listener::accept() {
  for (const int fd : {unix_.fd(), tcp_.fd()}) {
    Socket s(accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (s) {
      tune(s.fd());
      return s;
    }
  }
  return Socket();
}

Socket connect_to(const Address& address, Clock::time_point deadline) {
  sockaddr_un local;
  const socklen_t length = unix_address(address.name, &local);
  for (;;) {
    Socket s(socket(AF_UNIX, kType, 0));
    const int failed = s ? try_connect(s.fd(), reinterpret_cast<sockaddr*>(&local), length, deadline) : errno;
    if (failed == 0) {
      tune(s.fd());
      return s;
    }
    if (failed != EAGAIN || Clock::now() >= deadline) break;  // EAGAIN: many wait there already
    poll(nullptr, 0, 1);
  }
  for (int i = 0; i < std::min<int>(address.count, Address::kMost); ++i) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    to.sin_addr.s_addr = address.ipv4[i];
    Socket s(socket(AF_INET, kType, 0));
    const auto until = std::min(deadline, Clock::now() + kPerAddress);
    if (s && try_connect(s.fd(), reinterpret_cast<sockaddr*>(&to), sizeof to, until) == 0) {
      tune(s.fd());
      return s;
    }
  }
  return Socket();
}

Token random_token() {
  Token token{};
  // Cannot fail for so few bytes once the system is up.
  [[maybe_unused]] const ssize_t got = getrandom(token.data(), token.size(), 0);
  return token;
}

}  // namespace sim
