"""A rank that prints what the launcher told it about its place, and the place that it found out itself, as JSON."""

import json
import os

from hvd_core._bootstrap.world import connect


def main():
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "STORE")
    told = {name: os.environ["HOROVOD_" + name] for name in names}
    world = connect()
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hosts")
    found = {name: getattr(world, name) for name in names}
    links = [("tcp" if link.sock_fd >= 0 else "shm", link.peer) for link in world.links]
    world.close()
    print(json.dumps({"told": told, "found": found, "links": links}))


if __name__ == "__main__":
    main()
