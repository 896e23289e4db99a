"""systemd units for `up`, `scheduler`, `agent` and `witness`. They are written or printed; the user runs systemctl."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

ROLES = ("up", "scheduler", "agent", "witness")


class UnitOptions(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "up"
    system: bool = False
    config: Path | None = None  # of a scheduler or an agent
    data_dir: Path | None = None  # of up or a witness
    run_as: str = ""  # system units only; empty: root


def unit_name(options: UnitOptions) -> str:
    return "dgpu.service" if options.role == "up" else f"dgpu-{options.role}.service"


def unit_path(options: UnitOptions) -> Path:
    if options.system:
        return Path("/etc/systemd/system") / unit_name(options)
    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config_home) / "systemd" / "user" / unit_name(options)


def unit_text(options: UnitOptions) -> str:
    """ValueError: the options contradict each other."""
    lines = [
        "[Unit]",
        f"Description=dgpu {_title(options.role)}",
        *(["After=network-online.target", "Wants=network-online.target"] if options.system else []),
        "",
        "[Service]",
        f"ExecStart={' '.join(map(_quoted, _command(options)))}",
        *([f"User={options.run_as}"] if options.system and options.run_as else []),
        "Restart=on-failure",
        "RestartSec=2",
        *_process_lines(options.role),
        *(["LimitNOFILE=1048576"] if options.system else []),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if options.system else 'default.target'}",
        "",
    ]
    return "\n".join(lines)


def next_steps(options: UnitOptions) -> list[str]:
    name = unit_name(options)
    if options.system:
        return ["systemctl daemon-reload", f"systemctl enable --now {name}", f"journalctl -u {name}"]
    return [
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {name}",
        "loginctl enable-linger    # keeps it running while you are logged out",
    ]


def write_unit(options: UnitOptions, *, force: bool) -> Path:
    """FileExistsError: the file has another content."""
    path, text = unit_path(options), unit_text(options)
    if path.exists() and path.read_text(encoding="utf-8") != text and not force:
        raise FileExistsError(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _process_lines(role: str) -> list[str]:
    if role == "witness":
        return ["TimeoutStopSec=30"]  # it ends its member itself
    return [
        # Tasks and their keeper continue when the service stops or restarts. So does the member of a killed scheduler.
        "KillMode=process",
        # The keeper may create control groups below this one.
        "Delegate=yes",
    ]


def _command(options: UnitOptions) -> list[str]:
    program = [sys.executable, "-m", "dgpu", options.role]
    if options.role == "up":
        data_dir = options.data_dir or (Path("/var/lib/dgpu") if options.system else None)
        return program + (["--data-dir", str(data_dir.absolute())] if data_dir else [])
    if options.role == "witness":
        if options.config is not None:
            raise ValueError("a witness has no configuration file; use --data-dir D")
        data_dir = options.data_dir or Path("/var/lib/dgpu-witness")
        return [*program, "--dir", str(data_dir.absolute())]
    if options.config is None:
        raise ValueError(f"the {options.role} needs its configuration; add --config F")
    if not options.config.is_file():
        raise ValueError(f"there is no file {options.config}")
    return [*program, "--config", str(options.config.absolute())]


def _title(role: str) -> str:
    return {"up": "scheduler and agent of this machine"}.get(role, role)


def _quoted(word: str) -> str:
    """As ExecStart= reads it."""
    safe = word.replace("%", "%%").replace("$", "$$")
    if any(sign in safe for sign in " \t\"'\\;"):
        escaped = safe.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return safe
