"""`make torture`: all attacks, and a table of them in results.json and results.md.

usage: python -m torture [ATTACK ...] [ATTACK:NUMBER ...] [--share S] [--workers N] [--note TEXT]

With names, only these attacks are made, with numbers only these tries of them, and the files are left alone. A share
of 0.2 makes a fifth of the tries.
"""

import argparse
import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path

import torch
from torture.attack import Failure, timed
from torture.catalog import ATTACKS

import steadeq

RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    """Attack; return 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="torture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ATTACKS)}; ATTACK:NUMBER for a single try")
    parser.add_argument("--share", type=float, default=1.0, help="which part of the tries to make")
    parser.add_argument("--workers", type=int, default=2, help="how many tries at a time")
    parser.add_argument("--note", default="", help="what the files are to say about how they were made")
    arguments = parser.parse_args()
    rows = []
    print(f"{'attack':20} {'tries':>6} {'failures':>9} {'seconds':>8}")
    for name, numbers in _chosen(arguments.attacks, arguments.share).items():
        failures, seconds = timed(ATTACKS[name], numbers, workers=arguments.workers)
        print(f"{name:20} {len(numbers):6} {len(failures):9} {seconds:8.0f}", flush=True)
        for failure in failures:
            print(f"  {failure.reproduction}  # {failure.reason}", flush=True)
        rows.append(_row(name, len(numbers), failures, seconds))
    if not arguments.attacks:
        content = {
            **_circumstances(),
            "workers": arguments.workers,
            "share": arguments.share,
            "note": arguments.note,
            "attacks": rows,
        }
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(_table(content))
    return 1 if any(row["failures"] for row in rows) else 0


def _chosen(words: list[str], share: float) -> dict[str, list[int]]:
    """Return the numbers of the tries to make, by attack."""
    chosen: dict[str, list[int]] = {}
    for word in words or ATTACKS:
        name, _, number = word.partition(":")
        if name not in ATTACKS:
            sys.exit(f"There is no attack {name!r}; there are {', '.join(ATTACKS)}.")
        all_numbers = range(max(1, round(share * ATTACKS[name].num_tries)))
        chosen.setdefault(name, []).extend([int(number)] if number else all_numbers)
    return chosen


def _row(name: str, num_tries: int, failures: list[Failure], seconds: float) -> dict:
    # Where this machine keeps its temporary files is no part of the result.
    place = tempfile.gettempdir() + "/"
    told = [{"try": failure.number, "reason": failure.reason.replace(place, "")} for failure in failures]
    return {"attack": name, "tries": num_tries, "failures": told, "seconds": round(seconds)}


def _table(content: dict) -> str:
    """Return what is in results.json for people."""
    rows = content["attacks"]
    tries, seconds = (sum(row[key] for row in rows) for key in ("tries", "seconds"))
    failures = sum(len(row["failures"]) for row in rows)
    return "\n".join(
        [
            "# What was attacked, and what gave way",
            "",
            f"`make torture` on {content['date']}: steadeq {content['steadeq']}, torch {content['torch']}, Python "
            f"{content['python']}, {content['system']}; "
            + ("all tries" if content["share"] == 1 else f"{content['share']:.0%} of the tries")
            + f", {content['workers']} at a time, in {seconds / 60:.0f} minutes."
            + (f" {content['note']}" if content["note"] else ""),
            "",
            "| attack | tries | failures | seconds |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| {row['attack']} | {row['tries']:,} | {len(row['failures']):,} | {row['seconds']:,} |"
                for row in rows
            ),
            f"| all | {tries:,} | {failures:,} | {seconds:,} |",
            "",
        ]
    )


def _circumstances() -> dict:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "steadeq": steadeq.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


if __name__ == "__main__":
    sys.exit(main())
