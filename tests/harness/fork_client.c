/* Stands for a child of a fork server: takes its place below a launcher, passes signals on, ends as the child ends.

       fork_client SOCKET PYTHON ARGUMENT ...

   A launcher starts it in place of `PYTHON ARGUMENT ...`. The child has this process's environment, folder, open files,
   processors, and namespaces of networks, names and mounts. If this process is killed, so is the child. Where the
   server answers that a child would differ from a new interpreter, this process becomes that interpreter.

   It is compiled because it stands for a thousand programs of a test session: an interpreter would use 0.04 s for it.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_FILES = 64, NAMESPACES = 3, REFUSED = 1 << 16 };

extern char** environ;

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT};
static int server = -1;
static char* body = NULL;
static size_t length = 0;

static void fail(const char* what) {
  fprintf(stderr, "fork_client: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void add(const char* text) {
  size_t size = strlen(text) + 1;
  body = realloc(body, length + size);
  if (body == NULL) fail("the request does not fit into the memory");
  memcpy(body + length, text, size);
  length += size;
}

static void add_number(long number) {
  char text[32];
  snprintf(text, sizeof text, "%ld", number);
  add(text);
}

static int ascending(const void* a, const void* b) { return *(const int*)a - *(const int*)b; }

static int open_files(int* numbers) {
  DIR* entries = opendir("/proc/self/fd");
  if (entries == NULL) fail("/proc/self/fd");
  int count = 0;
  for (struct dirent* entry; (entry = readdir(entries)) != NULL;) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(entries)) continue;
    if (count == MOST_FILES - NAMESPACES) {
      fprintf(stderr, "fork_client: there are more than %d open files\n", count);
      exit(1);
    }
    numbers[count++] = atoi(entry->d_name);
  }
  closedir(entries);
  qsort(numbers, count, sizeof *numbers, ascending);
  return count;
}

static void send_request(const int* files, int count) {
  uint32_t size = (uint32_t)length;
  struct iovec head = {&size, sizeof size};
  union {
    char room[CMSG_SPACE(MOST_FILES * sizeof(int))];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &head, .msg_iovlen = 1, .msg_control = control.room};
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  struct cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(rights), files, count * sizeof(int));
  if (sendmsg(server, &message, MSG_NOSIGNAL) != sizeof size) fail("the request cannot be sent");
  for (size_t sent = 0; sent < length;) {
    ssize_t part = send(server, body + sent, length - sent, MSG_NOSIGNAL);
    if (part <= 0) fail("the request cannot be sent");
    sent += (size_t)part;
  }
}

static void pass_on(int number) {
  int before = errno;
  char byte = (char)number;
  send(server, &byte, 1, MSG_NOSIGNAL);
  errno = before;
}

static void connect_to(const char* address) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  if (strlen(address) >= sizeof name.sun_path) {
    errno = ENAMETOOLONG;
    fail(address);
  }
  strcpy(name.sun_path, address);
  server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (server < 0 || connect(server, (struct sockaddr*)&name, sizeof name) != 0) fail(address);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: fork_client SOCKET PYTHON ARGUMENT ...\n");
    return 2;
  }
  int files[MOST_FILES];
  int count = open_files(files);
  char folder[4096];
  if (getcwd(folder, sizeof folder) == NULL) fail("the working folder");
  mode_t mask = umask(0);
  umask(mask);
  add("run");
  add(folder);
  add_number(mask);
  add_number(argc - 3);
  for (int i = 3; i < argc; ++i) add(argv[i]);
  add_number(count);
  for (int i = 0; i < count; ++i) add_number(files[i]);
  for (char** variable = environ; *variable != NULL; ++variable) add(*variable);
  static const char* const spaces[NAMESPACES] = {"/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/ns/mnt"};
  for (int i = 0; i < NAMESPACES; ++i) {
    if ((files[count + i] = open(spaces[i], O_RDONLY | O_CLOEXEC)) < 0) fail(spaces[i]);
  }

  sigset_t ours, before;
  sigemptyset(&ours);
  for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; ++i) sigaddset(&ours, passed_on[i]);
  sigprocmask(SIG_BLOCK, &ours, &before);  // a signal's byte must not come between those of the request
  connect_to(argv[1]);
  send_request(files, count + NAMESPACES);
  for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; ++i) {
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(passed_on[i], &action, NULL);
  }
  sigprocmask(SIG_SETMASK, &before, NULL);

  int32_t code;
  if (recv(server, &code, sizeof code, MSG_WAITALL) != sizeof code) {
    fprintf(stderr, "fork_client: the fork server has ended\n");
    return 1;
  }
  if (code == REFUSED) {
    execv(argv[2], argv + 2);
    fail(argv[2]);
  }
  if (code < 0) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);  // the child has left one, if any
    signal(-code, SIG_DFL);
    sigemptyset(&ours);
    sigaddset(&ours, -code);
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
    kill(getpid(), -code);
  }
  _exit(code);
}
