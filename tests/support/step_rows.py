"""A measured training step as a row of a table, and folders of such rows."""

from weft.lab.run import validate

ROW = {
    "id": "it1", "task": "pretrain", "framework": "Megatron-LM 2022", "model": "GPT-22B", "layers": "48",
    "hidden": "6144", "ffn": "24576", "heads": "64", "kv_heads": "64", "vocab": "51200", "experts": "", "topk": "",
    "seq_len": "2048", "gpu": "A100-SXM-80GB", "gpus": "8", "network": "8 x HDR 200 Gb/s per node",
    "precision": "FP16 mixed", "tp": "8", "pp": "1", "vp": "1", "cp": "1", "ep": "1", "dp": "1", "zero_stage": "0",
    "mbs_seq": "4", "gbs_seq": "4", "recompute": "full", "step_time_s": "1.5", "peak_mem_gb": "",
    "mem_kind": "", "overlap_or_schedule": "1F1B", "notes": "",
}  # fmt: skip


def table(folder, *rows, name="iterations.csv"):
    lines = [",".join(ROW), *(",".join({**ROW, **row}.values()) for row in rows)]
    (folder / name).write_text("\n".join([*lines, ""]))
    return folder / name


def validated(folder, *rows, **options):
    table(folder, *rows)
    return validate(folder, kinds=["step", "memory"], **options)
