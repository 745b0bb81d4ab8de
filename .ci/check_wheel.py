"""Build the wheel and see that it works alone: in a clean environment, without extras, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "celery_sticky"
QUIET = ("-m", "pip", "-qq", "install")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; end with it if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build the wheel into `folder`."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """End if a file of the package is missing in the wheel, or one that is not of the package is in it."""
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if wanted != held:
        sys.exit(f"the wheel lacks {sorted(wanted - held)} and has {sorted(held - wanted)} too much")


def main() -> None:
    """Check the wheel."""
    with tempfile.TemporaryDirectory(prefix="sticky-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        run(python, *QUIET, "-c", ROOT / "requirements" / "constraints.txt", wheel, cwd=folder)
        run(python, "-c", "import celery_sticky", cwd=folder)
        run(python, "-m", "celery", "sticky", "--help", cwd=folder)
        print(f"{wheel.name}: complete, installs alone, imports, and `celery sticky --help` answers")


if __name__ == "__main__":
    main()
