"""``python -m ampedu.policy --compare cuda``: the documented policy beside the one that torch has."""

import argparse
import collections

from ampedu.policy import DEVICES, autocast_policy, comparison


def main(arguments: list[str] | None = None) -> int:
    """Prints one table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ampedu.policy", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--compare", metavar="DEVICE", choices=DEVICES, help=f"one of {', '.join(DEVICES)}")
    what.add_argument("--list", metavar="DEVICE", choices=DEVICES, help="every operation with its policy")
    options = parser.parse_args(arguments)
    if options.compare:
        print(comparison(options.compare))
        return 0
    policy = autocast_policy(options.list)
    for operation, kind in policy.items():
        print(f"{operation:<40} {kind}")
    counts = collections.Counter(policy.values())
    print(f"\n{len(policy)} operations: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
