"""plugins.toml: valid keys, the order of the files, and the whole text of every message."""

import re
from pathlib import Path

import pytest

from golden_texts import golden
from hvd_core._cli.config import choices, of_files
from hvd_core._config.hints import pip_install
from hvd_core._config.plugins_toml import PluginsConfig, PluginsTomlError, load, packaged_file, read
from hvd_core.backends._candidate import WHEEL, Candidate
from hvd_core.backends._messages import not_installed

ROOT_FILE = Path(__file__).resolve().parents[4] / "plugins.toml"


def written(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def files(tmp_path):
    """Writes files, and loads what they come to: user=, site= and variables."""

    def made(user=None, site=None, **environ):
        if user is not None:
            environ["HOROVOD_PLUGINS_TOML"] = str(written(tmp_path / "user.toml", user))
        if site is not None:
            written(tmp_path / "site.toml", site)
        return load(environ, tmp_path / "site.toml")

    return made


def refused(tmp_path, name, text, kind="user"):
    path = written(tmp_path / "plugins.toml", text)
    with pytest.raises(PluginsTomlError) as caught:
        read(path, kind)
    golden(name, str(caught.value), folder=tmp_path)


def test_the_line_of_a_key_is_found_in_its_usual_spellings(tmp_path):
    text = """# [probe]
[selection]
backend = "a"
gcu.allgather = [
  "m",
]
[backend]
eccl.options = { a = 1 }
[backend."x"]
library = "backend"
env.Y = "1"
"""
    file = read(written(tmp_path / "plugins.toml", text), "user")
    assert [rule.source.rpartition(":")[2] for rule in file.rules] == ["3", "4"]
    assert file.backends["eccl"].options["a"].source.endswith(":8")
    assert file.backends["x"].library.source.endswith(":10")
    assert file.backends["x"].env["Y"].source.endswith(":11")


def test_the_packaged_file_documents_every_key(tmp_path):
    """Every commented example, uncommented, is a valid file that sets every key there is."""
    text = ROOT_FILE.read_text()
    assert packaged_file().read_text() == text
    # An example is a comment that is TOML; later spellings of one key replace earlier ones.
    example = re.compile(r"# (\[[a-z.]+\]|[a-z_]+ = .+)")
    lines = [(m[1] if (m := example.fullmatch(line)) else line) for line in text.splitlines()]
    lines.remove('backend = "nccl"')
    without_wheels = "\n".join(lines).partition("[wheels]")[0]
    found = read(written(tmp_path / "site.toml", without_wheels), "site")
    assert (
        found.allow and found.deny and found.probe_timeout_s.value == 5 and found.affinity.value == "inherit"
    )
    assert {(r.device, r.operation): r.names for r in found.rules} == {
        (None, None): ("nccl", "mpi"),
        ("cuda", None): ("nccl",),
        ("cuda", "allgather"): ("mpi", "nccl"),
        ("cuda", "alltoall"): ("shm",),
        ("cpu", None): ("mpi",),
    }
    backend = found.backends["eccl"]
    assert backend.distribution.value == "hvd-backend-eccl>=0.3" and backend.library.value.endswith(
        "libeccl.so"
    )
    assert backend.options["max_channels"].value == 8 and backend.env["ECCL_DEBUG"].value == "WARN"
    packaged = read(ROOT_FILE, "packaged")
    assert packaged.rules == [] and packaged.allow is None and packaged.wheels["nccl"] == "hvd-backend-nccl"


def test_user_before_site_before_packaged(files):
    config = files(
        user='[selection]\nbackend = "a"\n[backend.x]\nlibrary = "u.so"\noptions = { p = 1 }\n',
        site='[selection]\nbackend = ["b", "C"]\ncpu.allgather = "d"\n[backend.x]\nlibrary = "s.so"\n'
        'options = { p = 2, q = true }\nenv = { Y = "1" }\n[probe]\ntimeout_s = 2.5\n',
    )
    assert [(r.device, r.operation, r.names) for level in config.levels() for r in level.rules] == [
        (None, None, ("a",)),
        (None, None, ("b", "c")),
        ("cpu", "allgather", ("d",)),
    ]
    found = config.backend("x")
    assert found.library.value == "u.so" and found.library.source.endswith("user.toml:4")
    assert {k: v.value for k, v in found.options.items()} == {"p": 1, "q": True} and found.env[
        "Y"
    ].value == "1"
    assert config.probe_timeout_s == 2.5 and config.affinity_mode.value == "inherit"
    assert files(site="").probe_timeout_s == 5.0


def test_allow_and_deny(files):
    config = files(site='[selection]\nallow = ["shm", "TCP", "x"]\ndeny = ["x"]\n')
    assert config.vetoed_by("shm") is None and config.vetoed_by("tcp") is None
    assert config.vetoed_by("x").endswith("site.toml:3 denies it (deny = x)")
    assert config.vetoed_by("y").endswith("site.toml:2 allows shm, tcp, x only")
    assert files(site="[selection]\nallow = []\n").vetoed_by("shm").endswith(":2 allows none only")
    assert files(site="").vetoed_by("anything") is None


def test_where_the_users_file_is(tmp_path):
    nothing = tmp_path / "no.toml"
    written(tmp_path / "home/.config/hvd/plugins.toml", "[probe]\ntimeout_s = 1\n")
    written(tmp_path / "xdg/hvd/plugins.toml", "[probe]\ntimeout_s = 2\n")
    named = written(tmp_path / "named.toml", "[probe]\ntimeout_s = 3\n")
    home, xdg = str(tmp_path / "home"), str(tmp_path / "xdg")
    assert load({"HOME": home}, nothing).probe_timeout_s == 1
    assert load({"HOME": home, "XDG_CONFIG_HOME": xdg}, nothing).probe_timeout_s == 2
    assert load({"HOME": home, "XDG_CONFIG_HOME": "relative"}, nothing).probe_timeout_s == 1
    assert load({"HOME": home, "HOROVOD_PLUGINS_TOML": str(named)}, nothing).probe_timeout_s == 3
    assert load({}, nothing).probe_timeout_s == 5


def test_never_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plugins.toml", ".config/hvd/plugins.toml", "hvd/plugins.toml"):
        written(tmp_path / name, "this is no TOML")
    for environ in ({}, {"HOME": ""}, {"HOME": ".", "XDG_CONFIG_HOME": "."}):
        assert load(environ, tmp_path / "no.toml").probe_timeout_s == 5


def test_messages_about_places(tmp_path):
    def said(name, environ, site=tmp_path / "no.toml"):
        with pytest.raises(PluginsTomlError) as caught:
            load(environ, site)
        golden(name, str(caught.value), folder=tmp_path)

    said("toml_relative", {"HOROVOD_PLUGINS_TOML": "my/plugins.toml"})
    said("toml_missing", {"HOROVOD_PLUGINS_TOML": str(tmp_path / "gone.toml")})
    said("toml_world_writable", {}, written(tmp_path / "open.toml", "", 0o666))
    open_to_all = str(tmp_path / "open.toml")
    said("toml_world_writable", {"HOROVOD_PLUGINS_TOML": open_to_all})
    (tmp_path / "folder.toml").mkdir()
    said("toml_unreadable", {}, tmp_path / "folder.toml")


def test_a_home_of_another_user(tmp_path, monkeypatch):
    own_stat = Path.stat

    def stat(path, **options):
        if path.is_relative_to(tmp_path / "home"):
            raise PermissionError(13, "Permission denied", str(path))
        return own_stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(
        PluginsTomlError, match=r"home/.config/hvd/plugins.toml cannot be read: Permission denied"
    ):
        load({"HOME": str(tmp_path / "home")}, tmp_path / "no site")


def test_unknown_keys(tmp_path):
    refused(tmp_path, "toml_unknown_key", '[selection]\nbakend = "eccl"\n')
    refused(tmp_path, "toml_unknown_table", '[selektion]\nbackend = "eccl"\n')
    refused(tmp_path, "toml_unknown_operation", '[selection.gcu]\n\naloreduce = "eccl"\n')
    refused(tmp_path, "toml_unknown_far_off", "[affinity]\nzzz = 1\n")


@pytest.mark.parametrize(
    ("line", "told"),
    {
        '[selection]\nbackend = "a,b"': r"2: selection.backend must be a backend's name or a list of names",
        '[selection]\nallow = ["x"]': r"2: 'allow' is valid in the site's file only",
        "[selection]\ngcu = { operations = 3 }": r"2: selection.gcu.operations must be a backend's name or",
        '[backend.x]\ndistribution = "x>="': r"2: backend.x.distribution must be a wheel's name",
        '[backend.x]\nlibrary = ""': r"2: backend.x.library must be the name or path of a library, but is ''",
        "[backend.x]\noptions = { p = [1] }": r"2: backend.x.options.p must be a string, a number, true or false",
        "[backend.x]\noptions = { q.r = 2 }": r"2: backend.x.options.q must be a string, a number, true or false",
        '[backend.x]\nenv = { "A B" = "x" }': r"2: 'A B' is not a valid name of an environment variable",
        "[backend.x]\nenv = { LEVEL = 3 }": r"2: backend.x.env.LEVEL must be a string, but is 3",
        "[backend.x]\nprobe = 1": r"2: unknown key 'probe' in \[backend.x\].  valid here: distribution, library",
        "[probe]\nretries = 2": r"2: unknown key 'retries' in \[probe\].  valid here: timeout_s",
        '[affinity]\nmode = "near"': r"2: affinity.mode must be one of inherit, near-device, off, but is 'near'",
    }.items(),
)
def test_the_message_names_the_line_and_the_valid_values(tmp_path, line, told):
    with pytest.raises(PluginsTomlError, match=f"plugins.toml:{told}"):
        read(written(tmp_path / "plugins.toml", line + "\n"), "user")


def test_wrong_values(tmp_path):
    for value in ("0", "-1", "true", "601", "nan", '"5"'):
        with pytest.raises(
            PluginsTomlError, match=r"plugins.toml:2: probe.timeout_s must be a number of seconds"
        ):
            read(written(tmp_path / "plugins.toml", f"[probe]\ntimeout_s = {value}\n"), "user")
    for value in ("3", "[]", "[1]", '["a b"]', '""', "{}"):
        with pytest.raises(
            PluginsTomlError, match=r"plugins.toml:2: selection.backend must be a backend's name"
        ):
            read(written(tmp_path / "plugins.toml", f"[selection]\nbackend = {value}\n"), "user")


def test_no_toml(tmp_path):
    refused(tmp_path, "toml_syntax", '[selection]\nbackend = "eccl\n')
    path = tmp_path / "plugins.toml"
    path.write_bytes(b"[selection]\n# \xff\n")
    with pytest.raises(PluginsTomlError, match=r"plugins.toml: this is not TOML: 'utf-8' codec"):
        read(path, "user")


def test_every_value_has_a_source(tmp_path, monkeypatch):
    site = written(
        tmp_path / "site.toml",
        '[selection]\nbackend = "b"\nallow = ["a", "b"]\n[backend.a]\nlibrary = "l.so"\n'
        'distribution = "w>=1"\noptions = { n = 8 }\nenv = { DEBUG = "1" }\n[affinity]\nmode = "off"\n',
    )
    user = written(tmp_path / "user.toml", '[selection]\nbackend = "c"\n[selection.gcu]\nallgather = "d"\n')
    environ = {
        "HOROVOD_PLUGINS_TOML": str(user),
        "HOROVOD_BACKEND": "a,b,gcu.allgather=x",
        "HOROVOD_GPU_ALLREDUCE": "NCCL",
        "HOROVOD_BACKEND_A_N": "9",
        "HOROVOD_BACKEND_Z_M": "1",
        "HOROVOD_BACKEND_SPEC": "{}",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = load(environ, site)
    rows = [*choices(settings), *of_files(settings)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    text = "\n".join(f"{k.ljust(widths[0])}  {v.ljust(widths[1])}  {s}" for k, v, s in rows)
    root = (re.escape(str(ROOT_FILE)), "ROOT")
    golden("config_explained", re.sub(" {2,}", "  ", text), folder=tmp_path, also=[root])
    for name in environ:
        monkeypatch.delenv(name)
    assert next(choices(load({}, tmp_path / "no.toml"))) == ("backend", "automatic", "default")


def test_what_only_looks_like_a_setting_is_refused(tmp_path):
    # Such a variable is read before the backends are; a value from the file would take effect at the second init().
    refused(
        tmp_path, "env_of_our_own", '[backend.eccl]\nenv = { HOROVOD_BACKEND = "tcp", ECCL_DEBUG = "WARN" }\n'
    )
    refused(tmp_path, "barrier_of_a_device", '[selection.gcu]\nbarrier = "eccl"\n')


def test_a_site_may_name_the_wheels_of_other_vendors(tmp_path):
    packaged = read(packaged_file(), "packaged")
    file = read(written(tmp_path / "plugins.toml", '[wheels]\ntgloo = "acme-tgloo"\n'), "site")
    wheels = PluginsConfig((file, packaged)).wheels
    assert wheels == packaged.wheels | {"tgloo": "acme-tgloo"}
    gloo = Candidate("gloo", WHEEL, "hvd-backend-gloo", "0.1.0")
    assert f"fix: {pip_install('acme-tgloo')}" in not_installed("tgloo", "", [gloo], wheel=wheels["tgloo"])
    # Another library, no slip of the pen.
    assert "Did you mean" not in not_installed("tgloo", "", [gloo])
    with pytest.raises(PluginsTomlError, match=r"wheels\.x must be a wheel's name"):
        read(written(tmp_path / "plugins.toml", '[wheels]\nx = "--index-url http://x"\n'), "user")
