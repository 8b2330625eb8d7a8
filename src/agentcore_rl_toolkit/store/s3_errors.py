"""Translates errors of S3, SQS and boto3 to the store's own, by their codes and types, with hints."""

from __future__ import annotations

from ..errors import AgentCoreRLError, ConfigError, StoreError, StoreForbidden, StoreMisconfigured, StoreUnavailable

# S3 answers 409 to one of two conditional writes at the same moment; that one must try again.
_TEMPORARY = frozenset(
    {"ConditionalRequestConflict", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"}
)
_TEMPORARY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FORBIDDEN = frozenset({"403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled"})
_NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName"})
_OTHER_REGION = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_NO_QUEUE = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
_CREDENTIALS_HINT = "`aws sts get-caller-identity` shows whose credentials are used, and whether they are valid"


def error_code(error: Exception) -> str | None:
    """The code in the service's answer, None if it did not answer."""
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def store_error(error: Exception, what: str) -> AgentCoreRLError:
    """`error` as one of ours: temporary, permanent, or a setting to change."""
    if isinstance(error, ConfigError):
        return StoreMisconfigured(f"{what}: {error}")
    text = f"{what}: {error}"
    if error_code(error) is not None:
        return _from_answer(error, text)
    return _from_boto(error, text)


def _from_answer(error: Exception, text: str) -> StoreError:
    """The error for an answer of the service."""
    code = error_code(error)
    meta = error.response.get("ResponseMetadata", {})  # type: ignore[attr-defined]
    if code in _NO_BUCKET:
        return StoreMisconfigured(text, hint="create the bucket, or name another store")
    if code in _NO_QUEUE:
        return StoreMisconfigured(text, hint="create the queue, or name another with sqs_url")
    if code in _OTHER_REGION:
        region = error.response["Error"].get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region")  # type: ignore[attr-defined]
        return StoreMisconfigured(text, hint=f"set AWS_REGION to the bucket's region{f', {region}' if region else ''}")
    if code in _CREDENTIALS:
        return StoreMisconfigured(text, hint=_CREDENTIALS_HINT)
    if code in _TEMPORARY or meta.get("HTTPStatusCode") in _TEMPORARY_STATUSES:
        return StoreUnavailable(text)
    return StoreForbidden(text) if code in _FORBIDDEN else StoreError(text)


def _from_boto(error: Exception, text: str) -> StoreError:
    """The error for an exception that boto3 raised without an answer."""
    from botocore import exceptions

    connection = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, OSError)
    without = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
        exceptions.ProfileNotFound,
    )
    if isinstance(error, without):
        return StoreMisconfigured(text, hint="set AWS credentials, or name a directory as the store")
    if isinstance(error, (exceptions.NoRegionError, exceptions.InvalidRegionError)):
        return StoreMisconfigured(text, hint="set AWS_REGION")
    return StoreUnavailable(text) if isinstance(error, connection) else StoreError(text)
