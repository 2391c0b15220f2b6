"""Free memory, of a host and of a container on it."""

import pytest

from trainer.cluster.host_memory import available_bytes

FIRST = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
SECOND = ("memory.max", "memory.current", "memory.stat")


@pytest.fixture
def available(tmp_path):
    def write(meminfo=None, files=(), contents=()):
        if meminfo is not None:
            (tmp_path / "meminfo").write_text(meminfo)
        for name, content in zip(files, contents, strict=False):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        return available_bytes(tmp_path / "meminfo", tmp_path)

    return write


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), None),
        (("MemTotal: 9 kB\nMemAvailable:    8 kB\n",), 8192),
        ((None, SECOND, ("5000\n", "2000\n", "anon 900\ninactive_file 1000\n")), 4000),
        ((None, FIRST, ("5000\n", "2000\n", "inactive_file 1\ntotal_inactive_file 500\n")), 3500),
        (("MemAvailable: 8 kB\n", SECOND, ("max\n", "2000\n", "inactive_file 1000\n")), 8192),
        (("MemAvailable: 8 kB\n", SECOND, ("5000\n", "2000\n", "")), 3000),
        (("MemAvailable: 1 kB\n", SECOND, ("5000\n", "2000\n", "")), 1024),
    ],
)
def test_less_of_the_hosts_and_the_containers_memory_is_free(available, arguments, expected):
    assert available(*arguments) == expected
