// backends/tcp/stream.h, with records: read() never denies bytes that the system will not report again.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "stream.h"

using hvd::tcp::Descriptor;
using hvd::tcp::Stream;

namespace {

void require(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

void write_text(Stream& stream, const std::string& text) {
  const iovec whole = {const_cast<char*>(text.data()), text.size()};
  require(stream.write(&whole, 1) == static_cast<ssize_t>(text.size()) && !stream.unsent(), "a text is not sent");
}

// Returns whether there may be more.
bool read_text(Stream& stream, const std::string& expected) {
  std::string text(expected.size(), '\0');
  const iovec whole = {text.data(), text.size()};
  bool more = false;
  require(stream.read(&whole, 1, &more) == static_cast<ssize_t>(text.size()), "a text is not whole");
  require(text == expected, "another text came out");
  return more;
}

}  // namespace

int main() {
  const hvd::wire_security::CryptoLibrary* const library = hvd::wire_security::CryptoLibrary::find();
  require(library != nullptr, hvd::wire_security::CryptoLibrary::problem().c_str());
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
  Stream caller{Descriptor(ends[0])}, host{Descriptor(ends[1])};
  const hvd::wire_security::Digest key{1, 2, 3};
  caller.encrypt(*library, key, true);
  host.encrypt(*library, key, false);
  const int poller = ::epoll_create1(0);
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  require(::epoll_ctl(poller, EPOLL_CTL_ADD, host.fd(), &event) == 0, "watching");
  const auto reports = [&] { return ::epoll_wait(poller, &event, 1, 0) == 1; };

  write_text(caller, "first, second");
  require(reports(), "the first record is not reported");
  require(read_text(host, "first, "), "the rest of a record was denied");
  // The second record comes, and is reported, while the first one is half read.
  write_text(caller, "third");
  require(reports(), "the second record is not reported");
  require(read_text(host, "second"), "a record that was reported and not read was denied");
  require(!reports(), "the second record is reported again");
  read_text(host, "third");
  // Both come before either is read.
  write_text(caller, "fourth");
  write_text(caller, "fifth");
  require(read_text(host, "fourth"), "a whole record was denied");
  read_text(host, "fifth");
  char byte;
  const iovec one = {&byte, 1};
  bool more;
  require(host.read(&one, 1, &more) == -1 && errno == EAGAIN, "bytes come from an empty stream");
  std::puts("passed");
}
