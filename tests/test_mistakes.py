"""Mistakes that people make, one line each: the command, its exit code, and what the message must say."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from fedwinnow.cli import main
from mistakes_material import SMALL, write_material

TABLE = "--data csv:path=good.csv,label=diagnosis"
SITES = f"audit {TABLE} --site hospital --out new"

# command | exit code | words of the message, separated by ...
MISTAKES = f"""
# commands and flags
demmo | 2 | unknown command 'demmo' ... Did you mean 'demo'?
scene | 2 | needs a second word ... scene make, scene show
scene mak | 2 | Did you mean 'scene make'?
paper | 2 | paper list, paper show, paper run, paper table
run --method fedavg:loss="sce:alpha=6,beta=1" | 2 | 'beta' ... Allowed: aggregate ... 'fedavg:loss="sce:alpha=6,beta=1"'
run --rouds 3 | 2 | unknown flag '--rouds' ... Did you mean '--rounds'? ... --seed
scene make --sede 3 | 2 | Did you mean '--seed'?
scene show scene --limt 3 | 2 | Did you mean '--limit'?
scene draw scene --fromat png | 2 | Did you mean '--format'?
scene export scene --outt a.npz | 2 | Did you mean '--out'?
scene import --form a.npz | 2 | Did you mean '--from'?
run --privacy sampel:epsilon=8 | 2 | unknown kind of privacy 'sampel' ... Did you mean 'sample'?
run --privacy sample:epsilon=8,noise=2 | 2 | 'noise' ... Allowed: clip, delta, epsilon
run --privacy sample:epsilon=0 | 2 | epsilon=0 ... at least 0.01
run --privacy sample --method winnow | 2 | also sends 'statistics' ... fedavg, fedprox, gce and sce
run --privacy sample --secure-sums | 2 | --privacy sample and --secure-sums ... one of them
run --privacy client --method fedavg:aggregate=median | 2 | aggregate=median ... allowed: mean
run --privacy sample --method mixup | 2 | mixes samples ... mixup=0
run --privacy sample --encoder rows {TABLE} | 2 | scaled by sums ... rows:scale=l2
run --privacy sample --model lenet:norm=batch --out new | 2 | normalises over batches ... norm=group
audit --privacy sample | 2 | --privacy
audit --treshold 0.9 | 2 | Did you mean '--threshold'?
review audited/north --reviever anna | 2 | Did you mean '--reviewer'?
apply audited --inplace | 2 | Did you mean '--in-place'?
sweep --method fedavg | 2 | unknown flag '--method' ... Did you mean '--methods'?
table run --colums rounds | 2 | Did you mean '--columns'?
evaluate run --keep-temprature | 2 | Did you mean '--keep-temperature'?
figure curves run --colum loss | 2 | Did you mean '--column'?
detection run --fit 3 | 2 | Did you mean '--fits'?
paper run feddiv-table-1 --sacle paper | 2 | Did you mean '--scale'?
paper table feddiv-table-1 --fromat csv | 2 | Did you mean '--format'?
demo --round 3 | 2 | Did you mean '--rounds'?
methods --jsn | 2 | Did you mean '--json'?
doctor --quite | 2 | Did you mean '--quiet'?
run surplus | 2 | 'surplus' was given, but a flag was expected
run --rounds | 2 | --rounds was given without a value
run --rounds many | 2 | --rounds=many ... a whole number
run --rounds 2.5 | 2 | --rounds=2.5 ... a whole number
run --seed x | 2 | --seed=x ... a whole number
run --quorum half | 2 | --quorum=half ... a number
run --views flipp | 2 | Did you mean 'flip'?
run --resume yes | 2 | 'yes' was given, but a flag was expected
# encoders
run --encoder lit --out new | 2 | unknown encoder 'lit' ... Did you mean 'lite'?
run --encoder words --out new | 2 | encoder 'words' needs texts, but digits has images ... lite
run --encoder auto --out new | 2 | allowed in an audit on one machine
run --encoder lite:size=8 --out new | 2 | size=8 was given; allowed: at least 32
run --encoder transformers:path=absent --out new | 3 | there is no folder absent ... Nothing is downloaded
run --encoder model:kind=mlp,weights=absent.pth --out new | 3 | absent.pth: there is no such file
run --encoder ./absent.py:build --out new | 2 | there is no such file
encode --data digits | 2 | --encoder is missing
# numbers out of bounds
run --rounds -1 | 2 | --rounds -1 ... 0 or more
run --clients 0 | 2 | --clients 0 ... 1 or more
run --participation 2 | 2 | --participation 2.0 ... above 0 and at most 1
run --batch-size 0 | 2 | --batch-size 0 ... 1 or more
run --test 1 --out new | 2 | --test 1.0 ... below 1
run --validation 1 | 2 | --validation 1.0 ... below 1
run --trusted -1 | 2 | --trusted -1.0 ... a share
evaluate run --data digits --seed -1 | 2 | --seed -1 ... 0 or more
run --trusted 99999 --out new | 2 | of 359 test samples
run --eval-every 0 | 2 | --eval-every 0 ... 1 or more
run --clip -1 | 2 | --clip -1.0 ... above 0
run --checkpoint-every 0 | 2 | --checkpoint-every 0 ... 1 or more
run --quorum 2 | 2 | --quorum 2.0 ... 0 to 1
scene show scene --limit -1 | 2 | --limit -1 ... 0 or more
# names that do not exist
run --method fedvg --out new | 2 | unknown method 'fedvg' ... Did you mean 'fedavg'? ... fedprox
run --method fedprox:nu=1 --out new | 2 | unknown option of method 'fedprox': 'nu' ... mu
run --method fedprox:mu=-1 --out new | 2 | fedprox: mu=-1.0 ... at least 0
run --method fedprox:mu=big --out new | 2 | mu=big ... a number
run --method fedprox:mu --out new | 2 | is not key=value
run --method fedavg:loss=ce --out new | 2 | unknown loss 'ce' ... cross_entropy
run --method fedavg:aggregate=mediann --out new | 2 | Did you mean 'median'?
run --method fednoro:aggregate=median --out new | 2 | part of this method
run --method fair --out new | 2 | add --trusted 0.2
run --method rhfl --out new | 2 | add --public 0.2
run --method ./nowhere.py --out new | 2 | there is no such file
run --method ./no-python.py --out new | 2 | does not import ... line 1
run --method ./no-method.py --out new | 2 | one class that derives from Method
run --method ./needs-more.py --out new | 2 | there_is_no_such_module
run --model resnet81 --out new | 2 | Did you mean 'resnet18'?
run --model lenet+mlp --out new | 2 | averages models ... rhfl
run --model text --out new | 2 | was given images; allowed: tokens ... lenet
run --optimizer sdg --out new | 2 | Did you mean 'sgd'?
run --partition shard --out new | 2 | Did you mean 'shards'?
run --partition dirichlet:alpha=-1 --out new | 2 | alpha=-1.0 ... at least 0
run --partition column --out new | 3 | no site column ... site=hospital
run --noise unifrom --out new | 2 | Did you mean 'uniform'?
run --noise constant:rate=2 --out new | 2 | rate=2.0 ... at most 1
run --noise human:column=worse --out new | 3 | cifar10n
run --noise constant:flip=matrix --out new | 2 | needs file=
run --noise constant:flip=matrix,file=square.csv --out new | 3 | square.csv ... 10 rows and columns
run --backend prcesses --out new | 2 | Did you mean 'processes'?
run --backend processes:workers=0 --out new | 2 | workers=1 or more
run --device cuda --out new | 2 | 'cuda' was given as --device ... cpu ... fedwinnow doctor
run --device gpu --out new | 2 | this machine has: cpu
run --mixed-precision --device cpu --out new | 2 | --mixed-precision ... cpu ... CUDA device
run --track tensorbord --out new | 2 | Did you mean 'tensorboard'?
run --track mlflow --out new | 2 | pip install '.[mlflow]'
run --data huggingface:dataset=a,label=b --out new | 2 | pip install '.[huggingface]'
run --data parquet:path=good.csv,label=b --out new | 2 | pip install '.[parquet]'
scene draw scene | 2 | pip install '.[figures]'
# data
run --data nowhere --out new | 2 | unknown data source 'nowhere' ... no file or folder 'nowhere'
run --data nowhere.csv --out new | 3 | there is no file nowhere.csv ... Check the path
run --data notes.txt --out new | 3 | notes.txt ... Name its source
run --data csv:path=good.csv --out new | 2 | needs label= ... csv:path=good.csv,label=
run --data good.csv --out new | 3 | unknown column 'label' ... age, diagnosis, hospital ... label=
run --data csv:path=good.csv,label=diagnoses --out new | 3 | Did you mean 'diagnosis'?
run {TABLE},site=hospitl --out new | 3 | Did you mean 'hospital'?
run --data csv:path=good.csv,label=age --out new | 3 | does not look like a class
run --data csv:path=floats.csv,label=diagnosis --out new | 3 | 40 different values ... Choose another column
run --data csv:path=empty.csv,label=diagnosis --out new | 3 | empty.csv is empty
run --data csv:path=header.csv,label=diagnosis --out new | 3 | no row below
run --data csv:path=one.csv,label=diagnosis --out new | 3 | 'ill' in every row ... two classes
run --data csv:path=ragged.csv,label=diagnosis --out new | 3 | row 2 (line 3) ... 3 cells
run --data csv:path=gap.csv,label=diagnosis --out new | 3 | row 2 (line 3) ... is missing
run --data csv:path=twice.csv,label=diagnosis,id=id --out new | 3 | row 2 (line 3): the id 'a'
run --data csv:path=homeless.csv,label=diagnosis,site=hospital --out new | 3 | row 2 (line 3): the site
run --data csv:path=latin.csv,label=diagnosis,encoding=utf-8 --out new | 3 | line 2: not UTF-8
run {TABLE},image=age --out new | 3 | row 1 (line 2) ... there is no file 20
run {TABLE} --model resnet18 --clients 3 --out new | 2 | was given rows; allowed: images ... mlp
run {TABLE} --views flip --clients 3 --out new | 2 | --views flip ... samples are rows ... Leave it out
run {TABLE},length=9 --clients 3 --out new | 2 | length=9 ... without text=
run --data bare --out new | 3 | one folder per class
run --data photos-one --out new | 3 | at least two classes
run --data photos-broken --out new | 3 | cat/3.png: not a readable image ... Replace or remove it
run --data folder:path=good.csv --out new | 3 | good.csv is a file; a folder is needed
run --data objects.npz --out new | 3 | array 'y' ... Python objects ... numpy.savez
run --data fake.npz --out new | 3 | fake.npz ... not an archive
run --data without.npz --out new | 3 | no array 'y'
run --data lengths.npz --out new | 3 | 4 samples but 5 entries in y
run --data nan.npz --out new | 3 | row 1 (index 0), column 1: the value is nan
run --data shares.npz --out new | 3 | 0.5 is not a label
run --data mnist --out new | 3 | train-images-idx3-ubyte.gz is missing ... FEDWINNOW_DATA
run --data digits:train=60 --clients 1000 --out new | 3 | at most 50 clients
run --data digits:train=60 --partition shards:per_client=50 --out new | 3 | per_client of at most 2
evaluate run --data good.csv | 3 | good.csv ... an image of 8 x 8 pixels
evaluate run --data photos-broken | 3 | not a readable image
# files and folders
evaluate | 2 | no run was given
evaluate run --data digits --out mine | 2 | --out mine has other files in it
evaluate scene --data digits | 3 | not a run folder
predict run --data digits --out new.csv --calibrated | 2 | no kept temperature ... --keep-temperature
run --config nowhere.toml | 2 | nowhere.toml ... No such file ... feddiv/cifar10
run --config bad.toml | 3 | bad.toml: not valid TOML ... line 1
run --config key.toml | 2 | key.toml ... Did you mean 'clients'?
run --config value.toml | 2 | value.toml: clients=many ... a whole number
run --config part.toml | 2 | [partition] needs a kind
run --config bad.toml --config bad.toml | 2 | given twice
run --scene nowhere --out new | 3 | not the folder of a scene ... fedwinnow scene make
run --data digits:train=60 --out good.csv | 3 | good.csv ... it is a file, and a folder is needed
run --data digits:train=60 --out good.csv/below | 3 | good.csv/below: cannot be written
run {SMALL} --clients 3 --out run | 2 | already holds this run ... --resume
run {SMALL} --clients 3 --epochs 2 --out run | 2 | epochs (1 there, 2 now)
run --data digits:train=60 --out another-config | 2 | or one of another version ... more. Choose another folder
scene show nowhere | 3 | not the folder of a scene
scene show mine | 3 | no scene.json
scene make --data digits:train=60 --clients 3 --out good.csv | 3 | good.csv: the scene cannot be written
scene export scene --out a.txt | 2 | .npz or .csv
scene export scene --out good.csv/a.npz | 3 | a file is in the place
scene import | 2 | --from is missing
scene import --from fake.npz | 3 | fake.npz ... not an archive
scene import --from without.npz | 3 | the array 'client' is missing
# the audit
audit | 2 | nothing to audit ... --data, --scene, or --run
audit {TABLE} --out new | 2 | Give --site COLUMN ... --clients N
audit {TABLE} --site hospitl --out new | 3 | Did you mean 'hospital'?
audit {TABLE} --clients 0 --out new | 2 | --clients 0 ... 1 or more
{SITES} --clients 3 | 2 | --site and --clients exclude each other
{SITES} --threshold 2 | 2 | --threshold 2.0 ... at most 1
{SITES} --expected-false-alarms 2 | 2 | --expected-false-alarms 2.0 ... from 0 to below 1
{SITES} --expected-false-alarms 0.1 --threshold 0.6 | 2 | exclude each other
{SITES} --judge finall | 2 | Did you mean 'final'?
audit {TABLE} --run run | 2 | --data and --run exclude each other
audit --run mine | 3 | not a run folder
audit --run run --batch-size 8 | 2 | --batch-size was given with --run
audit --run run --site hospital | 2 | --site was given with --run
audit {TABLE} --site hospital --out audited | 2 | already holds an audit
review | 2 | no folder was given
review mine | 3 | not the folder of an audited site
review audited --anchor 1 | 2 | --anchor 1 ... 2 to 2000
review audited/north --first 0 | 2 | --first 0 ... 1 or more
audit --update mine | 3 | not the folder of an audited site
apply audited --out b.csv --accept-above 0.5 | 2 | review audited --anchor 30 ... --without-looks
review audited/north --port 99999999 | 2 | --port 99999999
apply | 2 | the folder of an audit, or --undo
apply audited | 2 | give --out
apply mine --out b.csv | 3 | not the folder of an audited site
apply audited --out b.csv | 2 | nothing to apply ... Review first
apply audited --out b.csv --accept-above 2 | 2 | --accept-above 2.0 ... at most 1
apply audited --in-place --out b.csv | 2 | --in-place
apply --undo good.csv --out b.csv | 3 | no receipt
# sites on machines of their own
serve --rounsd 3 | 2 | Did you mean '--rounds'?
serve | 2 | --sites 0 ... 1 or more
serve --backend serial | 2 | unknown flag '--backend'
serve {TABLE} --sites 3 --insecure --secure-sums | 2 | --secure-sums was given without --tls
run --secure-sums --method krum --out new | 2 | method 'krum' must see 'weights', 'counters' ... winnow
run --secure-sums --clients 2 --participation 1 --out new | 2 | 2 sites take part in a round ... at least 3
run --secure-sums --secure-threshold 0.3 --out new | 2 | --secure-threshold 0.3 ... at least 0.5
{SITES} --secure-sums | 2 | an audit must see answers of every single site
serve --noise none | 2 | unknown flag '--noise'
join | 2 | no --tls was given ... --insecure
join --server | 2 | --server was given without a value
serve {TABLE} --sites 1 --insecure --threshold 0.7 | 2 | --threshold was given without --audit
serve {TABLE} --sites 1 --insecure --audit --threshold 7 | 2 | --threshold 7.0 was given; allowed: above 0 and at most 1
serve {TABLE} --sites 1 --insecure --audit --encoder auto | 2 | over a network ... --encoder lite
serve {TABLE} --sites 1 --insecure --audit --update audited | 2 | --data ... was given with --update
serve --sites 1 --insecure --update audited | 2 | --update was given without --audit
serve {TABLE} --sites 1 --port 99999 --insecure | 2 | --port 99999 ... 1 to 65535
join --server nowhere --data good.csv --name a --insecure | 2 | host:port
join --server localhost:99999 --data good.csv --name a --insecure | 2 | --server localhost:99999 ... host:port
join --server münchen.de:8443 --data good.csv --name a --insecure | 2 | its xn-- form
join --data good.csv --insecure --patience -1 | 2 | --patience -1 ... 0 seconds or more
join --check --data good.csv | 2 | no --tls was given ... --insecure
join --check --server nowhere --data good.csv --insecure | 2 | host:port
join --data good.csv --insecure --allow-exposure all | 2 | --allow-exposure ... model
join --data good.csv --insecure | 2 | there is no terminal ... --write-policy ... --yes
join --data good.csv --insecure --quiet | 2 | --quiet was given ... --policy ... --yes
join --data good.csv --insecure --yes --policy good.toml | 2 | --yes and --policy exclude each other
join --data good.csv --insecure --allow-exposure sample --policy good.toml | 2 | --allow-exposure sample ... exposure
join --data good.csv --insecure --policy nowhere.toml | 3 | there is no such file ... --write-policy nowhere.toml
join --data good.csv --insecure --policy key.toml | 2 | --policy key.toml: unknown key 'clientz' ... Allowed
join --data good.csv --insecure --policy bad.toml | 3 | --policy bad.toml: not a TOML file
join --write-policy good.csv | 2 | the file exists
join --scene nowhere --insecure --allow-exposure sample | 2 | --allow-exposure sample was given with --scene ... --data
certificates --site a | 2 | Did you mean '--sites'?
certificates | 2 | --host ... --sites
certificates --host münchen.de --sites a --out new | 2 | --host 'münchen.de' ... xn--
certificates --host '' --sites a --out new | 2 | --host ''
certificates --host localhost --sites ca.crt --out new | 2 | --sites ca.crt ... none of ca.crt
certificates --host localhost --sites a A --out new | 2 | two have the same name
schema --dta good.csv | 2 | Did you mean '--data'?
schema --data digits | 2 | a table (csv:..., excel:..., parquet:...)
schema {TABLE} --out good.csv | 2 | a file that ends in .json
# sweeps, tables and figures
sweep sweep-key.toml | 2 | sweep-key.toml: 'methodz' ... Did you mean 'method'?
sweep sweep-scene.toml | 2 | Did you mean 'partition'?
sweep sweep-value.toml | 2 | --clients=many ... a whole number
sweep sweep-rate.toml | 2 | rate=2.0 ... at most 1
sweep sweep-optimizer.toml | 2 | Did you mean 'sgd'?
sweep sweep-seeds.toml | 2 | seeds=a ... a whole number
sweep sweep-twice.toml | 2 | 'fedavg' twice
sweep nowhere.toml | 2 | nowhere.toml ... cannot be read
sweep --seeds a | 2 | --seeds=a ... a whole number
sweep --seeds | 2 | no seed
sweep --methods fedvg --out new | 2 | Did you mean 'fedavg'?
sweep --noises unifrom --out new | 2 | Did you mean 'uniform'?
sweep --data digitz --out new | 2 | Did you mean 'digits'?
sweep --scene scene --noises none given --out new | 2 | --noises was given together with scenes
sweep --rounds -2 --out new | 2 | --rounds -2 ... 0 or more
sweep --jobs 0 --out new | 2 | --jobs 0
sweep --engine lokky --out new | 2 | Did you mean 'loky'?
table | 2 | no run folder was given
table nowhere | 3 | there is no such folder
table bare | 3 | no run in there
table other-version | 3 | not the JSON
table run --show last11 | 2 | --show 'last11' ... Did you mean 'last10'?
table run --rows metod | 2 | Did you mean 'method'?
table run --alpha 2 | 2 | --alpha 2.0 ... below 1
table run --out a.pdf | 2 | .md, .tex, .csv, .json
figure cuves run | 2 | Did you mean 'curves'?
figure curves | 2 | no run folder was given
figure run curves | 2 | The name of the picture comes first
figure curves run --out a.gif | 2 | .png, .svg or .pdf
figure sensitivity run | 2 | needs --option
figure curves run --order fedag --out a.png | 2 | unknown method for --order 'fedag' ... Did you mean 'fedavg'?
figure curves run --font-size 99 --out a.png | 2 | --font-size 99 ... 4 to 24
table run --rename fedag=Ours | 2 | Did you mean 'fedavg'?
table run --rename Ours | 2 | --rename Ours ... old=new
table run --order fedag | 2 | unknown row for --order 'fedag'
board | 2 | no folder was given
board nowhere | 3 | there is no such folder
board bare | 3 | no run in there
paper show | 2 | fedwinnow paper list
paper show feddiv-table-1 --methods fedag | 2 | Did you mean 'fedavg'?
detection run | 3 | no round has client indicators ... fednoro
paper run | 2 | fedwinnow paper list
paper run feddiv-table-99 | 2 | unknown recipe
paper run feddiv-table-1 --set round=3 --plan | 2 | Did you mean 'rounds'?
paper run feddiv-table-1 --set rounds --plan | 2 | key=value
paper run feddiv-table-1 --set data=cifar10:train=many --plan | 2 | train=many ... a whole number
paper table feddiv-table-1 --runs nowhere | 3 | fedwinnow paper run feddiv-table-1
methods fedvg | 2 | Did you mean 'fedavg'?
methods ./nowhere.py | 2 | there is no such file
"""
LINES = [line.split(" | ") for line in MISTAKES.strip().splitlines() if not line.startswith("#")]
ABSENT = ("mlflow", "datasets", "pyarrow", "matplotlib")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: no mistake changes it."""
    folder = tmp_path_factory.mktemp("material")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_material(folder)
    return folder


