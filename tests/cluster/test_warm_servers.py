"""Where fork servers that a command leaves to later ones listen, and who may find them."""

import os
import threading
from contextlib import closing

import pytest

from trainer.cluster import fork_protocol, warm_servers
from trainer.cluster.fork_protocol import Describe, Description, Stop

VARIABLES = {"PATH": "/bin"}


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "steadfast"


def serve(listener, answer):
    """Answer requests until one asks to stop; return them by the thread's result."""
    requests = []

    def work():
        while True:
            connection, _ = listener.accept()
            with connection:
                message, _ = fork_protocol.receive(connection)
                requests.append(message)
                if isinstance(message, Stop):
                    return
                fork_protocol.send(connection, answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, requests


def test_no_folder_is_looked_up_before_a_server_was_left(runtime, monkeypatch):
    monkeypatch.setattr(warm_servers, "code_digest", lambda: pytest.fail("nothing to compare"))
    assert warm_servers.directory() is None
    runtime.mkdir()
    assert warm_servers.directory() is None


def test_server_is_found_in_the_folder_that_it_listens_in(runtime):
    listener, path = warm_servers.listen(VARIABLES)
    with closing(listener):
        assert warm_servers.directory() == path.parent == runtime / warm_servers.code_digest()
        assert [folder.stat().st_mode & 0o777 for folder in (runtime, path.parent)] == [0o700] * 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o711])
def test_folder_that_others_have_access_to_is_refused(runtime, mode):
    runtime.mkdir()
    runtime.chmod(mode)
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        warm_servers.listen(VARIABLES)


def test_folder_behind_a_link_is_refused(runtime, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        warm_servers.listen(VARIABLES)


def test_at_most_one_server_stays(runtime):
    first, path = warm_servers.listen(VARIABLES)
    thread, requests = serve(first, Description(7, 0, 60.0))
    with closing(first):
        second, other_path = warm_servers.listen({**VARIABLES, "TF_SETTING": "1"})
        with closing(second):
            thread.join(timeout=20)
            assert requests == [Describe(), Stop()]
            assert not path.exists()
            assert other_path.exists()


def test_servers_describe_themselves_and_stop(runtime):
    assert warm_servers.describe() == warm_servers.stop() == []
    listener, path = warm_servers.listen(VARIABLES)
    with closing(listener):
        thread, _ = serve(listener, Description(7, 2, 60.0))
        assert warm_servers.describe() == [Description(7, 2, 60.0)]
        assert warm_servers.stop() == [Description(7, 2, 60.0)]
        thread.join(timeout=20)
    assert not path.parent.exists()


def test_socket_of_a_dead_server_is_removed(runtime):
    listener, path = warm_servers.listen(VARIABLES)
    listener.close()
    assert warm_servers.describe() == []
    assert warm_servers.stop() == []
    assert not path.exists()


@pytest.mark.parametrize("changed", ["source", "umask", "limit", "package"])
def test_digest_changes_with_what_must_be_equal(monkeypatch, tmp_path, changed):
    source = tmp_path / "module.py"
    source.write_text("old = 1\n")
    monkeypatch.setattr(warm_servers, "_sources", lambda: [source])
    before = warm_servers.code_digest()
    assert warm_servers.code_digest() == before
    match changed:
        case "source":
            source.write_text("new = 1\n")
        case "umask":
            monkeypatch.setattr(warm_servers, "_umask", lambda: b"Umask:\t0777")
        case "limit":
            monkeypatch.setattr(warm_servers.resource, "getrlimit", lambda number: (7, 7))
        case "package":
            package = tmp_path / "added-1.0.dist-info"
            package.mkdir()
            (package / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
            (package / "RECORD").write_text("added.py,sha256=abc,3\n")
            monkeypatch.syspath_prepend(tmp_path)
    assert warm_servers.code_digest() != before


def test_digest_covers_trainer_models_and_datasets():
    files = {
        os.path.relpath(file, warm_servers.Path(warm_servers.trainer.__file__).parents[1])
        for file in warm_servers._sources()
    }
    assert {"trainer/engine/engine.py", "models/cnn.py", "datasets/digits.py"} <= files
