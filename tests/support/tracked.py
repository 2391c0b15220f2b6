"""Metrics of a run read back from trackers: name -> [(step, value)], in the order reported."""

import json
import struct

from trainer.cluster import environment

environment.prepare_environment()  # before anything imports them: they reach for nothing


def of_mlflow(run_dir):
    """Return the metrics of a run in the store next to it."""
    from mlflow.tracking import MlflowClient

    client, run_id = (
        MlflowClient(f"sqlite:///{run_dir.parent.resolve() / 'mlflow.db'}"),
        (run_dir / "mlflow_run_id").read_text(),
    )
    metrics = {}
    for key in client.get_run(run_id).data.metrics:
        metrics[key] = [
            (metric.step, metric.value) for metric in client.get_metric_history(run_id, key)
        ]
    return metrics


def of_wandb(run_dir):
    """Return the metrics of a run's one offline folder."""
    metrics = {}
    (file,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    for record in _records(file.read_bytes()):
        if record.WhichOneof("record_type") == "history":
            row = {
                item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            step = row.pop("_step")
            for key, value in row.items():
                if not key.startswith("_"):
                    metrics.setdefault(key, []).append((step, float(value)))
    return metrics


def _records(data):
    """Read W&B's file: LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def of_jsonl(run_dir):
    """Return the metrics in metrics.jsonl, by the names that trackers have for them."""
    metrics = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        split, step = point.pop("split"), point.pop("step")
        for name, value in point.items():
            metrics.setdefault(f"{split}/{name}", []).append((step, float(value)))
    return metrics
