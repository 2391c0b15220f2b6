"""The page's section on models that are divided between devices. No TensorFlow."""

from __future__ import annotations

import html
from collections.abc import Iterable

from trainer.cli.report.data import Run
from trainer.runs.placement_record import DeviceRecord, PlacementRecord

_NOTE = (
    '<p class="soft small">Bytes and floating-point operations (of the operations that TensorFlow '
    "has figures for) are counted on the graph of a step, of the first replica. The idle share is "
    "computed from these operations by the formula of GPipe (Huang et al. 2019), not measured: it "
    "knows neither the time of copies nor how well a kernel uses its device.</p>"
)
_KINDS = {
    "forward": "forward: activations",
    "backward": "backward: gradients of activations",
    "update": "update: sums, norms, learning rates",
}


def placements(runs: Iterable[Run]) -> str:
    """Return which layers are on which device in each run, what they exchange, and who waits."""
    parts = [_placement(run.label, run.placement) for run in runs if run.placement]
    return _NOTE + "".join(parts) if parts else ""


def _placement(label: str, record: PlacementRecord) -> str:
    works = [device.flops["forward"] + device.flops["backward"] for device in record.devices]
    total = sum(works) or 1
    rows = "".join(
        _row(device, work / total) for device, work in zip(record.devices, works, strict=True)
    )
    size = sum(record.bytes_within.values())
    kinds = ", ".join(f"{record.bytes_within[kind]:,} {text}" for kind, text in _KINDS.items())
    return (
        f"<h3>{html.escape(label)}</h3>"
        '<div class="wide"><table><tr><th>device</th><th class="number">parameters</th>'
        '<th class="number">share of the work</th><th>layers</th></tr>'
        f"{rows}</table></div>"
        f"<p>{record.num_replicas} replicas of {len(record.devices)} devices. "
        f"Bytes between the devices of a replica in a step: {size:,} ({kinds}). "
        f"Bytes between replicas of a process: {record.bytes_between:,}.</p>"
        f"<p>Idle, computed: {_percent(record.idle_pipelined)} with {record.micro_batches} "
        "parts of a batch (micro-batches and shards) that overlap; "
        f"{_percent(record.idle_sequential)} without overlap.</p>"
    )


def _row(device: DeviceRecord, share: float) -> str:
    layers = ", ".join(device.layers)
    return (
        f"<tr><td><code>{html.escape(device.name)}</code></td>"
        f'<td class="number">{device.parameters:,}</td>'
        f'<td class="number">{_percent(share)}</td>'
        f'<td class="small">{html.escape(layers)}</td></tr>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
