"""The checks of checks_spark_*.py in real Spark drivers, with executors in processes of their own (`local-cluster`).

One session for each version of PySpark serves all checks; the settings of the two differ on purpose.
"""

import pytest

import spark_sessions

MODULES = ["checks_spark_jobs", "checks_spark_elastic", "checks_spark_data", "checks_spark_estimators"]
CASES = [
    (version, module, check)
    for version in spark_sessions.VERSIONS
    for module in MODULES
    for check in spark_sessions.checks_of(module)
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_COMMON = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.worker.resource.gpu.amount": "1",
    "spark.executor.resource.gpu.amount": "1",
    "spark.task.resource.gpu.amount": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.worker.resource.gpu.discoveryScript": str(spark_sessions.HERE / "gpu_address.sh"),
}
_SETTINGS = {
    "4": {
        "spark.authenticate": "true",
        "spark.authenticate.secret": "a secret of the tests",
        "spark.network.crypto.enabled": "true",
    },
    "3.5": {},
}


@pytest.fixture(scope="module")
def drivers():
    living = {}

    def get(version):
        if version not in living:
            for other in list(living):
                living.pop(other).close()
            living[version] = spark_sessions.LivingDriver(version, {**_COMMON, **_SETTINGS[version]})
        return living[version]

    yield get
    for driver in living.values():
        driver.close()


@pytest.mark.parametrize("version, module, check", CASES, ids=[f"{v}-{c}" for v, _, c in CASES])
def test_in_a_session(drivers, version, module, check):
    reason = spark_sessions.why_not(version)
    if reason:
        pytest.skip(reason)
    drivers(version).call(module, check)
