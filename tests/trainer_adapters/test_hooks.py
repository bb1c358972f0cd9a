"""What adapters rely on in trainers is declared once; what has moved is reported exactly, by attach and by doctor."""

import importlib.util
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny_trl

from entrostat.trainer_adapters.hooks import ATTACH, DLC, REWARDS, TRAINERS, TRANSFORMERS, TRL, Hook, check
from entrostat.trainer_adapters.installed import Sources, report
from entrostat.wire.errors import AttachError


def place(hook):
    """The function itself, by import."""
    found = importlib.import_module(hook.module)
    for part in hook.place.partition(":")[2].split("."):
        found = getattr(found, part)
    return found


def lines(trainer, version, root):
    return list(report(trainer, version, Sources(root)))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder in which the installed TRL lies, as a copy of those files that hooks are in."""
    installed = Path(importlib.util.find_spec("trl").submodule_search_locations[0])
    copy = tmp_path_factory.mktemp("site")
    for module in sorted({hook.module for hook in TRL.hooks} | {"trl.trainer.base_trainer"}):
        relative = Path(*module.split(".")[1:]).with_suffix(".py")
        (copy / "trl" / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / relative, copy / "trl" / relative)
    return copy


def doctored(site, tmp_path, file, old, new):
    """A copy of the site in which one file says something else."""
    shutil.copytree(site, tmp_path / "site")
    path = tmp_path / "site" / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new))
    return tmp_path / "site"


@pytest.mark.parametrize("hook", [*TRL.hooks, *TRANSFORMERS.hooks], ids=lambda hook: hook.place)
def test_the_installed_source_is_read_as_an_import_reads_it(hook):
    finding = Sources().find(hook)
    signature = list(inspect.signature(place(hook)).parameters)

    assert finding.is_as_expected
    is_method = hook.owner is not None and signature[0] == "self"  # an autograd function has static ones
    assert finding.parameters == (signature[1:] if is_method else signature)


def test_a_trainer_whose_hooks_are_in_place_passes_for_every_use(tmp_path):
    for kind in ("grpo", "rloo"):
        trainer = tiny_trl.trainer(tmp_path / kind, kind)
        check(TRL, [ATTACH, DLC, REWARDS], trainer)


def test_reading_the_source_imports_nothing():
    """verl and vLLM start things when they are imported; of TRL even the package must not be."""
    program = (
        "import sys; from entrostat.trainer_adapters.hooks import TRL; "
        "from entrostat.trainer_adapters.installed import Sources; "
        "assert all(Sources().find(hook).is_as_expected for hook in TRL.hooks); "
        "sys.exit(', '.join({'trl', 'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_renamed_method_is_named_and_the_rest_is_said_to_work(site, tmp_path):
    root = doctored(site, tmp_path, "trl/trainer/grpo_trainer.py", "def _generate(self", "def _make(self")

    found = lines(TRL, "1.16.0", root)

    place = "trl.trainer.grpo_trainer:GRPOTrainer._generate"
    assert [text for mark, text in found if mark == "FIX"] == [
        f"TRL: no reward functions: {place} expected (prompts), there is no _generate",
        "TRL: install 1.15 to 1.16, update entrostat, or call entrostat.Probe in your own loop",
    ]
    works = 'attach, DlcSampling, attach(head="entrostat"), attach(SFTTrainer), rollout_logprobs'
    assert ("ok", f"TRL: {works} (16 hooks as expected)") in found


def test_an_inserted_argument_is_shown_as_expected_and_found(site, tmp_path):
    root = doctored(
        site, tmp_path, "trl/trainer/rloo_trainer.py",
        "def _compute_loss(self, model, inputs)", "def _compute_loss(self, model, state, inputs)",
    )  # fmt: skip

    fixes = [text for mark, text in lines(TRL, "1.17.0", root) if mark == "FIX"]

    place = "trl.trainer.rloo_trainer:RLOOTrainer._compute_loss"
    assert fixes[0] == f"TRL: no attach: {place} expected (model, inputs), found (model, state, inputs)"


def test_a_method_that_moved_into_a_base_class_of_another_module_is_found(site, tmp_path):
    root = doctored(
        site, tmp_path, "trl/trainer/rloo_trainer.py",
        "    def _compute_loss(self, model, inputs)", "    def _compute_other_loss(self, model, inputs)",
    )  # fmt: skip
    base = root / "trl" / "trainer" / "base_trainer.py"
    base.write_text("if True:\n    from ._parts import Part as _BaseTrainer\n")
    (base.parent / "_parts.py").write_text("class Part:\n    def _compute_loss(self, model, inputs): ...\n")
    (hook,) = [hook for hook in TRL.hooks if hook.place.endswith("RLOOTrainer._compute_loss")]

    assert Sources(root).find(hook).parameters == ["model", "inputs"]


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        ("nowhere.at.all:f", "there is no module nowhere.at.all that can be read"),
        ("trl.trainer.utils:nothing", "there is no nothing"),
        ("trl.trainer.utils:Nobody.f", "there is no class Nobody in trl.trainer.utils"),
        ("trl.trainer.utils:add_fused_lm_head.f", "there is no class add_fused_lm_head in trl.trainer.utils"),
    ],
)
def test_a_place_that_is_not_there_is_said_to_be_missing(place, missing):
    finding = Sources().find(Hook(place, (), "x"))

    assert not finding.is_as_expected
    assert finding.missing == missing


def test_a_file_that_this_python_cannot_read_is_no_crash(site, tmp_path):
    root = doctored(site, tmp_path, "trl/trainer/sft_trainer.py", "class SFTTrainer(", "class = SFTTrainer(")

    assert any("trl.trainer.sft_trainer that can be read" in text for _, text in lines(TRL, "1.16.0", root))


@pytest.mark.parametrize(
    ("version", "mark", "words"),
    [
        ("1.14.2", "FIX", "older than known (1.15 to 1.16)"),
        ("1.15.0", "ok", "among those known"),
        ("1.16.3", "ok", "among those known"),
        ("1.17.0rc1", "note", "newer than what was tried (1.15 to 1.16); what entrostat relies on is as expected"),
        ("2.0", "note", "newer than what was tried"),
    ],
)
def test_the_version_is_placed_against_those_known(site, version, mark, words):
    first, *_ = lines(TRL, version, site)

    assert first[0] == mark
    assert first[1].startswith(f"TRL {version}: ")
    assert words in first[1]


def test_what_is_not_installed_is_one_line(site):
    for trainer in TRAINERS.values():
        assert [mark for mark, _ in lines(trainer, None, site)] == ["-"]


def test_attach_names_a_function_that_an_older_trl_lacks_and_the_versions_that_work(tmp_path, monkeypatch):
    trainer = tiny_trl.trainer(tmp_path)
    monkeypatch.delattr("trl.trainer.utils.add_fused_lm_head")

    with pytest.raises(AttachError, match=r"utils\.add_fused_lm_head takes None.*knows TRL 1\.15 to 1\.16: install"):
        check(TRL, [ATTACH], trainer)


def test_a_subclass_that_changes_a_method_is_caught_where_the_source_is_as_expected(tmp_path):
    trainer = tiny_trl.trainer(tmp_path)
    trainer.__class__ = type("Mine", (type(trainer),), {"_compute_loss": lambda self, batch: None})

    with pytest.raises(AttachError, match=r"Mine\._compute_loss takes \['batch'\], expected \['model', 'inputs'\]"):
        check(TRL, [ATTACH], trainer)


def test_arguments_after_those_expected_do_not_matter_unless_all_are_declared():
    leading, whole = Hook("m:f", ("a",), "x"), Hook("m:f", ("a",), "x", is_whole=True)

    assert leading.fits(["a", "b"])
    assert not leading.fits(["b", "a"])
    assert not leading.fits(None)
    assert whole.fits(["a"])
    assert not whole.fits(["a", "b"])
