"""For functions that train with TensorFlow: sparkdl.horovod.tensorflow.keras."""
