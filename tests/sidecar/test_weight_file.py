"""What is checked of a weights file before an engine touches it, without torch."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sidecar.weight_file import (
    TensorInfo,
    check_same_tensors,
    check_sha256,
    read_header,
    resolve_under,
    served_tensors,
)
from tracegrad.errors import InputError

SERVED = {
    "model.embed_tokens.weight": TensorInfo("BF16", (4, 2)),
    "model.layers.0.self_attn.rotary_emb.inv_freq": TensorInfo("F32", (1,)),
    "lm_head.weight": TensorInfo("BF16", (4, 2)),
}
NEW = {name: TensorInfo("F32", SERVED[name].shape) for name in ("model.embed_tokens.weight", "lm_head.weight")}


def test_a_file_is_found_under_the_root_only(tmp_path: Path) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    inside, outside, other = root / "a.safetensors", tmp_path / "b.safetensors", root / "a.bin"
    for file in (inside, outside, other):
        file.write_bytes(b"")
    (root / "link.safetensors").symlink_to(outside)
    assert resolve_under(root, str(inside)) == inside
    assert resolve_under(root, f"{root}/../weights/a.safetensors") == inside
    for path in (outside, f"{root}/../b.safetensors", root / "link.safetensors", "a.safetensors"):
        with pytest.raises(InputError, match="lie outside"):
            resolve_under(root, str(path))
    for path in (other, root, root / "none.safetensors"):
        with pytest.raises(InputError, match=r"are not a \.safetensors file"):
            resolve_under(root, str(path))


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"weights")
    check_sha256(file, hashlib.sha256(b"weights").hexdigest().upper())
    with pytest.raises(InputError, match=r"has sha256 .*: write it again"):
        check_sha256(file, hashlib.sha256(b"others").hexdigest())


def test_headers_are_what_safetensors_wrote(tmp_path: Path) -> None:
    one, two = np.zeros((3, 2), np.float32), np.zeros((5,), np.float16)
    save_file({"one": one}, tmp_path / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    save_file({"two": two}, tmp_path / "model-00002-of-00002.safetensors")
    expected = {"one": TensorInfo("F32", (3, 2)), "two": TensorInfo("F16", (5,))}
    assert read_header(tmp_path / "model-00001-of-00002.safetensors") == {"one": expected["one"]}
    assert served_tensors(tmp_path) == expected
    assert served_tensors(tmp_path / "nowhere") is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a pickle in a zip", (2**63 - 1).to_bytes(8, "little") + b"{}"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(content)
    with pytest.raises(InputError, match="is not a safetensors file"):
        read_header(file)


def test_headers_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    for header in ([], {}, {"a": 1}, {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "text"):
        raw = json.dumps(header).encode()
        (tmp_path / "w.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
        with pytest.raises(InputError, match="is not a safetensors file"):
            read_header(tmp_path / "w.safetensors")


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"one": np.zeros((3, 2), np.float32)}, file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="is cut short"):
        read_header(file)


def test_precision_may_differ_and_constants_may_be_left_out() -> None:
    check_same_tensors(NEW, SERVED, tied=False, file=Path("w"))
    check_same_tensors(SERVED, NEW, tied=False, file=Path("w"))


def test_a_tied_head_may_come_or_not() -> None:
    headless = {"model.embed_tokens.weight": NEW["model.embed_tokens.weight"]}
    check_same_tensors(headless, SERVED, tied=True, file=Path("w"))
    check_same_tensors(SERVED, headless, tied=True, file=Path("w"))
    with pytest.raises(InputError, match=r"w lacks lm_head\.weight and 0 more: it holds another model"):
        check_same_tensors(headless, SERVED, tied=False, file=Path("w"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": TensorInfo("F32", (2,))}, r"has unknown model\.norm\.weight"),
        ({"lm_head.weight": TensorInfo("F32", (2, 4))}, r"lm_head\.weight of shape \[2, 4\], not \[4, 2\]"),
        ({"lm_head.weight": TensorInfo("I64", (4, 2))}, r"lm_head\.weight as I64, not as BF16"),
    ],
)
def test_another_model_is_refused(change: dict[str, TensorInfo], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_same_tensors(NEW | change, SERVED, tied=False, file=Path("w"))
