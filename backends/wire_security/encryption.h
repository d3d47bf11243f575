// Encryption of a connection between hosts (HOROVOD_TLS=1): AES-256-GCM of the system's libcrypto (OpenSSL 1.1 or 3),
// which is opened when it is needed. Nothing is linked, and no header of OpenSSL is included. Header-only, C++20.
//
// Both ends know a key of their connection, from a handshake in which both have proved a secret. Each direction has
// keys of its own (HMAC-SHA-256 in counter mode: the Expand step of HKDF, RFC 5869), and each record a nonce of its
// own: the record's number, as in TLS 1.3. So a record that is changed, repeated, left out, moved or sent back is not
// accepted. SECURITY.md says what is promised.
//
// CryptoLibrary: any thread. A RecordCipher: one thread at a time.
#pragma once

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "sha256.h"

namespace hvd::wire_security {

// Whether the user has asked for encryption between hosts.
inline bool encryption_wanted() {
  const char* value = std::getenv("HOROVOD_TLS");
  if (value == nullptr) return false;
  // Blanks at both ends do not count, as in Python (hvd_core/_config/settings.py).
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  std::string text(value);
  text.erase(0, text.find_first_not_of(kBlanks));
  text.erase(text.find_last_not_of(kBlanks) + 1);
  for (const char* no : {"", "0", "false", "no", "off"})
    if (::strcasecmp(text.c_str(), no) == 0) return false;
  return true;
}

// The functions of libcrypto that are used here, with the types of evp.h.
class CryptoLibrary {
 public:
  // The library, or null if there is no usable one. Opened once, and never closed.
  static const CryptoLibrary* find() { return opened().usable_ ? &opened() : nullptr; }
  // Why find() returned null, and what to do.
  static const std::string& problem() { return opened().problem_; }

  void* (*context_new)() = nullptr;
  void (*context_free)(void*) = nullptr;
  const void* aes_256_gcm = nullptr;  // the cipher
  int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int) = nullptr;
  int (*update)(void*, unsigned char*, int*, const unsigned char*, int) = nullptr;
  int (*finish)(void*, unsigned char*, int*) = nullptr;
  int (*control)(void*, int, int, void*) = nullptr;

 private:
  CryptoLibrary() {
    const char* named = std::getenv("HOROVOD_TLS_LIBRARY");
    if (named != nullptr && *named != '\0') {
      void* library = ::dlopen(named, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr)
        problem_ = std::string("HOROVOD_TLS_LIBRARY=") + named + " cannot be opened (" + ::dlerror() + ")";
      else if (!(usable_ = take(library)))
        problem_ = std::string("HOROVOD_TLS_LIBRARY=") + named + " has no working AES-256-GCM";
    } else {
      for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
        void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr && (usable_ = take(library))) break;
      }
      // An interpreter may have it linked in, and show its symbols.
      if (!usable_) usable_ = take(RTLD_DEFAULT);
      if (!usable_) problem_ = "neither libcrypto.so.3 nor libcrypto.so.1.1 is here";
    }
    if (usable_) return;
    problem_ = "HOROVOD_TLS=1 needs the cryptography of OpenSSL, and " + problem_ +
               ". Install it on this host (Debian: apt install libssl3; Fedora: dnf install openssl-libs; conda "
               "install openssl), "
               "or name its file in HOROVOD_TLS_LIBRARY";
  }

  static const CryptoLibrary& opened() {
    static const CryptoLibrary library;
    return library;
  }

  template <typename F>
  static bool find_symbol(void* library, const char* name, F* function) {
    void* found = ::dlsym(library, name);
    std::memcpy(function, &found, sizeof found);
    return found != nullptr;
  }

  bool take(void* library) {
    return find_symbol(library, "EVP_CIPHER_CTX_new", &context_new) &&
           find_symbol(library, "EVP_CIPHER_CTX_free", &context_free) && find_cipher(library) &&
           find_symbol(library, "EVP_CipherInit_ex", &init) && find_symbol(library, "EVP_CipherUpdate", &update) &&
           find_symbol(library, "EVP_CipherFinal_ex", &finish) &&
           find_symbol(library, "EVP_CIPHER_CTX_ctrl", &control) && works();
  }

  // OpenSSL 3 looks up the cipher of EVP_aes_256_gcm() at each use. That fails after OPENSSL_cleanup(), which runs at
  // exit and may come before the last record. A cipher that was fetched stays usable, and is never released.
  bool find_cipher(void* library) {
    const void* (*fetch)(void*, const char*, const char*);
    if (find_symbol(library, "EVP_CIPHER_fetch", &fetch))
      aes_256_gcm = fetch(nullptr, "AES-256-GCM", nullptr);
    else if (const void* (*built_in)(); find_symbol(library, "EVP_aes_256_gcm", &built_in))
      aes_256_gcm = built_in();
    return aes_256_gcm != nullptr;
  }

  bool works() const;

  bool usable_ = false;
  std::string problem_;
};

