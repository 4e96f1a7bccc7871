"""The client of a bucket: URIs, credentials, and what its failures mean.

The client library is obstore. A process that has used it must not fork, because its children would hang.
"""

import os
import re
import urllib.error
import urllib.request
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from obstore import store as clients
from obstore.exceptions import BaseError

from raysts.errors import InputError

SCHEMES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE (which needs pip install 'raysts[s3]')",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID",
}
"""Amazon S3 and servers with its protocol, Google Cloud Storage, Azure Blob Storage, each with its credentials."""

OPTIONS = ("account", "endpoint_override", "region", "scheme")
"""Names that may follow the ``?`` of a URI."""

ENVIRONMENT = {
    ("s3", "endpoint_override"): ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ("az", "endpoint_override"): ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    ("az", "account"): ("AZURE_STORAGE_ACCOUNT_NAME",),
}
"""Environment variables that decide where a bucket is; a URI that other nodes read has them as options."""

CONNECT_SECONDS = 3.0
RETRIES = 2
AMAZON = "https://s3.amazonaws.com"
UNKNOWN_KEYS = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthenticationFailed",
    "Invalid Access Key",    "401 Unauthorized", "latest/api/token", "169.254.", "metadata.google.internal", "redential",
)  # fmt: skip
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "404 Not Found")
FINAL = (*UNKNOWN_KEYS, *NO_BUCKET, "403 Forbidden", "Received redirect", "501 Not Implemented")
"""Answers that another attempt does not change."""

NOWHERE = ("dns error", "ConnectionRefused")
"""Signs of a wrong host name, which are final before a run has begun."""

NO_CONDITIONS = (
    "the store there ignores or refuses conditional writes (If-None-Match, If-Match), without which two drivers could "
    "overwrite each other; take a newer version of it, another store, or a folder"
)


def canonical(text: str, option: str = "--storage") -> str:
    """Return a URI as every node writes it, with the endpoint of the environment, or refuse it."""
    named = f"{option} '{_redact(text)}'"
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise InputError(f"{named}: {error}; it must be like s3://bucket/prefix") from None
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    if scheme not in SCHEMES:
        raise InputError(
            f"{named}: must be a path or begin with one of {', '.join(f'{name}://' for name in SCHEMES)}; mount any other "
            f"file system and give its path"
        )
    user, sign, host = parts.netloc.rpartition("@")
    if (sign and user != "anonymous") or ":" in host or set(options) - set(OPTIONS) or parts.fragment:
        raise InputError(
            f"{named}: holds no credentials and no options but {', '.join(OPTIONS)}; credentials come from the environment "
            f"({SCHEMES[scheme]}) or the machine's role"
        )
    for (kind, name), variables in ENVIRONMENT.items():
        for variable in variables:
            if kind == scheme and os.environ.get(variable):
                options.setdefault(name, os.environ[variable])
    if "://" in options.get("endpoint_override", ""):
        endpoint = urlsplit(options["endpoint_override"])
        if "@" in endpoint.netloc:
            raise InputError(f"{option}: its endpoint holds credentials; give scheme://host:port alone")
        options |= {"scheme": endpoint.scheme, "endpoint_override": f"{endpoint.netloc}{endpoint.path}".rstrip("/")}
    path = parts.path.strip("/")
    if not host or (path and not is_inside(path)):
        raise InputError(f"{named}: must name a bucket and, below it, a prefix without empty parts, '.' or '..'")
    if scheme == "az" and "account" not in options:
        raise InputError(f"{named}: names no storage account; add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME")
    query = f"?{urlencode(sorted(options.items()))}" if options else ""
    return f"{scheme}://{user}{sign}{host}{'/' if path else ''}{path}{query}"


def is_inside(relative: str) -> bool:
    """Return True if a name stays inside the folder that it is relative to."""
    parts = relative.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not re.search(r"[\\\x00-\x1f]", relative)


def mirror_name(uri: str) -> str:
    """Return a URI as the name of a folder, with plus signs for percent signs, which SQLite decodes."""
    return quote(uri, safe="").replace("%", "+")


