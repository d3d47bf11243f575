// The published test vectors of SHA-256 (FIPS 180-4 examples, NIST CAVP) and of HMAC-SHA-256 (RFC 4231) against
// wire_security/sha256.h. Prints "passed". Compiled and run by test_tcp_sha256.py.
#include <cstdio>
#include <string>

#include "wire_security/sha256.h"

namespace {

int g_wrong = 0;

std::string hex(const hvd::wire_security::Digest& d) {
  std::string text;
  char two[3];
  for (const unsigned char c : d) {
    std::snprintf(two, sizeof two, "%02x", c);
    text += two;
  }
  return text;
}

void expect(const char* what, const hvd::wire_security::Digest& got, const std::string& wanted) {
  if (hex(got) == wanted) return;
  std::fprintf(stderr, "%s: %s instead of %s\n", what, hex(got).c_str(), wanted.c_str());
  ++g_wrong;
}

// In pieces of `step` bytes, so that every way to fill a block is taken.
hvd::wire_security::Digest hash(const std::string& text, size_t step) {
  hvd::wire_security::Sha256 h;
  for (size_t at = 0; at < text.size(); at += step) h.update(text.data() + at, std::min(step, text.size() - at));
  return h.finish();
}

hvd::wire_security::Digest hmac(const std::string& key, const std::string& text) {
  hvd::wire_security::Hmac h(key.data(), key.size());
  h.update(text.data(), text.size());
  return h.finish();
}

}  // namespace

int main() {
  for (const size_t step : {1, 7, 63, 64, 65, 100000}) {
    expect("empty", hash("", step), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", hash("abc", step), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect("448 bits", hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", step),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect("896 bits",
           hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                "mnopqrstnopqrstu",
                step),
           "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  }
  expect("a million a", hash(std::string(1000000, 'a'), 997),
         "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  expect("RFC 4231, 1", hmac(std::string(20, '\x0b'), "Hi There"),
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  expect("RFC 4231, 2", hmac("Jefe", "what do ya want for nothing?"),
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  expect("RFC 4231, 3", hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  expect("RFC 4231, 6", hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  const hvd::wire_security::Digest a = hash("a", 1), b = hash("b", 1);
  if (!hvd::wire_security::equal_digests(a.data(), a.data()) || hvd::wire_security::equal_digests(a.data(), b.data()))
    ++g_wrong;
  if (g_wrong == 0) std::puts("passed");
  return g_wrong != 0;
}
