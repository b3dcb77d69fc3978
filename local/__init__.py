"""The engines that stand in for AWS on one machine, and `make run`.

The product is deployed by CDK and never installed, so its packages are found by path: pytest has that path in
pyproject.toml, everything started with `python -m local...` or `python -m bench...` has it from here.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_LAYER: Final = str(ROOT / "layers" / "core" / "python")

if _LAYER not in sys.path:
    sys.path.insert(0, _LAYER)
