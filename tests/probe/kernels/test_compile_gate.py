"""Without a GPU: the kernels compile for A100, H100 and B200, keep no stack, and stay below what an SM can issue."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import sass

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

COMMAND = Path(__file__).parents[3] / "benchmarks" / "kernel_instructions.py"


@pytest.fixture(scope="module")
def lines():
    # A process of its own: kernels imported where TRITON_INTERPRET is set cannot be compiled.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-P", COMMAND, "--json"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_kernel_spills_and_two_groups_of_256_threads_share_the_registers(lines):
    assert {line["arch"] for line in lines} == {"sm_80", "sm_90", "sm_100"}
    assert [line for line in lines if line["stack"] != 0 or line["registers"] > 128] == []


def test_the_main_loop_issues_at_most_eleven_instructions_a_logit(lines):
    loops = [line for line in lines if line["kernel"] in ("fold", "logit_gradient")]

    assert len(loops) == 12
    assert [line for line in loops if line["per_logit"] > 11] == []


def test_fold_and_top_candidates_together_leave_the_h200_waiting_for_memory(lines):
    """15.6 instructions a bf16 logit is what it can issue while it reads; fp32 logits are twice as long."""
    found = {(line["kernel"], line["dtype"]): line["per_logit"] for line in lines if line["arch"] == "sm_90"}

    for dtype, budget in (("bf16", 15.6), ("fp32", 31.2)):
        for n in (8, 16):
            assert found["fold", dtype] + found[f"top_candidates n={n}", dtype] < budget
    assert found["fold, no maxima", "bf16"] < found["fold", "bf16"] < found["fold, expect_masked", "bf16"] < 15.6


KNOWN = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   FFMA R5, R4, R7, -R8 ;
        /*0040*/                   MUFU.EX2 R6, R5 ;
        /*0050*/              @!P1 FADD R9, R9, R6 ;
        /*0060*/                   IADD3 R2, P2, R2, 0x10, RZ ;
        /*0070*/              @!P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0080*/                   STG.E desc[UR4][R2.64], R9 ;
.L_x_4:
        /*0090*/                   FADD R9, R9, R9 ;
        /*00a0*/               @P3 BRA `(.L_x_4) ;
        /*00b0*/                   EXIT ;
.L_x_3:
        /*00c0*/                   BRA `(.L_x_3) ;
        /*00d0*/                   NOP ;
"""


def test_the_counter_counts_a_known_loop():
    found = sass.loops(KNOWN)

    assert [(loop.label, loop.num_instructions) for loop in found] == [("L_x_1", 6), ("L_x_4", 2)]
    assert sass.main_loop(KNOWN).mnemonics == {"LDG": 1, "FFMA": 1, "MUFU": 1, "FADD": 1, "IADD3": 1, "BRA": 1}
    assert sass.num_instructions(KNOWN) == 13
    assert not sass.straight(KNOWN)
    assert sass.straight("        /*0000*/                   EXIT ;\n")
