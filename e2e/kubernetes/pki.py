"""Keys, certificates and kubeconfigs of one cluster, made by openssl."""

from __future__ import annotations

import json
import pathlib
import subprocess

_DAYS = "30"


class Pki:
    """The certificates in `folder`, all signed by one authority of the cluster's own."""

    def __init__(self, folder: pathlib.Path, server: str) -> None:
        """`server` is the API server's address."""
        self.folder = folder
        self._server = server

    def make_authority(self) -> None:
        """Make the authority and the key that signs service accounts' tokens."""
        self.folder.mkdir(mode=0o700, parents=True)
        self._key("ca")
        self._openssl(
            "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=e2e", "-days", _DAYS, "-out", "ca.crt"
        )
        self._key("sa")

    def certificate(self, name: str, subject: str, names: str = "") -> None:
        """Make a certificate for both sides; `names` is its subjectAltName."""
        self._key(name)
        request = self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject)
        (self.folder / "request").write_bytes(request)
        extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
        (self.folder / "extensions").write_text(extensions + (f"subjectAltName={names}\n" if names else ""))
        self._openssl(
            *("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", _DAYS, "-out", f"{name}.crt", "-extfile", "extensions"),
        )

    def kubeconfig(self, name: str) -> pathlib.Path:
        """Write how the holder of a certificate reaches the API server."""
        path = self.folder.parent / f"{name}.conf"
        cluster = {"server": f"https://{self._server}", "certificate-authority": str(self.folder / "ca.crt")}
        user = {
            "client-certificate": str(self.folder / f"{name}.crt"),
            "client-key": str(self.folder / f"{name}.key"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(document))
        return path

    def _key(self, name: str) -> None:
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

    def _openssl(self, *words: str) -> bytes:
        done = subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openssl {words[0]}: {done.stderr.decode()}")
        return done.stdout
