"""Addresses of stores, and those at which no run can be kept."""

import pytest

from trainer.config import addresses


@pytest.mark.parametrize("address", ["s3://bucket/runs", "gs://bucket/a/b"])
def test_address_of_a_bucket_is_accepted(address):
    assert addresses.problem("runs_dir", address) is None


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hdfs://namenode/runs", "there are no runs in hdfs://; use s3:// or gs://, "),
        (
            "s3a://bucket/runs",
            "there are no runs in s3a://; did you mean 's3'?; use s3:// or gs://",
        ),
        ("s3:///runs", "must name a bucket and a folder; write s3://bucket/runs"),
        ("gs://bucket/../runs", "must name a bucket and a folder; write gs://bucket/runs"),
    ],
)
def test_other_addresses_are_refused_in_one_line(address, problem):
    line = addresses.problem("runs_dir", address)
    assert line.startswith(f"runs_dir ({address})")
    assert problem in line
    assert "\n" not in line
