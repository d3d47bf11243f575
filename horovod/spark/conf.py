"""Settings of Spark for jobs that continue when tasks fail, as (name, value) for SparkSession.builder.config(*pair).

They are for horovod.spark.run_elastic: a task that is lost is started again as often as `spark.task.maxFailures` says.
The names with BLACKLIST are those of the original; since Spark 3.1 the settings are called excludeOnFailure.
"""

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"

# Without it Spark ends the job when one task has been lost four times.
SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_ENABLED = ("spark.excludeOnFailure.enabled", "true")
SPARK_CONF_BLACKLIST_DISABLED = ("spark.excludeOnFailure.enabled", "false")

# An executor, or a node, on which tasks have failed is used again, or is not.
SPARK_CONF_REUSE_FAILED_EXECUTOR = (
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor",
    SPARK_CONF_MAX_INT,
)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = ("spark.excludeOnFailure.stage.maxFailedTasksPerExecutor", "1")
SPARK_CONF_REUSE_FAILING_NODE = (
    "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode",
    SPARK_CONF_MAX_INT,
)
SPARK_CONF_DONT_REUSE_FAILING_NODE = ("spark.excludeOnFailure.stage.maxFailedExecutorsPerNode", "1")

# The same for one task: it may return to the executor, or the node, on which it has failed, or may not.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor",
    SPARK_CONF_MAX_INT,
)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor",
    "1",
)
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
    SPARK_CONF_MAX_INT_MINUS_ONE,
)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = ("spark.excludeOnFailure.task.maxTaskAttemptsPerNode", "1")
