"""Starts TensorZero's gateway out of its Python package, in that package's environment (it knows nothing of ours).

    python tensorzero_gateway.py ENGINE_URL MODEL ADDRESS_FILE

Nothing is observed and nothing stored. The address for chat completions goes into the file once it listens.
"""

import sys
import threading
from pathlib import Path

import tensorzero  # type: ignore[import-not-found]

CONFIG = """\
[gateway]
observability.enabled = false

[models.{model}]
routing = ["engine"]

[models.{model}.providers.engine]
type = "openai"
model_name = "{model}"
api_base = "{url}/v1/"
api_key_location = "none"
extra_body = [
    {{ pointer = "/return_token_ids", value = true }},
    {{ pointer = "/logprobs", value = true }},
]
"""


def main(url: str, model: str, address: Path) -> None:
    """Serve until killed."""
    config = address.with_name("tensorzero.toml")
    config.write_text(CONFIG.format(url=url, model=model))
    gateway = tensorzero._start_http_gateway(
        config_file=str(config), clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
    )
    written = address.with_suffix(".new")
    written.write_text(f"{gateway.base_url.rstrip('/')}/chat/completions")
    written.replace(address)  # whole or not at all
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
