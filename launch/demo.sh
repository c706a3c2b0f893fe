#!/usr/bin/env bash
# Pretrains a small model on the State of the Union addresses, evaluates it, lets it write or fill blanks, and draws a
# report.
#
#   bash launch/demo.sh [FAMILY] [SEED]
#
# FAMILY: gpt2, bert or t5. Creates .venv if it is missing. Run the script again to resume.
set -euo pipefail
cd "$(dirname "$0")/.."
family=${1:-gpt2} seed=${2:-0}
workdir=runs/demo-$family-$seed
config="--config=configs/demo.py:$family --config.train.seed=$seed"
case "$family" in
  gpt2) sampling="--max_new_tokens=60 --temperature=0.8 --top_k=40" prompts=("The state of the Union is") ;;
  bert)
    sampling=""
    prompts=("The United [MASK] of America" "I recommend to the [MASK] of Congress" "the people [MASK] the United States")
    ;;
  t5)
    sampling="--max_new_tokens=24"
    prompts=("The <extra_id_0> States of America" "I recommend to the <extra_id_0> of Congress <extra_id_1> the people")
    ;;
  *) echo "error: there is no demo '$family': there are: gpt2, bert, t5" >&2; exit 2 ;;
esac

source launch/environment.sh base
say() { printf '\n== %s\n' "$*"; }

say "1/5 prepare: vocabulary and cache"
python -m plm_jax prepare $config
say "2/5 pretrain: $workdir"
python -m plm_jax pretrain $config --workdir="$workdir"
say "3/5 evaluate: held-out speeches"
python -m plm_jax evaluate --checkpoint="$workdir" --output="$workdir/evaluation.json"
python - "$workdir/evaluation.json" <<'PYTHON'
import json, sys
for task, found in json.load(open(sys.argv[1])).items():
    gain = found["unigram_loss"] - found["real_loss"]
    print(f"{task}: {found['real_loss']:.3f} nats per token of text; add-one unigram {found['unigram_loss']:.3f}: {gain:.3f} better")
PYTHON
say "4/5 generate"
python -m plm_jax generate --checkpoint="$workdir" $sampling "${prompts[@]/#/--prompt=}"
say "5/5 report"
python -m plm_jax report --workdirs="$workdir" --output="$workdir/report.html"
