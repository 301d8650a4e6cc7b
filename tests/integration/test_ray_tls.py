"""Ray's own TLS beneath a run of several machines: what Ray carries, keys of the run included, needs a certificate.

In a network namespace with nothing but loopback, since Ray listens at the machine's address.
"""

import contextlib
import datetime
import ipaddress
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.commands import JOBS, RAVNEST, environment, ravnest

pytestmark = pytest.mark.timeout(400)

PORT, START_S, RUN_S = 26379, 90.0, 240.0
LOOPBACK_ONLY = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def certificates(folder: Path) -> dict[str, str]:
    """An authority of one's own and a certificate for loopback, as the variables in which Ray wants to hear of them."""

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    extensions = {"authority": x509.BasicConstraints(ca=True, path_length=None), "node": alternatives}
    files = {}
    for who, owner in (("authority", authority), ("node", key)):
        made = x509.CertificateBuilder(name("authority"), name(who), owner.public_key(), x509.random_serial_number())
        made = (
            made.not_valid_before(now - day).not_valid_after(now + day).add_extension(extensions[who], critical=False)
        )
        files[who] = folder / f"{who}.crt"
        files[who].write_bytes(made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = folder / "node.key"
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(*form))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(files["node"]),
        "RAY_TLS_SERVER_KEY": str(private),
        "RAY_TLS_CA_CERT": str(files["authority"]),
    }


def answers(with_certificate: bool) -> bool:
    """Whether Ray's head says anything to who shows a certificate, or none. Raises OSError while it does not listen."""
    shown = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    shown.check_hostname = False
    shown.set_alpn_protocols(["h2"])
    if with_certificate:
        shown.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    with socket.create_connection(("127.0.0.1", PORT), timeout=20) as plain:
        try:
            with shown.wrap_socket(plain) as line:
                line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return bool(line.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def in_the_namespace(folder: Path) -> int:
    """Start Ray with TLS, knock with a certificate and without one, and run the plan; the exit code of the run."""
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    ray += ["--node-ip-address", "127.0.0.1", "--port", f"{PORT}", "--num-cpus", "2", "--include-dashboard", "false"]
    ray += ["--object-store-memory", "80000000"]
    with (
        tempfile.TemporaryDirectory(
            prefix="tls-", dir="/tmp", ignore_cleanup_errors=True
        ) as short,  # sockets lie in it
        (folder / "ray.log").open("wb") as log,
        subprocess.Popen([*ray, "--temp-dir", short], stdout=log, stderr=log) as head,
    ):
        try:
            ends_s, heard = time.monotonic() + START_S, False
            while not heard and head.poll() is None and time.monotonic() < ends_s:
                time.sleep(0.5)
                with contextlib.suppress(OSError):
                    heard = answers(with_certificate=True)
            if not heard or answers(with_certificate=False):
                return 100 + heard
            command = [*RAVNEST, "run", "plan.yaml", "--address", f"127.0.0.1:{PORT}", "--out", "run"]
            return subprocess.run(command, cwd=folder, timeout=RUN_S, check=False).returncode
        finally:
            head.terminate()


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_run_goes_on_beneath_ray_s_tls_and_nobody_is_heard_without_a_certificate(tmp_path: Path) -> None:
    shutil.copytree(JOBS, tmp_path, dirs_exist_ok=True)
    fleet = yaml.safe_load((JOBS / "nodes.yaml").read_text())
    fleet["nodes"] = [{**node, "address": "127.0.0.1"} for node in fleet["nodes"] if node["name"] in ("a0", "b0")]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(fleet))
    made = ravnest(tmp_path, "plan", "nodes.yaml", "--min-stages", "2", "--check", "none")
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [*LOOPBACK_ONLY, sys.executable, "-m", "tests.integration.test_ray_tls", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={
            **environment(),
            **certificates(tmp_path),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
        },
        capture_output=True,
        text=True,
        timeout=START_S + RUN_S + 30,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:], (tmp_path / "ray.log").read_text()[-2000:])
    assert "2 processes, encrypted" in done.stdout + done.stderr
    assert (tmp_path / "run/weights.safetensors").exists()


if __name__ == "__main__":
    sys.exit(in_the_namespace(Path(sys.argv[1])))
