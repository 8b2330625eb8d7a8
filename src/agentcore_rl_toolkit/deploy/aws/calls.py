"""Calls to AWS: reads, and changes, which a dry run prints instead of making.

The only module of `deploy/` that imports boto3. A refused call raises `AwsRefused` with AWS's error code and a hint
that names the missing permission.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from ...common.env_file import aws_region
from ...errors import AwsRefused

CREDENTIALS_HINT = "run `aws configure` or `aws sso login`, or set AWS_PROFILE"
_DENIED = {"AccessDenied", "AccessDeniedException", "403", "AuthorizationError", "UnauthorizedOperation"}
_BAD_CREDENTIALS = {
    *("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException"),
}
_QUOTA = {"LimitExceeded", "LimitExceededException", "ServiceQuotaExceededException", "TooManyBuckets"}
_PREFIXES = {"bedrock-agentcore-control": "bedrock-agentcore"}
"""Services whose permissions begin with another name."""
_PERMISSIONS = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
}
"""Operations whose permission has another name."""


class Aws:
    """One account and region. With `dry_run`, `change` prints the call and returns an empty answer."""

    def __init__(
        self, region: str | None = None, *, dry_run: bool = False, say: Callable[[str], object] = lambda line: None
    ) -> None:
        self.dry_run, self.say = dry_run, say
        self.offline = False
        """Whether `read` answers None to everything: a dry run without credentials."""
        self._region = region
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str | None:
        """The given region, else the one in AWS's variables, or in boto3's configuration."""
        return self._region or aws_region() or self._session.region_name

    def account(self) -> str:
        return str(self.read("sts", "get_caller_identity")["Account"])

    def read(self, service: str, operation: str, *, missing: tuple[str, ...] = (), **params: Any) -> Any:
        """The answer, or None if AWS refuses with one of the error codes in `missing`."""
        if self.offline:
            return None
        try:
            return self._call(service, operation, params)
        except AwsRefused as refused:
            if refused.code in missing:
                return None
            raise

    def change(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """Make a change, or print it."""
        if self.dry_run:
            self.print_call(service, operation, params)
            return {}
        return self._call(service, operation, params)

    def print_call(self, service: str, operation: str, params: Mapping[str, Any]) -> None:
        """Print a call; a policy document is shown as JSON, not as a string of JSON."""
        shown = {name: _readable(value) for name, value in params.items()}
        self.say(f"{service} {_action(operation)} {json.dumps(shown, indent=2, ensure_ascii=False)}")

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    @cached_property
    def _session(self) -> Any:
        import boto3

        return boto3.session.Session()  # boto3's default session would keep the credentials it found first

    def _call(self, service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
        from botocore.parsers import ResponseParserError

        try:
            answer: dict[str, Any] = getattr(self.client(service), operation)(**params)
        except ClientError as error:
            raise _refused(error, service, operation, params) from error
        except NoCredentialsError as error:
            raise AwsRefused("no AWS credentials were found", "NoCredentials", hint=CREDENTIALS_HINT) from error
        except NoRegionError as error:
            raise AwsRefused("no AWS region is set", "NoRegion", hint="set AWS_REGION, or give --region") from error
        except (BotoCoreError, ResponseParserError) as error:
            hint = "check the region and the network"
            raise AwsRefused(f"the call to {service} failed: {_one_line(error)}", hint=hint) from error
        return answer

    def client(self, service: str) -> Any:
        """boto3's client of a service."""
        from botocore.config import Config

        if service not in self._clients:
            config = Config(retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=10)
            self._clients[service] = self._session.client(service, region_name=self.region, config=config)
        return self._clients[service]


def _refused(error: Any, service: str, operation: str, params: Mapping[str, Any]) -> AwsRefused:
    code = str(error.response["Error"].get("Code", ""))
    message = _one_line(error.response["Error"].get("Message") or error)
    hint = None
    if code in _DENIED:
        action = f"{_PREFIXES.get(service, service)}:{_action(operation)}"
        hint = f"allow your credentials {_PERMISSIONS.get(action, action)}{_resource(params)}"
        if role := params.get("roleArn"):
            hint += f", and iam:PassRole on {role}"
    elif code in _BAD_CREDENTIALS:
        hint = f"your AWS credentials are invalid or have expired: {CREDENTIALS_HINT}"
    elif error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        hint = "AWS failed internally: run the command again"
    elif code == "BucketAlreadyExists":
        hint = "another account owns a bucket of that name: choose another with --bucket"
    elif code in _QUOTA:
        hint = "delete what you no longer use, or ask AWS for a higher quota"
    return AwsRefused(f"{service} {_action(operation)}: {message} ({code})", code, hint=hint)


def _action(operation: str) -> str:
    """boto3's name of an operation as AWS writes it.

    >>> _action("put_role_policy"), _action("list_objects_v2")
    ('PutRolePolicy', 'ListObjectsV2')
    """
    return "".join(part[:1].upper() + part[1:] for part in operation.split("_"))


def _one_line(text: object) -> str:
    """A service's or proxy's message, which may be a whole page, on one line."""
    return " ".join(str(text).split())[:300]


def _resource(params: Mapping[str, Any]) -> str:
    """The resource of a call: its first short string, or the first string of its first list."""
    values = [value[0] if isinstance(value, list) and value else value for value in params.values()]
    names = [value for value in values if isinstance(value, str) and len(value) < 200]
    return f" on {names[0]}" if names else ""


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
