"""Before Flower is imported: switch off its telemetry, logs and files in the home folder, and check its version."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedwinnow.errors import UsageError, missing_extra

SUITABLE = "1.41"


def prepare(command: str) -> None:
    """Set the variables that Flower reads when it is imported; those that the user has set stay."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise missing_extra("flower", f"fedwinnow {command}") from None
    if not found.startswith(SUITABLE + "."):
        raise UsageError(
            f"Flower {found} is installed; fedwinnow {command} needs {SUITABLE}.*, because it uses parts that may "
            f"change with any version: pip install 'flwr=={SUITABLE}.*'. The Flower app works with other versions, too."
        )
    settings = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOG_LEVEL": "CRITICAL",
        "FLWR_HOME": str(Path(tempfile.gettempdir()) / f"fedwinnow-flower-{os.getpid()}"),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
