// The bytes of one connection: as they are, or, between hosts with HOROVOD_TLS=1, in encrypted records.
//
//   record: u32 length of the text | ciphertext of that length | tag of 16 bytes
//
// The length is readable, and protected by the tag. A record without text is the last one: a connection that ends
// without it was cut. Nothing here blocks. One thread at a time; shut_down: any thread.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "host_kernels/descriptor.h"
#include "shared.h"

namespace hvd::tcp {

class Stream {
 public:
  static constexpr uint32_t kMostText = 64 << 10;  // of a record

  explicit Stream(Descriptor fd) : fd_(std::move(fd)) {}

  // From here on all bytes are encrypted. `key`: of the connection; `caller`: whether this side made the connection.
  void encrypt(const CryptoLibrary& library, const Digest& key, bool caller);

  // As sendmsg and recvmsg without blocking: a count of bytes, 0 at the end, or -1 and errno; EBADMSG: a record is not
  // the peer's. write() may take bytes that are not sent yet: see unsent().
  ssize_t write(const iovec* spans, int n);
  // *more: another read() may return bytes, although the system reports no new ones.
  ssize_t read(const iovec* spans, int n, bool* more);
  // Bytes that were taken and not sent. flush() returns false, with errno, while the system does not take them.
  bool unsent() const { return sealed_ && sealed_->out_at < sealed_->out_end; }
  bool flush();
  // No more bytes will be written. Waits for the system to take the last ones until `until` at most.
  void end(std::chrono::steady_clock::time_point until);

  void shut_down();
  int fd() const { return fd_.get(); }

 private:
  static constexpr uint32_t kHead = sizeof(uint32_t), kTag = RecordCipher::kTagBytes;
  static constexpr uint32_t kOut = kHead + kMostText + kTag, kIn = 2 * kOut;

  struct Sealed {
    RecordCipher out, in;
    std::unique_ptr<char[]> out_bytes, in_bytes;
    uint32_t out_at = 0, out_end = 0;    // not sent yet, of out_bytes
    uint32_t in_at = 0, in_end = 0;      // not opened yet, of in_bytes
    uint32_t text_at = 0, text_end = 0;  // opened and not read, of in_bytes
    bool ended = false;                  // the last record has come
  };

  bool flush_until(std::chrono::steady_clock::time_point until);
  bool put_record(const iovec* spans, int n, uint32_t length);
  // 1: a record was opened, 0: it is not whole yet, -1 and errno.
  int open_record();
  ssize_t fill(bool* drained);

  Descriptor fd_;
  std::unique_ptr<Sealed> sealed_;
};

}  // namespace hvd::tcp
