"""Refuse words that this project no longer uses: one word for each concept, and the field's word where there is one."""

import re
import subprocess
import sys
from pathlib import Path

RETIRED = {
    r"directed|directing|directors?|direct queues?": "placed keyspace, placer, worker queue",
    r"belongings?": "placement, placement lookup",
    r"verdicts?": "disposition (of a message), run result (of a job), findings (of verify)",
    r"exhumes?|exhumed": "requeue",
    r"heirs?": "successor",
    r"undertakers?": "reaper",
    r"rosters?": "job reconciler",
    r"asides": "backoff",
    r"desk": "delivery state",
    r"patience": "timeout",
    r"beats (?!schedule)": "heartbeats",
    r"house jobs?": "built-in jobs",
    r"anew": "again, new",
    r"whoever": "name who it is",
    r"none the less|be it": "say it plainly",
}
"""A regular expression of words, and what to write instead."""

ALLOWED = (r"TemporaryDirectory", r"type=\"direct\"", r":beats is a string", r"Random\(f\"directed")
"""Names of others."""

SELF = Path(__file__).name


def main() -> int:
    """Print each use of a retired word; return how many there are, as an exit code."""
    words = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(RETIRED)), re.IGNORECASE)
    remedies = list(RETIRED.values())
    found = 0
    files = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    for name in files:
        if not name.endswith((".py", ".md", ".lua", ".toml")) or Path(name).name in (
            SELF,
            "CHANGELOG.md",
        ):  # that one tells what was renamed
            continue
        for number, line in enumerate(Path(name).read_text(encoding="utf-8").splitlines(), 1):
            for use in words.finditer(re.sub("|".join(ALLOWED), "", line.replace("_", " "))):
                found += 1
                print(f"{name}:{number}: {use[0]!r} is retired: {remedies[int(str(use.lastgroup)[1:])]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
