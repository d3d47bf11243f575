"""A Spark driver that lives as long as its tests (spark_sessions.py): python spark_driver.py REQUESTS ANSWERS SETTINGS

Reads lines [module, function] from one descriptor, calls function(spark) on the main thread, and writes the traceback, ""
after success, to the other one.
"""

import importlib
import json
import os
import shutil
import sys
import traceback
import warnings
from pathlib import Path


def main() -> None:
    asks, answers, settings = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    for descriptor in (asks, answers):
        os.set_inheritable(descriptor, False)
    warnings.simplefilter("ignore", FutureWarning)
    import pyspark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    with os.fdopen(asks) as requests, os.fdopen(answers, "w") as replies:
        for request in requests:
            module, name = json.loads(request)
            print(f"=== {name}", flush=True)
            text = ""
            try:
                getattr(importlib.import_module(module), name)(spark)
            except BaseException:
                text = traceback.format_exc()
            replies.write(json.dumps(text) + "\n")
            replies.flush()
    application = spark.sparkContext.applicationId
    spark.stop()
    # Spark leaves the logs of the executors of `local-cluster` in its own folder.
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)


if __name__ == "__main__":
    main()