// One direction of one connection: it either seals records or opens them.
class RecordCipher {
 public:
  static constexpr size_t kTagBytes = 16;
  // The key is replaced by its successor after so many records, far below the limit of AES-GCM (RFC 8446, 5.5).
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

  // `connection_key`: of the handshake. `direction`: a word, the same at both ends and another one for the way back.
  RecordCipher(const CryptoLibrary& library, std::string_view connection_key, std::string_view direction, bool seals,
               uint64_t records_per_key = kRecordsPerKey)
      : library_(&library),
        context_(library.context_new(), library.context_free),
        seals_(seals),
        records_per_key_(records_per_key) {
    const std::string info = "hvd record 1 " + std::string(direction);
    Hmac hmac(connection_key.data(), connection_key.size());
    hmac.update(info.data(), info.size());
    secret_ = hmac.finish();
  }

  // A record: begin(), update() for its bytes in order, then seal() or open(). False means that the record must not be
  // used, and the connection neither. `head`: bytes of the record that are readable, and protected against changes.
  bool begin(const void* head, size_t n) {
    if (!context_) return false;
    if (number_ % records_per_key_ == 0 && !next_key()) return false;
    unsigned char nonce[kNonceBytes];
    std::memcpy(nonce, start_, sizeof nonce);
    for (size_t i = 0; i < sizeof number_; ++i)
      nonce[sizeof nonce - 1 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
    ++number_;
    int done = 0;
    return library_->init(context_.get(), nullptr, nullptr, nullptr, nonce, seals_ ? 1 : 0) == 1 &&
           (n == 0 || library_->update(context_.get(), nullptr, &done, octets(head), static_cast<int>(n)) == 1);
  }
  // `from` and `to` may be the same memory.
  bool update(const void* from, void* to, size_t n) {
    for (size_t at = 0; at < n;) {
      const int part = static_cast<int>(std::min<size_t>(n - at, size_t{1} << 30));
      int done = 0;
      if (library_->update(context_.get(), octets(to) + at, &done, octets(from) + at, part) != 1 || done != part)
        return false;
      at += static_cast<size_t>(part);
    }
    return true;
  }
  bool seal(void* tag) { return final() && library_->control(context_.get(), kGetTag, kTagBytes, tag) == 1; }
  // False if the bytes, the head, the number or the key are not those of the sender: they have been changed.
  bool open(const void* tag) {
    unsigned char copy[kTagBytes];
    std::memcpy(copy, tag, sizeof copy);
    return library_->control(context_.get(), kSetTag, kTagBytes, copy) == 1 && final();
  }

 private:
  friend class CryptoLibrary;
  static constexpr size_t kNonceBytes = 12;
  static constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG

  static unsigned char* octets(void* p) { return static_cast<unsigned char*>(p); }
  static const unsigned char* octets(const void* p) { return static_cast<const unsigned char*>(p); }

  bool final() {
    unsigned char none[16];
    int done = 0;
    return library_->finish(context_.get(), none, &done) == 1;
  }

  Digest expand(const char* label) const {
    Hmac hmac(secret_.data(), secret_.size());
    hmac.update(label, std::strlen(label));
    const unsigned char first = 1;
    hmac.update(&first, 1);
    return hmac.finish();
  }

  bool next_key() {
    if (number_ > 0) secret_ = expand("next");
    const Digest key = expand("key"), start = expand("nonce");
    std::memcpy(start_, start.data(), sizeof start_);
    return use(key.data());
  }
  bool use(const unsigned char* key) {
    return library_->init(context_.get(), library_->aes_256_gcm, nullptr, key, nullptr, seals_ ? 1 : 0) == 1;
  }

  const CryptoLibrary* library_;
  std::unique_ptr<void, void (*)(void*)> context_;
  bool seals_;
  uint64_t records_per_key_;
  Digest secret_;
  unsigned char start_[kNonceBytes] = {};
  uint64_t number_ = 0;
};

// A library whose functions are not those of evp.h is found out here: case 14 of the GCM specification's vectors.
inline bool CryptoLibrary::works() const {
  static constexpr unsigned char kTag[16] = {0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99, 0x6b, 0xf0,
                                             0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19};
  const unsigned char zeros[32] = {};
  unsigned char text[16] = {}, tag[16] = {};
  RecordCipher cipher(*this, "", "", true);
  int done = 0;
  return cipher.context_ && cipher.use(zeros) &&
         init(cipher.context_.get(), nullptr, nullptr, nullptr, zeros, 1) == 1 &&
         update(cipher.context_.get(), text, &done, text, sizeof text) == 1 && done == sizeof text &&
         cipher.seal(tag) && std::memcmp(tag, kTag, sizeof tag) == 0;
}

}  // namespace hvd::wire_security
