"""CPU of importing the data plane in a new process, from the layers as they are deployed: `make cold`."""

import os
import statistics
import subprocess
import sys
from typing import Final

from stacks.settings import WheelTarget
from stacks.wheels import ROOT, core_layer, vendor_layer

STARTS: Final = 10
_PROGRAM: Final = (
    "import time; start = time.process_time_ns(); {imports}; print((time.process_time_ns() - start) // 1000)"
)
_IMPORTS: Final = {
    "boto3 alone": "import boto3",
    "boto3 and the validating resolver": (
        "import boto3, aws_lambda_powertools.event_handler.middlewares.openapi_validation"
    ),
    "the data plane, ready to answer": "import data_plane.handler",
}


def main() -> None:
    folders = [build(WheelTarget.THIS_MACHINE).folder / "python" for build in (vendor_layer, core_layer)]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([*map(str, folders), str(ROOT / "lambdas")]),
        "AWS_DEFAULT_REGION": "us-east-1",
        "SLUICE_ENVIRONMENT": "bench",
        "SLUICE_TABLE": "t",
    }
    for name, imports in _IMPORTS.items():
        taken_ms = [_start_ms(_PROGRAM.format(imports=imports), environment) for _ in range(STARTS)]
        print(f"{name:34} {statistics.median(taken_ms):6.0f} ms CPU (median of {STARTS} starts)")


def _start_ms(program: str, environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    return int(done.stdout) / 1000


if __name__ == "__main__":
    main()
