"""The kernels compiled for GPUs that are not here, and what their machine code says. Not with TRITON_INTERPRET set."""

import functools
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from support import sass
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from entrostat.probe.kernels.finish import finish
from entrostat.probe.kernels.fold import fold
from entrostat.probe.kernels.layout import layout_of
from entrostat.probe.kernels.logit_gradient import logit_gradient
from entrostat.probe.kernels.top_candidates import top_candidates

VOCAB = 151936
TYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_ODD = {"first_column", "first_part", "num_rows", "num_parts"}  # not specialised: they differ from call to call


def machine_code(kernel, types, constants, arch, num_warps):
    """(SASS, registers a thread, bytes of stack) of a kernel; ``types`` by argument."""
    names = [p.name for p in kernel.params]
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    # Pointers and widths divide by 16, as a tensor of V = 151,936 of torch's own has them.
    aligned = [n for n in names if n not in constants and n not in _ODD]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(k),): v for k, v in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": num_warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        text = _tool("nvdisasm", "-c", file.name)
    return text, int(re.search(r"REG:(\d+)", usage)[1]), int(re.search(r"STACK:(\d+)", usage)[1])


def _tool(name, *arguments):
    return subprocess.run([_TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


@functools.cache
def of_fold(arch, dtype, masked=False, with_maxima=True, cap=0.0, vocab=VOCAB):
    """One line of the table."""
    cut = layout_of(arch // 10, TYPES[dtype], vocab)
    constants = {
        "BLOCK": cut.block, "SUB": cut.sub, "CAP": cap, "SCALE": 1.0, "MASKED": masked, "WITH_MAXIMA": with_maxima,
    }  # fmt: skip
    pointers = {
        "logits": f"*{dtype}", "maxima": f"*{dtype}", "labels": "*i64", "factors": "*fp32", "sums": "*fp32",
        "label_logits": "*fp32",
    }  # fmt: skip
    text, registers, stack = machine_code(fold, _with_integers(fold, pointers), constants, arch, cut.num_warps)
    per_logit = sass.main_loop(text).num_instructions * 32 * cut.num_warps / cut.block
    return {"registers": registers, "stack": stack, "per_logit": round(per_logit, 2)}


@functools.cache
def of_gradient(arch, dtype, cap=0.0, vocab=VOCAB):
    """One line of the table."""
    cut = layout_of(arch // 10, TYPES[dtype], vocab)
    constants = {"BLOCK": cut.block, "CAP": cap, "SCALE": 1.0}
    pointers = dict.fromkeys(("factors", "references", "log_masses", "coefficients"), "*fp32")
    pointers |= dict.fromkeys(("logits", "gradient"), f"*{dtype}")
    types = _with_integers(logit_gradient, pointers)
    text, registers, stack = machine_code(logit_gradient, types, constants, arch, cut.num_warps)
    per_logit = sass.main_loop(text).num_instructions * 32 * cut.num_warps / cut.block
    return {"registers": registers, "stack": stack, "per_logit": round(per_logit, 2)}


@functools.cache
def of_finish(arch, cap=0.0):
    """One line of the table."""
    constants = {"COUNT": 8, "SLOTS": 8, "PARTS": 4, "CAP": cap, "SCALE": 1.0}
    single = ("sums", "label_logits", "bits", "floats", "top_logps", "top_logits")
    pointers = dict.fromkeys(single, "*fp32") | dict.fromkeys(("kept", "labels", "integers", "top_ids"), "*i64")
    pointers |= {"factors": "*fp64", "is_top1": "*u8"}
    _, registers, stack = machine_code(finish, _with_integers(finish, pointers), constants, arch, 1)
    return {"registers": registers, "stack": stack, "per_logit": None}


@functools.cache
def of_top(arch, dtype, n, vocab=VOCAB):
    """One line of the table; a thread's instructions, spread over the row's logits; None where the code has loops."""
    cut = layout_of(arch // 10, TYPES[dtype], vocab)
    slots, blocks = _power_of_two(n), cut.num_blocks(vocab)
    constants = {
        "SLOTS": slots, "SUB": cut.sub, "BLOCKS": _power_of_two(max(blocks, slots)), "IS_FIRST": True,
        "IS_16_BIT": TYPES[dtype] == 2,
    }  # fmt: skip
    pointers = {"logits": f"*{dtype}", "maxima": f"*{dtype}", "labels": "*i64", "kept": "*i64"}
    types = _with_integers(top_candidates, pointers)
    num_warps = cut.warps_of_top(slots)
    text, registers, stack = machine_code(top_candidates, types, constants, arch, num_warps)
    per_logit = round(sass.num_instructions(text) * 32 * num_warps / vocab, 2) if sass.straight(text) else None
    return {"registers": registers, "stack": stack, "per_logit": per_logit}


def _with_integers(kernel, pointers):
    return {p.name: pointers.get(p.name, "i32") for p in kernel.params}


def _power_of_two(count):
    return max(2, 1 << (count - 1).bit_length())