@pytest.fixture
def here(material: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a graphics card, without the extras and without published data, standing in the material."""
    monkeypatch.chdir(material)
    monkeypatch.delenv("FEDWINNOW_DATA", raising=False)
    monkeypatch.setattr("fedwinnow.device.devices_present", lambda: ["cpu"])
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)
    return material


@pytest.mark.parametrize(("line", "code", "said"), LINES, ids=[line for line, _, _ in LINES])
def test_a_mistake_is_answered(line: str, code: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(line), "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == int(code), err
    for words in said.split(" ... "):
        assert words in err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert len(err) < 1200  # a message is read, not searched
    assert json.loads(out) == {"error": err.removeprefix("error: ").rstrip("\n"), "exit_code": int(code)}
    assert not (here / "new" / "config.toml").exists()


def test_there_are_enough_of_them_and_no_two_alike() -> None:
    commands = [line for line, _, _ in LINES]
    assert len(commands) > 150
    assert len(set(commands)) == len(commands)


def test_a_folder_that_may_not_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked of the system by a stand-in, because whoever runs the tests may be allowed everything."""

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for command in ("run", "scene make", "audit"):
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--data", "digits:train=60", "--clients", "3", "--out", "closed"])
        assert ended.value.code == 3
        err = capsys.readouterr().err
        assert "closed" in err
        assert "Permission denied" in err
