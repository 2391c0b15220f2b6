"""The command `warm [stop]`: shows or ends what commands have left for the next. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.cli.commands.arguments import Parser
from trainer.cluster import warm_servers
from trainer.cluster.fork_protocol import Description
from trainer.config.constraints import did_you_mean
from trainer.errors import DONE, ConfigError
from trainer.text import format_duration


def run(arguments: Sequence[str]) -> int:
    """Print a line for each fork server that a command has left; end them if asked to.

    Raises:
        ConfigError: there is no such action.
    """
    parser = Parser("warm", "`launch.keep_warm_secs=<secs>` leaves one.")
    parser.add_argument("action", nargs="?", help="stop: end them")
    action = parser.parse_args(arguments).action
    if action not in (None, "stop"):
        hint = did_you_mean(action, ["stop"])
        raise ConfigError(f"warm ({action}) must be stop, or nothing{hint}")
    servers = warm_servers.stop() if action else warm_servers.describe()
    for server in servers:
        print(_line(server, is_stopped=bool(action)))
    if not servers:
        print("No fork server is warm; launch.keep_warm_secs=<secs> leaves one.")
    return DONE


def _line(server: Description, *, is_stopped: bool) -> str:
    processes = f"{server.num_processes} process{'es' * (server.num_processes != 1)}"
    if is_stopped:
        end = "ends with its last process" if server.num_processes else "has ended"
    elif server.secs_left is None:
        end = "ends with its command"
    else:
        after = "after its last process" if server.num_processes else "from now"
        end = f"ends {format_duration(server.secs_left)} {after}"
    return f"Process {server.pid}: {processes}; {end}"
