"""Starts the course: makes the environment, copies the notebooks to work/, opens JupyterLab. Standard library only.

    python tools/learn.py                     what `make learn` does
    python tools/learn.py --no-browser        the same on a machine without a screen; prints the address
    python tools/learn.py --here              installs into the Python that runs this (an active conda environment, say)
    python tools/learn.py --prepare dev       only the environment, with the build and test tools
    python tools/learn.py -- --ip=0.0.0.0     whatever follows -- goes to JupyterLab

Works on Linux, macOS and Windows, from any folder. The second start installs nothing.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tools import copies, environment  # noqa: E402 (the path must be set first)

FIRST = "notebooks/00_start_here.ipynb"
# JupyterLab asks for news on the internet unless told; a classroom may have none.
NO_NEWS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def parse(arguments):
    """The command line; what follows -- goes to JupyterLab."""
    jupyter = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, jupyter = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(prog="learn.py", description="Starts the course in JupyterLab.")
    parser.add_argument("--no-browser", action="store_true", help="open no browser; print the address")
    parser.add_argument("--port", type=int, help="port of JupyterLab (default: 8888 or the next free one)")
    parser.add_argument("--here", action="store_true", help="install into the Python that runs this, make no .venv")
    parser.add_argument("--torch-index", metavar="URL", help="a further package index for torch")
    parser.add_argument("--torch", metavar="VERSION", help="a version of torch other than the one in constraints.txt")
    parser.add_argument("--prepare", choices=sorted(environment.CONTAINS), help="only make the environment, and stop")
    parser.add_argument("--no-start", action="store_true", help="do everything but start JupyterLab")
    options = parser.parse_args(arguments)
    options.jupyter = jupyter
    return options


def check_port(port):
    """Raises Stop if nobody can listen on that port of this machine."""
    if not 1 <= port <= 65535:
        raise environment.Stop(f"PORT={port} is no port: use a number from 1024 to 65535.")
    with socket.socket() as probe:
        if os.name != "nt":  # there it would allow a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise environment.Stop(f"Port {port} needs root. Use one above 1023, e.g. PORT=8889.") from None
        except OSError:
            raise environment.Stop(
                f"Port {port} is taken, perhaps by a JupyterLab that still runs. Use another one "
                f"(PORT={port + 1}), or leave PORT out: then the next free one is used."
            ) from None


def jupyter_command(python, work, options):
    """The command that starts JupyterLab in work/, as a list."""
    command = [str(python), "-m", "jupyterlab", f"--ServerApp.root_dir={work}"]
    if (work / FIRST).exists():  # so that the address that --no-browser prints opens it too
        command.append(f"--LabApp.default_url=/lab/tree/{FIRST}")
    if options.no_browser:
        command.append("--no-browser")
    if options.port:
        command += [f"--ServerApp.port={options.port}", "--ServerApp.port_retries=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return command + options.jupyter


def jupyter_environment(work, python):
    """The variables for JupyterLab: a settings folder inside work/, so that nothing else on the machine is touched.

    Its terminals find the commands that stand beside `python`, such as ampedu.
    """
    folder = work / ".ampedu" / "jupyter"
    settings = folder / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(NO_NEWS, indent=1) + "\n", encoding="utf-8")
    found = dict(os.environ)
    found["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(folder), found.get("JUPYTER_CONFIG_PATH")]))
    found["PATH"] = os.pathsep.join(filter(None, [str(Path(python).parent), found.get("PATH")]))
    return found


def start(command, work, variables):
    """Runs JupyterLab in work/ until it ends; returns its exit status."""
    if os.name != "nt":  # takes the place of this process, so that Ctrl-C and kill reach JupyterLab
        os.chdir(str(work))
        sys.stdout.flush()
        os.execve(command[0], command, variables)
    try:
        return subprocess.call(command, cwd=str(work), env=variables)
    except KeyboardInterrupt:
        return 0


def learn(options):
    """Everything from the environment to JupyterLab; returns the exit status. Raises Stop with a cure."""
    environment.check_python()
    if options.port is not None:
        check_port(options.port)
    python = environment.prepare(
        REPOSITORY, options.prepare or "course", options.here, options.torch_index, options.torch
    )
    if options.prepare:
        return 0
    print("This machine:", flush=True)
    subprocess.call([str(python), "-m", "ampedu", "doctor"], cwd=str(REPOSITORY))
    work = REPOSITORY / "work"
    for sentence in copies.deliver(REPOSITORY, work):
        print(sentence)
    print(f"Your copies are in {work}. They are yours: an update never overwrites what you changed.")
    if options.no_start:
        return 0
    print("Starting JupyterLab. Ctrl-C here ends it.", flush=True)
    return start(jupyter_command(python, work, options), work, jupyter_environment(work, python))


def main(arguments=None):
    """The command line; returns the exit status."""
    try:
        return learn(parse(sys.argv[1:] if arguments is None else arguments))
    except environment.Stop as stop:
        print(f"\n{stop}", file=sys.stderr)
        return 1
    except OSError as error:
        cure = environment.explain(str(error))
        if not cure and error.filename is None:
            raise
        cure = cure or f"{error.filename}: {error.strerror}. Move it away or change its owner, then run this again."
        print(f"\n{cure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
