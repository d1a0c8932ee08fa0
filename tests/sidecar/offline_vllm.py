"""Run by `test_file_engine.py` in a process of its own: vLLM without a server, whose model the test can get at.

    python offline_vllm.py MODEL_DIRECTORY WEIGHTS_FILE

Swaps to WEIGHTS_FILE after a load that breaks off half-way, and prints the greedy token ids of each stage as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def main(model_directory: str, file: str) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model_directory,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        enable_prefix_caching=False,
        weight_transfer_config={"backend": "file"},
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

    def greedy() -> list[int]:
        return list(llm.generate([{"prompt_token_ids": [5, 17, 40]}], sampling, use_tqdm=False)[0].outputs[0].token_ids)

    def swap() -> None:
        llm.start_weight_update()
        llm.update_weights({"update_info": {"path": file}})
        llm.finish_weight_update("1")

    llm.init_weight_transfer_engine({"init_info": {"root": str(Path(file).parent)}})
    stages: dict[str, Any] = {"before": greedy()}

    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    load_weights = model.load_weights

    def load_half(weights: Any) -> None:
        pairs = list(weights)
        load_weights(iter(pairs[: len(pairs) // 2]))
        raise OSError("the disk is gone")

    model.load_weights = load_half
    try:
        swap()
    except OSError as error:
        stages["error"] = str(error)
    stages["mixed"] = greedy()  # some layers old, some new: it computes, it does not crash
    del model.load_weights

    swap()
    stages["after"] = greedy()
    stages["version"] = llm.get_weight_version()
    print("\n" + json.dumps(stages))


if __name__ == "__main__":
    main(*sys.argv[1:])
