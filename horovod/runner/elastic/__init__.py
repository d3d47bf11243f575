"""Names of the original for programs that import them. The driver itself is in horovod/runner/elastic_driver.py."""
