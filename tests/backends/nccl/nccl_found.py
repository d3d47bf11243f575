"""Prints as JSON which NCCL this process would use, by the probe and by the backend's library: argv = the library, then
shared objects to load first."""

import ctypes
import json
import re
import sys
from pathlib import Path

from hvd_backend_nccl import library

from hvd_core._core import backend_fact, inspect_backend
from hvd_core.backends import BackendError, Unavailable

for path in sys.argv[2:]:
    ctypes.CDLL(path)
looked = library.find()
said = {"probe": looked.reason if isinstance(looked, Unavailable) else looked.path}
try:
    said["vendor_lib"] = inspect_backend("nccl", sys.argv[1])["vendor_lib"]
    said["facts"] = [backend_fact("nccl", sys.argv[1], key) for key in ("library", "version", "version_code")]
except BackendError as error:
    said["error"] = str(error)
maps = Path("/proc/self/maps").read_text()
said["copies"] = sorted(set(re.findall(r"/\S*nccl[^/\s]*\.so[.\d]*$", maps, re.M)) - {sys.argv[1]})
print(json.dumps(said))
