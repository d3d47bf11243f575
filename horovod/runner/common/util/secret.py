"""Secret keys and digests of messages. Pure functions; any thread."""

import hashlib
import hmac
import secrets

__all__ = ["DIGEST_LENGTH", "HOROVOD_SECRET_KEY", "check_digest", "compute_digest", "make_secret_key"]

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = 32


def make_secret_key() -> bytes:
    """A new key of 32 random bytes."""
    return secrets.token_bytes(DIGEST_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """The HMAC-SHA256 of a message: 32 bytes."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether `digest` is that of the message. The comparison takes the same time for every digest."""
    return hmac.compare_digest(digest, compute_digest(key, message))
