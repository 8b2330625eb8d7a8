"""Calls to AWS, one at a time: reads, and changes that a dry run prints instead of making.

The only file of the deployment that imports boto3. A refusal becomes an error that names the missing permission.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import AwsRefused

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "403", "AuthorizationError", "UnauthorizedOperation"})
_BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
# Where the permission isn't named like the operation.
_ACTIONS = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:HeadObject": "s3:GetObject",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
}
CREDENTIALS_HINT = "run `aws configure` or `aws sso login`, or set AWS_PROFILE"


class Aws:
    """One account and region. With `dry_run`, changes are printed and answered with nothing."""

    def __init__(
        self, region: str | None = None, *, dry_run: bool = False, show: Callable[[str], object] | None = None
    ) -> None:
        self.dry_run = dry_run
        self.offline = False
        """Nothing is looked up, as if nothing existed: a dry run without credentials."""
        self._region = region
        self._show = show
        self._session: Any = None
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str | None:
        """The region that was given, or that boto3 finds by itself."""
        if self._region is None:
            import boto3

            self._region = boto3.session.Session().region_name
        return self._region

    def identity(self) -> dict[str, Any]:
        """Whose credentials these are."""
        return self._call("sts", "get_caller_identity", {})

    def read(self, service: str, operation: str, *, missing: tuple[str, ...] = (), **params: Any) -> Any:
        """An answer; None if AWS says one of `missing`."""
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
            self.would(service, operation, params)
            return {}
        return self._call(service, operation, params)

    def would(self, service: str, operation: str, params: Mapping[str, Any]) -> None:
        """Print a call that a dry run doesn't make; policies are shown as what they say."""
        shown = {name: _shown(value) for name, value in params.items()}
        self.note(f"{service} {action_name(operation)} {json.dumps(shown, indent=2, ensure_ascii=False)}")

    def note(self, line: str) -> None:
        if self._show is not None:
            self._show(line)

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def _call(self, service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
        from botocore.parsers import ResponseParserError

        try:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**params)
        except ClientError as error:
            raise _refused(error, service, operation, params) from error
        except NoCredentialsError as error:
            raise AwsRefused("there are no AWS credentials", "NoCredentials", hint=CREDENTIALS_HINT) from error
        except NoRegionError as error:
            raise AwsRefused("there is no region", "NoRegion", hint="set AWS_REGION, or give --region") from error
        except (BotoCoreError, ResponseParserError) as error:
            hint = "check the region and the network"
            raise AwsRefused(f"{service} could not be used: {_one_line(error)}", hint=hint) from error
        return answer

    def _client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config

        if service not in self._clients:
            config = Config(retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=10)
            if self._session is None:  # boto3's own keeps the credentials it once found
                self._session = boto3.session.Session()
            self._clients[service] = self._session.client(service, region_name=self.region, config=config)
        return self._clients[service]


def action_name(operation: str) -> str:
    """An operation as AWS writes it.

    >>> action_name("put_role_policy"), action_name("list_objects_v2")
    ('PutRolePolicy', 'ListObjectsV2')
    """
    return "".join(part[:1].upper() + part[1:] for part in operation.split("_"))


def permission(service: str, operation: str) -> str:
    """The permission that an operation needs.

    >>> permission("s3", "head_bucket"), permission("iam", "create_role")
    ('s3:ListBucket', 'iam:CreateRole')
    """
    action = f"{service}:{action_name(operation)}"
    return _ACTIONS.get(action, action)


def _refused(error: Any, service: str, operation: str, params: Mapping[str, Any]) -> AwsRefused:
    code = str(error.response["Error"].get("Code", ""))
    message = _one_line(error.response["Error"].get("Message") or error)
    hint = None
    if code in _DENIED:
        hint = f"allow your credentials {permission(service, operation)}{_on(params)}"
    elif code in _BAD_CREDENTIALS:
        hint = f"your AWS credentials are invalid or have expired: {CREDENTIALS_HINT}"
    elif error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        hint = "that is AWS's own trouble: run it again"
    elif code == "BucketAlreadyExists":
        hint = "somebody else has a bucket of that name: choose another with --bucket"
    elif code in ("LimitExceeded", "LimitExceededException", "TooManyBuckets"):
        hint = "remove what you no longer use, or ask AWS for a higher quota"
    return AwsRefused(f"{service} {action_name(operation)}: {message} ({code})", code, hint=hint)


def _one_line(text: object) -> str:
    """What services and proxies say may be a whole page."""
    return " ".join(str(text).split())[:300]


def _on(params: Mapping[str, Any]) -> str:
    """What a call was about: its first plain parameter, or the first of a list, which names the resource."""
    values = [value[0] if isinstance(value, list) and value else value for value in params.values()]
    names = [value for value in values if isinstance(value, str) and len(value) < 200]
    return f" on {names[0]}" if names else ""


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    return value
