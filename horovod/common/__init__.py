"""The parts of Horovod's API that all frameworks share. Knows no framework. docs/write-a-front-end.md lists them."""
