"""The commands of the manifests in examples/kubernetes, with the variables and files that Kubernetes and the operators
set: each pod is a network namespace."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launchers import Launcher

EXAMPLES = Path(__file__).parents[3] / "examples"
MANIFESTS = EXAMPLES / "kubernetes"
RANK = Path(__file__).with_name("kubernetes_rank.py")
pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(400)]


def manifest(name, kind):
    """The document of that kind in a manifest."""
    documents = yaml.safe_load_all((MANIFESTS / name).read_text())
    return next(document for document in documents if document["kind"] == kind)


def container(pod):
    """The only container of a pod's template."""
    (found,) = pod["spec"]["containers"]
    return found


def variables(spec, index, key):
    """A container's variables, with values that the cluster fills in."""
    found = {}
    for entry in spec.get("env", ()):
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == (
                "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            )
            found[entry["name"]] = str(index)
        elif "secretKeyRef" in source:
            assert source["secretKeyRef"] == {"name": "hvd-digits", "key": "key"}
            found[entry["name"]] = key
        else:
            found[entry["name"]] = entry["value"]
    return found


def known_as(network, names):
    """Lets all hosts of the network know further names: {name: host's index}."""
    lines = "".join(f"{network[index].address} {name}\n" for name, index in names.items())
    for host in network:
        with open(Path("/etc/netns") / host.name / "hosts", "a") as file:
            file.write(lines)


@pytest.fixture
def pods(hosts, tmp_path):
    """pods(commands): runs [(host, command, environment)], the last one first, and returns their outputs."""
    launcher = Launcher(tmp_path)

    def run(commands):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        running = [
            launcher.start_command([*host.enter, *command], {"PATH": path, **env}, stderr=subprocess.STDOUT)
            for host, command, env in reversed(commands)
        ]
        said = [process.communicate(timeout=350)[0].decode() for process in running]
        codes = [process.returncode for process in running]
        assert codes == [0] * len(codes), "\n".join(said)
        return "".join(said)

    yield run
    launcher.clean_up()


def replayed(command, script, **places):
    """The command with the files that are at another place here."""
    places = {"/examples/pytorch_digits.py": str(script), **places}
    for there, here in places.items():
        assert any(there in word for word in command)
        command = [word.replace(there, here) for word in command]
    return command


def indexed_job(network, script):
    job, service = manifest("job.yaml", "Job"), manifest("job.yaml", "Service")
    name, spec = job["metadata"]["name"], job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == len(network)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    subdomain = spec["template"]["spec"]["subdomain"]
    assert subdomain == service["metadata"]["name"]
    known_as(network, {f"{name}-{index}.{subdomain}": index for index in range(len(network))})
    one, key = container(spec["template"]), secrets.token_hex(32)
    command = replayed(one["command"], script)
    return [(host, command, variables(one, index, key)) for index, host in enumerate(network)]


def pytorch_job(network, script):
    job = manifest("pytorchjob.yaml", "PyTorchJob")
    name, replicas = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
    roles = [role for role in ("Master", "Worker") for _ in range(replicas[role]["replicas"])]
    assert len(roles) == len(network)
    known_as(network, {f"{name}-master-0": 0})
    key, pods = secrets.token_hex(32), []
    for rank, (role, host) in enumerate(zip(roles, network, strict=True)):
        one = container(replicas[role]["template"])
        operator = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(roles)),
            "MASTER_ADDR": "localhost" if rank == 0 else f"{name}-master-0",
            "MASTER_PORT": "23456",
            "PYTHONUNBUFFERED": "1",
        }
        pods.append((host, replayed(one["command"], script), operator | variables(one, rank, key)))
    return pods


@pytest.mark.parametrize("kind", [indexed_job, pytorch_job])
def test_a_pod_for_each_rank(pods, hosts, kind):
    said = pods(kind(hosts(4), RANK))
    lines = sorted(line for line in said.splitlines() if line.startswith("pod"))
    assert lines == [f"pod {rank} 4 4 10.0 10.0 --output /tmp/out" for rank in range(4)], said


def test_mpi_job(pods, hosts, tmp_path):
    network, job = hosts(3), manifest("mpijob.yaml", "MPIJob")
    replicas, slots = job["spec"]["mpiReplicaSpecs"], job["spec"]["slotsPerWorker"]
    workers = network.hosts[1:]
    assert replicas["Worker"]["replicas"] == len(workers)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{worker.name} slots={slots}\n" for worker in workers))
    one = container(replicas["Launcher"]["template"])
    command = replayed(one["command"], RANK, **{"/etc/mpi/hostfile": str(hostfile)})
    # The operator's ssh between the pods.
    env = {"HOROVOD_REMOTE_SHELL": "ip netns exec {host}"}
    said = pods([(network[0], command, env)])
    lines = sorted(line for line in said.splitlines() if "pod" in line)
    expected = [f"[{rank}]<stdout>:pod {rank} 4 2 10.0 10.0 --output /tmp/out" for rank in range(4)]
    assert lines == expected, said


def test_the_example_trains_in_an_indexed_job(pods, hosts, tmp_path):
    commands = indexed_job(hosts(4), EXAMPLES / "pytorch_digits.py")
    commands = [
        (host, [word.replace("/tmp/out", str(tmp_path / "out")) for word in [*command, "--epochs", "6"]], env)
        for host, command, env in commands
    ]
    assert "test accuracy 9" in pods(commands)