@lru_cache(maxsize=16)
def client(uri: str, seconds: float) -> Any:
    """Return obstore's client for the bucket of a URI."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    scheme, pause, most = options.get("scheme", "https"), timedelta(milliseconds=50), timedelta(seconds=seconds)
    endpoint = f"{scheme}://{options['endpoint_override']}" if "endpoint_override" in options else None
    bucket, connect = parts.netloc.rpartition("@")[2], timedelta(seconds=min(seconds, CONNECT_SECONDS))
    backoff = {"init_backoff": pause, "max_backoff": 2 * pause, "base": 2}
    common: dict[str, Any] = {
        "client_options": {"timeout": most, "connect_timeout": connect, "allow_http": scheme == "http"},
        "retry_config": {"max_retries": RETRIES, "retry_timeout": most, "backoff": backoff},
        **({"skip_signature": True} if parts.username else {}),
    }
    if parts.scheme == "gs":
        return _google_client(bucket, {"base_url": endpoint} if endpoint else {}, common)
    config: Any = {"endpoint": endpoint} if endpoint else {}
    if parts.scheme == "az":
        return clients.AzureStore(bucket, config=config | {"account_name": options["account"]}, **common)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    config["region"] = region or ("us-east-1" if endpoint else _region(bucket))
    provider = None if parts.username or os.environ.get("AWS_ACCESS_KEY_ID") else _profile()
    return clients.S3Store(bucket, config=config, credential_provider=provider, **common)


def _google_client(bucket: str, config: Any, options: dict[str, Any]) -> Any:
    try:
        return clients.GCSStore(bucket, config=config, **options)
    except BaseError:  # a kind of credentials that obstore does not know, such as workload identity federation
        from google.auth.exceptions import GoogleAuthError
        from obstore.auth.google import GoogleCredentialProvider

        try:
            provider = GoogleCredentialProvider()
        except GoogleAuthError as error:
            rule = "it must name the JSON file of an identity"
            raise InputError(f"GOOGLE_APPLICATION_CREDENTIALS: {error}; {rule}") from None
        return clients.GCSStore(bucket, config=config, credential_provider=provider, **options)


def _profile() -> Any:
    """Return the credentials of AWS_PROFILE or ``~/.aws``, or None if the role of the machine has them."""
    files = ("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    paths = [Path(os.environ.get(name) or Path.home() / ".aws" / file) for name, file in files]
    if not os.environ.get("AWS_PROFILE") and not any(path.is_file() for path in paths):
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:  # there are none in it
        return None
    except BotoCoreError as error:
        raise InputError(f"AWS_PROFILE '{os.environ.get('AWS_PROFILE', '')}': {error}; check ~/.aws/config") from None


def _region(bucket: str) -> str:
    """Return the region of a bucket, which S3 tells without credentials."""
    request = urllib.request.Request(f"{AMAZON}/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as refusal:
        headers = refusal.headers
    except OSError:  # the first request to the bucket says what is wrong
        headers = {}
    return headers.get("x-amz-bucket-region") or "us-east-1"


def remedy(error: str, uri: str) -> str:
    """Return the cause of a failure and the remedy, by the words of the client library."""
    if "501 Not Implemented" in error:
        return NO_CONDITIONS
    if any(answer in error for answer in UNKNOWN_KEYS):
        return f"there are no valid credentials; check {SCHEMES[urlsplit(uri).scheme]} or the machine's role"
    if "403 Forbidden" in error:
        return "access is denied; credentials with the right to list, read, write and delete objects there are needed"
    bucket = urlsplit(uri).netloc.rpartition("@")[2]
    if any(answer in error for answer in NO_BUCKET):
        return f"there is no bucket '{bucket}' that these credentials can see; make it first, or check the name"
    if "Received redirect" in error:
        return "the bucket is in another region; set AWS_REGION, or add ?region=NAME"
    endpoint = dict(parse_qsl(urlsplit(uri).query)).get("endpoint_override")
    return f"the store{f' at {endpoint}' if endpoint else ''} does not answer; check the network and the endpoint"


def short(text: str) -> str:
    """Return the answer in a failure without the address, which may hold a signature."""
    code = re.search(r"<Code>(\w+)</Code>", text)
    answer = text.splitlines()[0].partition("<")[0].rpartition(" - ")[2][:300].strip(" :")
    return f"{answer}: {code[1]}" if code else answer


def _redact(text: str) -> str:
    """Return a URI without user, password and the values of options."""
    text = re.sub(r"//.*@", "//...@", text)  # a secret key may hold slashes
    return re.sub(r"=[^&]*", "=...", text)
