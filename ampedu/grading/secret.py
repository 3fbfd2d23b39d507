"""The instructor's secret, from which the cases are drawn. It stays in its file; results hold its id only."""

import hashlib
import os
import secrets
from pathlib import Path

from ampedu.exercises.stream import PUBLIC

SHORTEST, LONGEST = 16, 4096


class SecretError(ValueError):
    """The secret cannot be used or made; the text names the file and the cure."""


def default_path() -> Path:
    """Where the secret is if no file is named."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "ampedu" / "grading-secret"


def make(path: Path) -> str:
    """Write a new secret that only its owner can read; its id. Raises SecretError: no secret is ever overwritten."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        text = f"{path} exists. Name another file, or keep it: old results can be checked only with it."
        raise SecretError(text) from None
    except OSError as error:
        raise SecretError(f"{path} cannot be written: {error.strerror}.") from None
    text = secrets.token_hex(32)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text + "\n")
    return secret_id(text.encode())


def read(path: Path) -> bytes:
    """The secret of a file, without surrounding white space. Raises SecretError."""
    try:
        with open(path, "rb") as file:
            content = file.read(LONGEST + 1).strip()
            others = os.fstat(file.fileno()).st_mode & 0o077
    except OSError as error:
        text = f"the secret {path} cannot be read: {error.strerror}. Make one: ampedu grade make-secret {path}"
        raise SecretError(text) from None
    if not SHORTEST <= len(content) <= LONGEST:
        raise SecretError(
            f"the secret {path} has {len(content)} bytes; it needs {SHORTEST} to {LONGEST}. "
            "Make one: ampedu grade make-secret FILE"
        )
    if others:
        raise SecretError(f"others may read the secret {path}. Close it: chmod 600 {path}")
    return content


def secret_id(secret: bytes) -> str:
    """What may be published of a secret: the start of a hash that serves nothing else."""
    return "public" if secret == PUBLIC else hashlib.sha256(b"ampedu secret id/" + secret).hexdigest()[:12]
