"""The parts of Horovod that hvd-core does not have, each with the text that names its replacement.

A module that is missing is a file that raises missing_part(): so the ImportError says more than "No module named ...".
When a part arrives, its package takes the place of that file, and its line here is deleted. Any thread.
"""

from hvd_core.version import __version__

_STORE = (
    "Ranks meet at the launcher's authenticated store. To start ranks, call horovod.run(), or run horovodrun with "
    "--remote-shell for other ways than ssh."
)
_ELASTIC = "horovodrun drives elastic jobs: call it with --min-np or --host-discovery-script."
_CLUSTER = "is not supported yet. Start the job on the hosts of the cluster with horovodrun or horovod.run()."

# By module, or module and name.
_INSTEAD = {
    "horovod.spark.lightning": "The estimator for PyTorch Lightning is left out: the original's needs Lightning 1.5 and "
    "petastorm. Call Lightning in a function of horovod.spark.run().",
    "horovod.spark.tensorflow": "The original's service for tf.data on Spark is not there. Use horovod.spark.run(), and "
    "tf.data.experimental.service.",
    "horovod.ray": f"Ray {_CLUSTER}",
    "horovod.data": "The data loaders of the original are not there yet. Use those of the framework, and give each rank "
    "its part by hvd.rank() and hvd.size().",
    "horovod.tensorflow.data": "The original's service for tf.data is not there yet. Use TensorFlow's own, "
    "tf.data.experimental.service, or give each rank its part by hvd.rank() and hvd.size().",
    "horovod.runner.http": f"There is no rendezvous over HTTP, which would be without authentication. {_STORE}",
    "horovod.runner.driver": f"There is no driver service. {_STORE}",
    "horovod.runner.task": f"There is no task service. {_STORE}",
    "horovod.runner.common.service": f"There are no driver and task services. {_STORE}",
    "horovod.runner.elastic.driver": f"There is no driver that a program starts. {_ELASTIC}",
    "horovod.runner.elastic.registration": f"There is no registry of workers. {_ELASTIC}",
    "horovod.runner.elastic.rendezvous": f"There is no rendezvous over HTTP. {_ELASTIC}",
    "horovod.runner.elastic.settings": f"There are no settings of a driver. {_ELASTIC}",
    "horovod.runner.elastic.worker": f"There is no service for notifications in workers. {_ELASTIC}",
    "horovod.runner.js_run": "Starting the ranks with jsrun is not supported. Use horovodrun --mpi, or mpirun.",
    "horovod.runner.gloo_run.RendezvousServer": f"There is no rendezvous over HTTP. {_STORE}",
    "horovod.runner.gloo_run.gloo_run": _STORE,
    "horovod.runner.gloo_run.launch_gloo": _STORE,
    "horovod.runner.mpi_run.mpi_run": "Call horovod.run(..., use_mpi=True), or run horovodrun --mpi.",
}


def missing_part(name: str) -> ImportError:
    """The error for a module or name of the list above. Its text names the missing part and the replacement."""
    return ImportError(f"{name} is not part of hvd-core {__version__}. {_INSTEAD[name]}")
