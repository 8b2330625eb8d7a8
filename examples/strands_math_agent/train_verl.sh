#!/usr/bin/env bash
# GRPO on GSM8K with stock verl, one node of 8 GPUs. More arguments are overrides of verl's configuration.
#
#   python prepare_gsm8k.py train > gsm8k.jsonl && python prepare_gsm8k.py test > gsm8k_test.jsonl
#   AGENT=rl_app.py ./train_verl.sh                                 # the agent in sandboxes on this machine
#   AGENT=arn:aws:bedrock-agentcore:… BUCKET=… ./train_verl.sh      # the agent on AgentCore Runtime
#   IMAGE=<account>.dkr.ecr.<region>.amazonaws.com/<repo>:<tag> BUCKET=… ./train_verl.sh    # … made from this image first
set -euo pipefail
cd "$(dirname "$0")"

if [ -n "${IMAGE:-}" ]; then
  agent=(actor_rollout_ref.rollout.agentcore.agent_name="${AGENT_NAME:-strands_math_agent}"
         actor_rollout_ref.rollout.agentcore.container_uri="$IMAGE")
else
  agent=(actor_rollout_ref.rollout.agentcore.agent_runtime_arn="${AGENT:-$PWD/rl_app.py}")
fi

exec "${PYTHON:-python}" -m verl.trainer.main_ppo \
  actor_rollout_ref.rollout.name=agentcore \
  "${agent[@]}" \
  actor_rollout_ref.rollout.agentcore.s3_bucket="${BUCKET:-$PWD/runs/verl/results}" \
  actor_rollout_ref.rollout.agentcore.output="$PWD/runs/verl" \
  actor_rollout_ref.rollout.agentcore.concurrency=128 \
  data.train_files="$PWD/gsm8k.jsonl" \
  data.val_files="$PWD/gsm8k_test.jsonl" \
  data.train_batch_size=64 \
  data.max_prompt_length=2048 \
  data.max_response_length=2048 \
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-4B}" \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.checkpoint.save_contents='[model,optimizer,extra,hf_model]' \
  actor_rollout_ref.actor.use_kl_loss=False \
  trainer.n_gpus_per_node="${GPUS:-8}" \
  trainer.total_epochs=1 \
  trainer.test_freq=20 \
  trainer.save_freq=20 \
  trainer.default_local_dir="$PWD/runs/verl/checkpoints" \
  trainer.project_name=agentcore-rl \
  trainer.experiment_name=gsm8k \
  trainer.logger='["console"]' \
  "$@"
