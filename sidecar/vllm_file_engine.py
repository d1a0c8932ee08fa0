"""The plugin that teaches vLLM to take weights from a file: `--weight-transfer-config '{"backend":"file"}'`.

vLLM loads it in each of its processes, through the entry point `vllm.general_plugins`. So it imports nothing, does
its work once, and where vLLM is of a version that it does not know it says so and leaves vLLM as it is.
"""

import logging

log = logging.getLogger("vllm.tracegrad")  # under "vllm", whose handler prints it

BACKEND = "file"
KNOWN_VERSION = "0.32"


def register() -> None:
    """Add the `file` engine to vLLM's factory. Idempotent; never raises."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

        if BACKEND not in Factory._registry:
            Factory.register_engine(BACKEND, "sidecar.vllm_file_transfer", "FileWeightTransferEngine")
    except (ImportError, AttributeError, TypeError) as error:
        log.warning(
            "tracegrad cannot hand weights to this vLLM, which needs version %s: %s. Serving works, training does not.",
            KNOWN_VERSION,
            error,
        )
