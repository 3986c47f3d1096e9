"""What the documents say works: every command shown is run, and nothing names a machine's own paths."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from fedwinnow.cli import main
from fedwinnow.commands.audit import Audit

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A comment in front of a block says what the block needs: `<!-- file: NAME -->` or `<!-- skipped: REASON -->`.
BLOCK = re.compile(r"(?:<!-- (file|skipped): ([^>]+?) -->\n)?```(?:bash|console)\n(.*?)```", re.DOTALL)

DEMO = "fedwinnow demo"  # a minute; a test of its own plays it with fewer rounds


def toml_of(page: str) -> str:
    """The config file that a page shows."""
    return re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)[0]


def python_of(page: str, file: str) -> str:
    """The Python file of this name that a page shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"<!-- file: {file} -->\n```python\n(.*?)```", text, re.DOTALL)[0]


FILES = {
    "weighty.py": python_of("own-method.md", "weighty.py"),
    "my_model.py": python_of("own-model.md", "my_model.py"),
    "patients.csv": "diagnosis,hospital,age\n"
    + "".join(f"{'ill' if row % 3 else 'well'},{'north' if row % 2 else 'south'},{20 + row}\n" for row in range(40)),
    "visits.csv": "patient,diagnosis,age\n"
    + "".join(f"p{row // 3},{'ill' if row // 3 % 2 else 'well'},{20 + row % 30}\n" for row in range(60)),
    "new.csv": "age\n20\n31\n42\n",
    "scene.toml": toml_of("index.md"),
    "study.toml": toml_of("compare.md"),
    "my_method.py": (ROOT / "examples" / "my_method.py").read_text(encoding="utf-8"),
    "my_encoder.py": python_of("encoders.md", "my_encoder.py"),
    "notes.csv": "note,topic\n"
    + "".join(f"{'a good' if row % 2 else 'a bad'} word{row % 7},{'x' if row % 2 else 'y'}\n" for row in range(40)),
}


def write_needed(folder: Path, name: str) -> None:
    """The file that a command needs; a name that ends in / is a folder of images with a folder per class."""
    if not name.endswith("/"):
        (folder / name).write_text(FILES[name], encoding="utf-8")
        return
    for place, shade in (("bright", 200), ("dark", 40)):
        (folder / name / place).mkdir(parents=True, exist_ok=True)
        for number in range(9):
            Image.new("RGB", (20, 20), (shade + 5 * number, shade, shade)).save(folder / name / place / f"{number}.png")


def quick(line: str) -> list[str]:
    """The words of a documented command; an audit, shown with the rounds that it needs, is tested with fewer."""
    words = shlex.split(line, comments=True)[1:]
    return [*words, "--rounds", "2"] if words[0] == "audit" and "--rounds" not in words else words


def commands(document: Path) -> list[tuple[str, str]]:
    """Every `fedwinnow` line of a document with the file it needs, those that are skipped left out."""
    found = []
    for kind, word, block in BLOCK.findall(document.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("fedwinnow ") and line != DEMO and kind != "skipped":
                found.append((line, word if kind == "file" else ""))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_works(document, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDWINNOW_DATA", raising=False)
    for line, needed in commands(document):
        if needed:
            write_needed(tmp_path, needed)
        with pytest.raises(SystemExit) as ended:
            main(quick(line))
        assert ended.value.code == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("name", ["index.md", "start.md", "compare.md", "use-the-model.md"])
def test_the_python_of_the_pages_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    assert any(tmp_path.iterdir())


SHOWN = [*DOCUMENTS, *sorted((ROOT / "examples").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.md"))]
ROUNDS = re.compile(r"(?:--rounds[ =]|\brounds\s*=\s*)(\d+)")
# An audit as it is written for a shell (with continued lines) or in Python (up to the bracket that closes the call).
AN_AUDIT = re.compile(r"fedwinnow audit\b(?:\\\n|[^\n`])*|fedwinnow\.audit\([^`]*?\n?\)(?=\s|$|`)")


def short_audits(text: str) -> list[str]:
    """Audits that are shown with fewer rounds than the default."""
    usual = Audit().rounds
    return [found[0] for found in AN_AUDIT.finditer(text) for rounds in ROUNDS.findall(found[0]) if int(rounds) < usual]


@pytest.mark.parametrize("document", SHOWN, ids=lambda path: path.name)
def test_no_audit_is_shown_with_fewer_rounds_than_it_needs(document):
    """A model that has hardly learnt anything takes right labels for wrong ones."""
    text = document.read_text(encoding="utf-8")
    assert short_audits(text) == []
    assert not re.search(r"rounds \d+`? is a quick look", text)


def test_short_audits_are_seen():
    assert short_audits("```bash\nfedwinnow audit --data a.csv --site b --rounds 3 --out x\n```")
    assert short_audits("fedwinnow audit --data a.csv \\\n  --rounds=3")
    assert short_audits("found = fedwinnow.audit(\n    data=f(1), clients=3, rounds=2\n)\n")
    assert short_audits("fedwinnow audit --rounds 20\nfedwinnow run --rounds 3") == []
    assert any(AN_AUDIT.search(document.read_text(encoding="utf-8")) for document in SHOWN)


def test_the_documents_show_commands():
    """Guards the test above: a changed way of writing blocks must not leave it with nothing to run."""
    assert len(commands(ROOT / "README.md")) >= 3
    assert sum(len(commands(document)) for document in DOCUMENTS) >= 15


def test_what_the_readme_says_the_demo_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["demo", "--rounds", "1"])
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    excerpt = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert {line.rstrip() for line in excerpt.splitlines()} - printed <= {"..."}


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        for target in re.findall(r"(?:^|`)make ([a-z]+)", document.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document.name}: make {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_pictures_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def texts() -> list[Path]:
    """The project's own text files."""
    folders = ["src", "docs", "tests", "tools", "examples", "benchmarks", ".github", ".ci"]
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    endings = {".py", ".md", ".toml", ".yml", ".txt", ".cff", ""}
    own = [path for path in [*inside, *ROOT.glob("*")] if path.suffix in endings and path.name != ".git"]
    return [path for path in own if path.is_file() and "__pycache__" not in path.parts]


def test_the_project_speaks_of_no_machine_and_no_registry():
    machine = re.compile(r"(?<![\w.])/" + r"(?:work|tmp)/")
    registry = re.compile("py" + r"pi\.org|python" + "hosted|download" + r"\.pytorch\.org|ana" + r"conda\.org")
    assert len(texts()) > 100
    for path in texts():
        text = path.read_text(encoding="utf-8")
        assert not machine.search(text), path
        assert not registry.search(text), path
