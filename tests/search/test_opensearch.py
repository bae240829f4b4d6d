"""Connections: how they are opened from settings, who asks, and that what is sent is signed as botocore signs."""

import base64
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from streamfold.derivations.search.opensearch import open_search, service_of
from streamfold.derivations.search.sink import Action
from streamfold.errors import EngineError, SettingsError, public
from streamfold.settings import Settings
from tests.search.stub import serving

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI", "session/token="
ACTIONS = [Action("products", "grün", 7, '{"title":"茶 \\n","price":1.10}'.encode())]
DOMAIN = "https://search-shop-x1.eu-central-1.es.amazonaws.com"
COLLECTION = "https://x1.us-west-2.aoss.amazonaws.com"


@pytest.fixture
def role(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("authority"), "127.0.0.1")


def asked(stub, **settings):
    """The request that a bulk of one document is."""
    sink = open_search(Settings(search=stub.url, **settings))
    try:
        assert [answer.status for answer in sink.bulk(ACTIONS)] == [201]
    finally:
        sink.close()
    (request,) = stub.requests
    return request


def authorization(stub, request, service, token=TOKEN):
    """The header that botocore makes for a request that was sent."""
    names = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: request.headers[name] for name in names}
    url = f"http://{request.headers['host']}{request.path}"
    again = AWSRequest(request.method, url, headers, request.body)
    again.context["timestamp"] = request.headers["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY, SECRET, token), service, "eu-central-1")
    signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
    scope = f"{KEY}/{request.headers['x-amz-date'][:8]}/eu-central-1/{service}/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(names)}, Signature={signature}"


class TestSignature:
    """Requests to domains and collections carry the role of the function."""

    @pytest.mark.parametrize("service", ["es", "aoss"])
    def test_a_bulk_is_signed_as_botocore_signs_it(self, stub, role, service):
        request = asked(stub, search_service=service)
        assert request.headers["authorization"] == authorization(stub, request, service)
        assert {"host", "x-amz-date", "x-amz-security-token"} <= set(
            request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        )
        assert request.headers["x-amz-security-token"] == TOKEN
        assert request.headers["x-amz-content-sha256"] == sha256(request.body).hexdigest()

    def test_the_path_of_an_index_is_signed_as_botocore_signs_it(self, stub, role):
        stub.answer(200, b'{"docs":[]}')
        sink = open_search(Settings(search=f"{stub.url}/behind/proxy", search_service="es"))
        sink.read("späte products", ["1"])
        sink.close()
        (request,) = stub.requests
        assert request.path.startswith("/behind/proxy/sp%C3%A4te%20products/_mget")
        assert request.headers["authorization"] == authorization(stub, request, "es")

    @pytest.mark.parametrize(
        ("url", "service"),
        [(DOMAIN, "es"), (COLLECTION, "aoss"), ("https://search.example", "none"), (f"{DOMAIN}.example", "none")],
    )
    def test_the_host_says_what_is_signed_for(self, url, service):
        assert service_of(Settings(search=url)) == service
        assert service_of(Settings(search=url, search_service="none")) == "none"
        assert service_of(Settings(search=url, search_user="fold", search_password="hush")) == "none"

    @pytest.mark.parametrize(
        ("host", "service"),
        [
            ("vpc-x.us-gov-west-1.es.amazonaws.com", "es"),
            ("search-x.cn-north-1.es.amazonaws.com.cn", "es"),
            ("search-x.eusc-de-east-1.es.amazonaws.eu", "es"),
            ("x.us-isob-east-1.es.sc2s.sgov.gov", "es"),
            ("x.us-east-1.aoss-fips.amazonaws.com", "aoss"),
            ("search-x.aos.eu-west-1.on.aws", "es"),
            ("x.aoss.us-east-1.on.aws", "aoss"),
            ("search-x.aos.cn-north-1.on.amazonwebservices.com.cn", "es"),
            ("x.aoss.eusc-de-east-1.on.amazonwebservices.eu", "aoss"),
            ("es.amazonaws.com", "none"),
            ("x.eu-west-1.es.amazonaws.com.evil.example", "none"),
            ("x.eu-west-1.es.amazonaws.example", "none"),
            ("x.aos.eu-west-1.on.aws.example", "none"),
            ("x.aos.eu-west-1.off.aws", "none"),
        ],
    )
    def test_hosts_of_all_partitions_are_signed_for_and_no_others(self, host, service):
        assert service_of(Settings(search=f"https://{host}")) == service

    @pytest.mark.parametrize(
        ("url", "region"),
        [
            (DOMAIN, "eu-central-1"),
            (COLLECTION, "us-west-2"),
            ("https://search-x.aos.eu-west-1.on.aws", "eu-west-1"),
            ("https://search-x.cn-north-1.es.amazonaws.com.cn", "cn-north-1"),
        ],
    )
    def test_the_host_says_the_region(self, role, monkeypatch, url, region):
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        sink = open_search(Settings(search=url))
        (connection,) = sink.calls.transport.connection_pool.connections
        assert connection.http_auth.signer.region == region
        sink.close()

    def test_a_role_is_needed(self, monkeypatch):
        with pytest.raises(SettingsError, match="are signed for es, and there are no AWS credentials: expected those"):
            open_search(Settings(search=DOMAIN))

    def test_a_region_is_needed(self, role, monkeypatch):
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        with pytest.raises(SettingsError, match=r"The region of \S+ is not known: expected AWS_DEFAULT_REGION"):
            open_search(Settings(search="https://search.example", search_service="es"))


class TestUser:
    """Basic authentication, for servers with users of their own."""

    def test_a_user_is_told_with_every_request(self, stub):
        request = asked(stub, search_user="fold", search_password="hush: ü")
        expected = base64.b64encode("fold:hush: ü".encode()).decode()
        assert request.headers["authorization"] == f"Basic {expected}"

    def test_without_one_nobody_is_told(self, stub):
        assert "authorization" not in asked(stub).headers

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"search_user": "fold"}, "STREAMFOLD_SEARCH_PASSWORD is missing: expected a user and a password"),
            ({"search_password": "hush"}, "STREAMFOLD_SEARCH_USER is missing: expected a user and a password"),
            (
                {"search_user": "fold", "search_password": "hush", "search_service": "es"},
                "STREAMFOLD_SEARCH_USER is set, and STREAMFOLD_SEARCH_SERVICE=es signs the requests: expected one",
            ),
        ],
    )
    def test_half_a_user_is_refused(self, settings, message):
        with pytest.raises(SettingsError, match=message) as raised:
            open_search(Settings(search="https://search.example", **settings))
        assert "hush" not in str(raised.value)


