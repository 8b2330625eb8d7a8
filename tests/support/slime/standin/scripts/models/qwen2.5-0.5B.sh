LAYERS=24
MODEL_ARGS=(
   --swiglu
   --num-layers ${LAYERS}
   --hidden-size 896
   --normalization "RMSNorm"
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --moe-layer-freq "[1, 1]"
)
