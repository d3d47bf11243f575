"""What MPI's backend leaves to the engine: factors of integers, which it does not apply itself."""


def test_integers_with_factors(mpi_job):
    mpi_job.run("factors")