class TestRequest:
    """What is sent."""

    def test_the_body_is_sent_as_it_was_encoded(self, stub):
        request = asked(stub)
        assert (request.method, request.path.partition("?")[0]) == ("POST", "/_bulk")
        assert request.headers["content-type"] == "application/x-ndjson"
        assert request.body == (
            b'{"index":{"_index":"products","_id":"gr\\u00fcn","require_alias":true,'
            b'"version":7,"version_type":"external"}}\n' + ACTIONS[0].body + b"\n"
        )

    def test_one_connection_is_used_again(self, stub):
        sink = open_search(Settings(search=stub.url))
        for _ in range(3):
            sink.bulk(ACTIONS)
        (connection,) = sink.calls.transport.connection_pool.connections
        assert connection.pool.num_connections <= 3  # the stub speaks HTTP/1.0
        sink.close()


class TestEncryption:
    """Certificates are always checked; one's own authority is a file."""

    def test_an_own_authority_is_named_by_a_file(self, authority):
        with serving(authority) as stub:
            assert asked(stub, search_ca=str(authority)).method == "POST"

    def test_an_unknown_authority_is_refused_for_good(self, authority):
        with serving(authority) as stub:
            sink = open_search(Settings(search=stub.url))
            with pytest.raises(EngineError, match=r"is not valid .*STREAMFOLD_SEARCH_CA=FILE names") as raised:
                sink.bulk(ACTIONS)
            assert type(raised.value) is EngineError
            sink.close()
            assert stub.requests == []

    def test_the_certificate_of_another_host_is_refused(self, tmp_path):
        other = certificate(tmp_path, "127.0.0.2")
        with serving(other) as stub:
            sink = open_search(Settings(search=stub.url, search_ca=str(other)))
            with pytest.raises(EngineError, match=r"The certificate of \S+ is not valid"):
                sink.bulk(ACTIONS)
            sink.close()

    def test_a_file_without_certificates_is_refused(self, tmp_path):
        (tmp_path / "empty.pem").write_text("nothing")
        for name, message in {"missing.pem": "is no file: expected", "empty.pem": "holds no certificate"}.items():
            with pytest.raises(SettingsError, match=message):
                open_search(Settings(search="https://search.example", search_ca=str(tmp_path / name)))


class TestPackage:
    """opensearch-py is an extra, imported where a connection is opened."""

    def test_it_is_imported_by_no_module(self):
        program = (
            "import sys; sys.modules['opensearchpy'] = None\n"
            "from streamfold.derivations.search import documents, indexes, local, opensearch, sink"
        )
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_what_is_missing_is_told(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "opensearchpy", None)
        with pytest.raises(SettingsError, match=r"opensearchpy is not installed: .*install '\.\[search\]'"):
            open_search(Settings(search="https://search.example"))

    def test_a_server_is_needed(self):
        with pytest.raises(SettingsError, match="No search server is set: expected STREAMFOLD_SEARCH=https://HOST"):
            open_search(Settings())


def test_a_message_for_logs_has_no_reason_of_the_server(stub):
    stub.answer(403, b'{"error":{"type":"security_exception","reason":"no permissions for secret"},"status":403}')
    sink = open_search(Settings(search=stub.url))
    with pytest.raises(EngineError) as raised:
        sink.bulk(ACTIONS)
    sink.close()
    assert "secret" in str(raised.value)
    assert "secret" not in public(raised.value.marked)
    assert "security_exception" in public(raised.value.marked)


def certificate(folder, address):
    """A file with a certificate for an address that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, pkcs8, plain))
    return file
