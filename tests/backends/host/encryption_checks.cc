// backends/wire_security/encryption.h: records arrive as they were sent, over several keys, and no others.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "wire_security/encryption.h"

using hvd::wire_security::CryptoLibrary;
using hvd::wire_security::RecordCipher;

namespace {

void require(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

constexpr uint32_t kHead = 7;
const std::string kKey(32, 'k');

RecordCipher cipher(bool seals, const char* direction = "up", const std::string& key = kKey) {
  return RecordCipher(*CryptoLibrary::find(), key, direction, seals, 3);
}

std::string sealed(RecordCipher& c, const std::string& text) {
  std::string record(text.size() + RecordCipher::kTagBytes, '\0');
  require(c.begin(&kHead, sizeof kHead) && c.update(text.data(), record.data(), text.size()) &&
              c.seal(record.data() + text.size()),
          "a record cannot be made");
  return record;
}

bool opens(RecordCipher& c, std::string record, const std::string& text, uint32_t head = kHead) {
  const size_t n = record.size() - RecordCipher::kTagBytes;
  const bool fine = c.begin(&head, sizeof head) && c.update(record.data(), record.data(), n) && c.open(&record[n]);
  if (fine) require(record.compare(0, n, text) == 0, "another text came out");
  return fine;
}

}  // namespace

int main() {
  require(CryptoLibrary::find() != nullptr, CryptoLibrary::problem().c_str());
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i)
    texts.push_back(std::string(static_cast<size_t>(i * i * 50), static_cast<char>('a' + i)));
  RecordCipher out = cipher(true), in = cipher(false);
  std::vector<std::string> records;
  for (const auto& text : texts) records.push_back(sealed(out, text));
  require(records[0].size() == RecordCipher::kTagBytes, "an empty text has a record too");
  for (size_t i = 1; i < texts.size(); ++i) {
    require(records[i].find(texts[i]) == std::string::npos, "the text can be read");
    for (size_t j = 0; j < i; ++j) require(records[j] != records[i], "two records are equal");
  }
  for (size_t i = 0; i < texts.size(); ++i) require(opens(in, records[i], texts[i]), "a record does not arrive");

  const auto refused = [&](const char* what, RecordCipher reader, const std::string& record, uint32_t head = kHead) {
    require(!opens(reader, record, "", head), what);
  };
  refused("omission", cipher(false), records[1]);
  refused("omission over a change of the key", cipher(false), records[3]);
  refused("the way back", cipher(false, "down"), records[0]);
  refused("another connection", cipher(false, "up", std::string(32, 'j')), records[0]);
  refused("a changed head", cipher(false), records[0], kHead + 1);
  RecordCipher repeated = cipher(false);
  require(opens(repeated, records[0], texts[0]) && !opens(repeated, records[0], texts[0]), "repetition");
  const std::string one = [] {
    RecordCipher c = cipher(true);
    return sealed(c, "one text");
  }();
  for (size_t at = 0; at < one.size(); ++at) {
    std::string changed = one;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    refused("a changed bit", cipher(false), changed);
  }
  // A library's destructor may seal its last record after OpenSSL has been taken down at the exit.
  void (*cleanup)();
  void* found = ::dlsym(RTLD_DEFAULT, "OPENSSL_cleanup");
  if (found == nullptr)
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"})
      if (void* library = found ? nullptr : ::dlopen(name, RTLD_NOW | RTLD_NOLOAD))
        found = ::dlsym(library, "OPENSSL_cleanup");
  require(found != nullptr, "OPENSSL_cleanup");
  std::memcpy(&cleanup, &found, sizeof cleanup);
  cleanup();
  RecordCipher late = cipher(true);
  require(sealed(late, texts[3]).size() == texts[3].size() + RecordCipher::kTagBytes, "a record at the exit");
  std::puts("passed");
}
