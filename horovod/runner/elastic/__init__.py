"""Names of the original for programs that import them. The driver itself is in horovod/_runner/elastic_driver.py."""
