#!/usr/bin/env bash
# Builds an agent's image for AgentCore Runtime (linux/arm64) and pushes it to ECR, for those who prefer a script:
#
#   bash scripts/build_docker_image_and_push_to_ecr.sh --dockerfile=my_agent/Dockerfile --tag=dev [--context=my_agent]
#
# AWS_REGION, AWS_ACCOUNT and ECR_REPO_NAME come from the environment, or from .env in the working directory. The context
# is the Dockerfile's folder if not given, or the agent's for one below .bedrock_agentcore/, where the AgentCore CLI
# writes them. ENGINE=podman builds with Podman. The image's URI goes to stdout.
set -euo pipefail

fail() {
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2
  exit 1
}

dockerfile="" tag="" context=""
for argument in "$@"; do
  case "$argument" in
    --dockerfile=*) dockerfile="${argument#*=}" ;;
    --tag=*) tag="${argument#*=}" ;;
    --context=*) context="${argument#*=}" ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown argument $argument" "there is --dockerfile=FILE, --tag=TAG and --context=FOLDER" ;;
  esac
done

# What is set already wins over .env.
if [ -f .env ]; then
  while IFS='=' read -r name value; do
    name="${name#export }"
    case "$name" in
      AWS_REGION | AWS_ACCOUNT | ECR_REPO_NAME)
        value="${value%%[[:space:]]#*}" value="${value%\"}" value="${value#\"}" value="${value%\'}" value="${value#\'}"
        [ -n "${!name:-}" ] || export "$name=$value" ;;
    esac
  done < <(tr -d '\r' < .env; echo)
fi

[ -n "$dockerfile" ] || fail "--dockerfile is missing" "name the agent's Dockerfile"
[ -f "$dockerfile" ] || fail "there is no $dockerfile"
[ -n "$tag" ] || fail "--tag is missing" "such as --tag=dev"
for name in AWS_REGION AWS_ACCOUNT ECR_REPO_NAME; do
  [ -n "${!name:-}" ] || fail "$name is not set" "cp .env.example .env, and fill it in"
done
[[ "$AWS_ACCOUNT" =~ ^[0-9]{12}$ ]] || fail "AWS_ACCOUNT $AWS_ACCOUNT is not an account" "it has 12 digits"

if [ -z "$context" ]; then
  case "./$dockerfile" in
    */.bedrock_agentcore/*) context="./$dockerfile" context="${context%%/.bedrock_agentcore/*}" ;;
    *) context="$(dirname "$dockerfile")" ;;
  esac
fi
engine="${ENGINE:-docker}"
suffix=""
case "$AWS_REGION" in cn-*) suffix=".cn" ;; esac
registry="$AWS_ACCOUNT.dkr.ecr.$AWS_REGION.amazonaws.com$suffix"
image="$registry/$ECR_REPO_NAME:$tag"
command -v "$engine" > /dev/null || fail "$engine is not installed" "install it, or use: agentcore-rl build --builder codebuild"
command -v aws > /dev/null || fail "the AWS CLI is not installed" "install it, or use: agentcore-rl deploy"

account="$(aws sts get-caller-identity --query Account --output text)" ||
  fail "there are no valid AWS credentials" "run \`aws configure\` or \`aws sso login\`, or set AWS_PROFILE"
[ "$account" = "$AWS_ACCOUNT" ] || fail "the credentials are for account $account, not $AWS_ACCOUNT" "set AWS_PROFILE"

aws ecr describe-repositories --region "$AWS_REGION" --repository-names "$ECR_REPO_NAME" > /dev/null 2>&1 ||
  aws ecr create-repository --region "$AWS_REGION" --repository-name "$ECR_REPO_NAME" > /dev/null ||
  fail "the repository $ECR_REPO_NAME can't be made" "allow your credentials ecr:CreateRepository"

export BUILDX_NO_DEFAULT_ATTESTATIONS=1 # the tag is the image itself, not a list with its provenance
"$engine" build --platform linux/arm64 --tag "$image" --file "$dockerfile" "$context" >&2
aws ecr get-login-password --region "$AWS_REGION" | "$engine" login --username AWS --password-stdin "$registry" >&2
"$engine" push "$image" >&2
echo "$image"
