"""Loads the models that inference_training.py has saved, and computes with them.

Runs where horovod and hvd_core cannot be imported (tf_without_horovod.py).
"""

import numpy as np


def main(folder: str) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    saved = np.load(f"{folder}/wanted.npz")
    inputs = tf.constant(saved["inputs"])

    # The graph is built again, without an optimizer, and reads its variables from the checkpoint.
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", [3, 2])
        outputs = tf.tanh(tf.matmul(v1.placeholder_with_default(saved["inputs"], [None, 3]), weight))
        with v1.Session() as session:
            v1.train.Saver().restore(session, tf.train.latest_checkpoint(f"{folder}/monitored"))
            assert np.allclose(session.run(outputs), saved["of_monitored"], atol=1e-6)

    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], f"{folder}/saved_of_graph").signature_def[
            "serving_default"
        ]
        found = session.run(
            signature.outputs["outputs"].name, {signature.inputs["inputs"].name: saved["inputs"]}
        )
        assert np.allclose(found, saved["of_monitored"], atol=1e-6)

    module = tf.saved_model.load(f"{folder}/saved_of_module")
    assert np.allclose(module(inputs), saved["of_module"], atol=1e-6)

    module = tf.Module()
    module.weight = tf.Variable(tf.zeros([3, 2]))
    tf.train.Checkpoint(module=module).read(f"{folder}/checkpoint-1").assert_existing_objects_matched()
    assert np.allclose(tf.tanh(tf.matmul(inputs, module.weight)), saved["of_module"], atol=1e-6)

    model = tf.saved_model.load(f"{folder}/saved_of_keras")
    found = model.serve(inputs) if hasattr(model, "serve") else model.signatures["serving_default"](inputs)
    found = next(iter(found.values())) if isinstance(found, dict) else found
    assert np.allclose(found, saved["of_keras"], atol=1e-5)

    model = tf.keras.models.load_model(f"{folder}/model.keras", compile=False)
    assert np.allclose(model(inputs), saved["of_keras"], atol=1e-5)
