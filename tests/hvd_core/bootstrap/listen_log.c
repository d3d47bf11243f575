// LD_PRELOAD: appends "PID ADDRESS" to the file HVD_LISTEN_LOG for each TCP socket on which this process listens.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int listen(int fd, int backlog) {
  int (*const real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
  struct sockaddr_storage address;
  socklen_t n = sizeof address;
  const char* file = getenv("HVD_LISTEN_LOG");
  if (file && getsockname(fd, (struct sockaddr*)&address, &n) == 0 && address.ss_family != AF_UNIX) {
    char text[64] = "?", line[100];
    const void* bytes = address.ss_family == AF_INET ? (void*)&((struct sockaddr_in*)&address)->sin_addr
                                                     : (void*)&((struct sockaddr_in6*)&address)->sin6_addr;
    inet_ntop(address.ss_family, bytes, text, sizeof text);
    const int size = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), text);
    const int log = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0 || write(log, line, (size_t)size) != size) abort();
    close(log);
  }
  return real(fd, backlog);
}
