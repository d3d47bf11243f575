"""A remote shell with a process at both ends and pipes between them, as ssh has: `relay.py HOST command ...`.

What it executes has a session of its own and almost no environment, and learns of the relay's death only by the end
of its standard input.
"""

import subprocess
import sys
import threading


def pump(source, target):
    while chunk := source.read1(1 << 16):
        target.write(chunk)
        target.flush()
    target.close()


host, *command = sys.argv[1:]
far = subprocess.Popen(
    ["ip", "netns", "exec", host, *command],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/far/home"},
    start_new_session=True,
)
threading.Thread(target=pump, args=(sys.stdin.buffer, far.stdin), daemon=True).start()
errors = threading.Thread(target=pump, args=(far.stderr, sys.stderr.buffer))
errors.start()
pump(far.stdout, sys.stdout.buffer)
errors.join()
sys.exit(far.wait())
