"""What every other package of hvd_core may use: the native module, logs, the place of wheels. Imports none of them."""
