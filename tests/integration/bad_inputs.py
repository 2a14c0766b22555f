"""Input that cannot be meant, declared: command lines, files and calls, each of which must end in one sentence.

`COMMANDS` holds the beginnings of command lines and, a line each, their ends; "(nothing)" is the beginning alone. They
run in a folder that holds `FILES`, a folder `folder.toml`, pipes that nobody writes (`fifo.*`) and files of 1 GiB
(`huge.*`).
"""

import math
import os

import numpy as np

import weft

FILES: dict[str, str | bytes] = {
    "empty.toml": "",
    "empty.graph.jsonl": "",
    "deep.toml": "a = " + "[" * 5000 + "]" * 5000,
    "bigint.toml": "a = " + "9" * 5000,
    "bin.toml": bytes(range(256)),
    "list.toml": "[[gpu]]\na=1\n",
    "nan.toml": 'extends="h100-sxm"\n[memory]\nbandwidth = nan\n',
    "inf.toml": 'extends="h100-sxm"\n[memory]\nbandwidth = inf\n',
    "date.toml": 'extends="h100-sxm"\n[memory]\nbandwidth = 2020-01-01\n',
    "dict.toml": 'extends="h100-sxm"\n[memory.bandwidth]\nvalue={a=1}\nkind="published"\nsource="x"\n',
    "self.toml": 'extends="./self.toml"\n',
    "titleint.toml": 'extends="h100-sxm"\ntitle=3\n',
    "units0.toml": 'extends="h100-sxm"\n[compute]\ncompute_units = 0\n',
    "unitsneg.toml": 'extends="h100-sxm"\n[compute]\ncompute_units = -5\n',
    "unitsmany.toml": 'extends="h100-sxm"\n[compute]\ncompute_units = 1000000\n',
    "m.toml": 'title="x"\nhidden=7\nlayers=1\nsequence_length=3\nbatch=1\ntensor_parallel=[2]\n',
    "mheads.toml": 'title="x"\nhidden=1024\nheads=7\nlayers=1\nsequence_length=128\nbatch=1\ntensor_parallel=[2]\n',
    "mhuge.toml": 'title="x"\nhidden=2147483648\nlayers=1\nsequence_length=2147483648\nbatch=1\ntensor_parallel=[2]\n',
    "mzero.toml": 'title="x"\nhidden=0\nlayers=1\nsequence_length=128\nbatch=1\ntensor_parallel=[2]\n',
    "mtp.toml": 'title="x"\nhidden=1024\nlayers=1\nsequence_length=128\nbatch=1\ntensor_parallel=[0]\n',
    "mtps.toml": 'title="x"\nhidden=1024\nlayers=1\nsequence_length=128\nbatch=1\ntensor_parallel="8"\n',
    "empty.csv": "",
    "head.csv": "m,n,k\n",
    "nul.csv": b"m,n,k\n1,2\x00,3\n",
    "long.csv": "m,n,k\n" + "1" * 200000 + ",2,3\n",
    "quote.csv": 'm,n,k\n"1,2,3\n',
    "neg.csv": "m,n,k\n-1,2,3\n",
    "nan.csv": "m,n,k\nnan,2,3\n",
    "big.csv": "m,n,k\n2147483648,2,3\n",
    "latin.csv": "m,n,k\n1,2,3,é\n".encode("latin-1"),
    "sup.csv": "m,n,k\n²,2,3\n",
    "arab.csv": "m,n,k\n٣,2,3\n",
    "dt.csv": "m,n,k,dtype\n1,2,3,fp99\n",
    "dup.csv": "m,n,k,m\n1,2,3,4\n",
    "short.csv": "m,n,k\n1,2\n",
    "extra.csv": "m,n,k\n1,2,3,4,5\n",
    "bin.csv": os.urandom(1000),
    "tune.csv": "m,n,k,dtype,count\n512,512,512,fp16,4\n",
    "tunebig.csv": "m,n,k,dtype,count\n2147483647,2147483647,2147483647,fp16,4\n",
    "tune31.csv": "m,n,k,dtype,count\n2147483648,512,512,fp16,4\n",
    "tune0.csv": "m,n,k,dtype,count\n512,512,512,fp16,0\n",
    "tunenan.csv": "m,n,k,dtype,count\nnan,512,512,fp16,4\n",
    "tune1.csv": "m,n,k,dtype,count\n512,512,512,fp16,1\n",
    "tunelong.csv": "m,n,k,dtype,count\n" + "1" * 200000 + ",512,512,fp16,1\n",
    "suite.toml": '[[scenario]]\nlayer="x"\ngemm=[0,1,2]\ncollective="all_gather"\nsize="1 MiB"\n',
    "suite2.toml": '[[scenario]]\nlayer="x"\ngemm=[512,512]\ncollective="all_gather"\nsize="1 MiB"\n',
    "suite3.toml": '[[scenario]]\nlayer="x"\ngemm=[512,512,512]\ncollective="all_gather"\nsize=1\n',
    "suite4.toml": "scenario=3\n",
    "suite5.toml": "gemm=3\n",
    "suite6.toml": '[[gemm]]\nnetwork="x"\nlayer="y"\ngemm=[1,2,2147483648]\nqueued=[0]\n',
    "suite7.toml": '[[gemm]]\nnetwork="x"\nlayer="y"\ngemm=[1,2,3]\nqueued=[1e400]\n',
    "suite8.toml": 'mixed="x"\n',
    "suite9.toml": 'title=3\n[[gemm]]\nnetwork="x"\nlayer="y"\ngemm=[64,64,64]\nqueued=[2]\n',
    "listed.json": '{"model_type": ["llama"]}',
    "surrogate.json": '{"model_type": "\\ud83d"}',
    "trace.json": '{"traceEvents": [{"ph": "X"}]}',
    "nofile": "x",
    "measured.csv": "gpu,dtype,m,n,k,time_us\nh100-sxm,bf16,8192,8192,8192,1500\n",
}
"""Files that are no GPU, no model, no list, or hold what cannot be."""

COMMANDS = {
    "rewrite llama-3-8b --system 8xh100 --sequence 64": r"""
--rules nope
--rules ,
--tp 3
--tp 16
--alpha 0
--alpha nan
--most 0
--launch 5
--launch -1us
--dtype fp7
--sequence 0
""",
    "rewrite": r"""
empty.graph.jsonl --system h100-sxm
bin.toml --system h100-sxm
nope.graph.jsonl.gz --system h100-sxm
mixtral-8x7b --system h100-sxm
llama-3-8b
""",
    "simulate sublayer --gemm 512,512,512 --tp 2": r"""
--overlap ''
--overlap nope
--overlap t3,t3-mca
--overlap all
--compare ''
--compare ,
--compare t3,nope
--compare streams
--compare dma
--arbiter nope
--arbiter ''
--mode maybe
--clock 3GHz
--clock boost
--request-bytes 0
--request-bytes -64
--request-bytes 63
--request-bytes 65
--request-bytes 9999999999999999999999
--request-bytes 1073741824
--request-bytes nan
--ranks 4
--loops 4
--first gemm
--split 4-4
--copies prelaunched
--gpu ''
--gpu nope
--gpu dgx-h100
--gpu 8xh100-sxm
--gpu nope.toml
--gpu empty.toml
--gpu deep.toml
--gpu bigint.toml
--gpu bin.toml
--gpu list.toml
--gpu nan.toml
--gpu inf.toml
--gpu date.toml
--gpu dict.toml
--gpu self.toml
--gpu ./self.toml
--gpu titleint.toml
--gpu units0.toml
--gpu unitsneg.toml
--gpu unitsmany.toml
--gpu folder.toml
--gpu fifo.toml
--gpu /dev/zero
--gpu huge.toml
--gpu a.csv
--set x
--set =
--set ''
--set memory=3
--set memory.bandwidth=
--set memory.bandwidth=3
--set memory.bandwidth='nan GB/s'
--set memory.bandwidth='inf GB/s'
--set memory.bandwidth='1e400 GB/s'
--set memory.bandwidth='1e999 GB/s'
--set memory.bandwidth='-1 GB/s'
--set memory.bandwidth='0 GB/s'
--set memory.bandwidth='1e-300 GB/s'
--set memory.bandwidth='1 GB'
--set compute.compute_units=0
--set compute.compute_units=1.5
--set compute.compute_units=1000000
--set memory.channels=0
--set memory.channels=1000000
--set memory.interleave='3 B'
--set cache.capacity='1 B'
--set cache.capacity='1 PiB'
--set cache.ways=1000000
--set memory.capacity='1 B'
--set memory.banks=3
--set memory.row_bytes='1 B'
--set link.bandwidth='1 B/s'
--set provenance=3
--set __class__=3
--set memory.bandwith='1 TB/s'
--set memory.bandwidth='1 TB/s' --set memory.bandwidth='2 TB/s'
--json ''
--json .
--json /dev/null/x
--json nofile/x
--out ''
--out nofile
--out /dev/null
--trace ''
--trace -
--overlap ideal-overlap --trace x.json
--json a --trace a
--json o/report.html --out o
--set cache.capacity='1 TiB'
""",
    "simulate corun --gemm 8192,8192,8192 --corun all_gather:1MiB": r"""
--tp 8
--model t-nlg
--sublayer fc2
--compare t3
--ranks 0
--ranks 1
--ranks -8
--ranks 2147483648
--ranks 1000000
--loops 0
--loops -1
--loops 1,0
--loops 1,2,3
--loops 1001
--loops 2147483648
--loops nan
--loops ''
--overlap t3
--overlap nope
--overlap ideal-overlap
--split 40-40
--overlap partition --split 80-8
--overlap partition --split 80
--overlap partition --split 80-0
--overlap partition --split 0-80
--overlap partition --split -8-88
--overlap partition --split a-b
--overlap partition --split 9999999999999999999999-1
--copies engines=2
--overlap dma --copies engines
--overlap dma --copies engines=0
--overlap dma --copies engines=99
--overlap dma --copies engines=99999999999999999999999
--overlap dma --copies nope
--overlap dma --copies prelaunched=2
--overlap dma --copies swap
--overlap dma --copies engines=1,engines=2
--overlap dma --copies threads=0
--overlap dma --copies engines_per_peer=0
--dtype nope
--first nobody
--request-bytes 7
""",
    "simulate sublayer": r"""
--stragglers ''
--stragglers two:5%
--stragglers one:0%
--stragglers one:60%
--stragglers one:5
--stragglers one:5%,draws=3
--stragglers gpus:5%,draws=0
--stragglers gpus:5/8%
--stragglers one:1/60%
--stragglers workgroups:0%
--stragglers gpus:5%,draws=3,seed=x
--gemm 0,1,2
--gemm -1,1,2
--gemm 2147483648,1,2
--gemm 2147483647,2147483647,2147483647
--gemm 2147483647,2147483646,2147483646 --tp 2
--gemm 1e400,1,1
--gemm nan,1,1
--gemm inf,1,1
--gemm ''
--gemm ,,
--gemm 1,2
--gemm 1,2,3,4
--gemm ²,2,3
--gemm 999999999999999999999999999,2,3
--gemm 512,512,512 --tp 0
--gemm 512,512,512 --tp -1
--gemm 512,512,512 --tp 1
--gemm 512,512,512 --tp 3
--gemm 512,512,512 --tp 2147483648
--gemm 512,512,512 --tp 1e3
--gemm 512,512,512 --tp nan
--gemm 512,512,512 --tp ''
--gemm 512,512,512 --tp 512
--gemm 1,512,512 --tp 512 --mode explicit
--model ''
--model nope
--model nope.toml
--model empty.toml
--model deep.toml
--model bigint.toml
--model bin.toml
--model list.toml
--model m.toml --tp 2
--model mheads.toml --tp 7
--model mhuge.toml --tp 2
--model mzero.toml --tp 2
--model mtp.toml --tp 2
--model mtps.toml --tp 2
--model folder.toml
--model fifo.toml
--model /dev/zero
--model /dev/urandom
--model huge.toml
--model /dev/null
--model .
--model /
--model x/../y
--sublayer nope
--sublayer ''
--gemm 512,512,512 --sublayer fc2
--gemm 512,512,512 --dtype ''
--gemm 512,512,512 --dtype fp99
extra
--nope
--gemm
--gemm 512,512,2147483646 --tp 2
--gemm 131072,131072,131072 --tp 2
--gemm 8192,8192,8192 --corun all_gather:1PiB
--gemm 8192,8192,8192 --corun all_gather:100GiB
--gemm 8192,8192,8192 --corun all_gather:1B
--gemm 512,512,512 --corun all_gather:1.5B
--gemm 8192,8192,8192 --corun all_gather
--gemm 8192,8192,8192 --corun ''
--gemm 8192,8192,8192 --corun :1MiB
--gemm 8192,8192,8192 --corun all_gather:
--gemm 8192,8192,8192 --corun nope:1MiB
--gemm 8192,8192,8192 --corun all_gather:-1MiB
--gemm 8192,8192,8192 --corun all_gather:0MiB
--gemm 8192,8192,8192 --corun all_gather:nanMiB
--gemm 8192,8192,8192 --corun all_gather:infMiB
--gemm 8192,8192,8192 --corun all_gather:1e400MiB
--gemm 8192,8192,8192 --corun all_gather:1
--gemm 8192,8192,8192 --corun all_gather:1MiB,2MiB
--gemm 8192,8192,8192 --corun all_gather:1MiB..2MiB
--gemm 8192,8192,8192 --corun broadcast:1MiB
--gemm 8192,8192,8192 --corun send_recv:1MiB --overlap dma
--corun all_gather:1MiB
--gemm 512,512,512 --corun all_gather:1MiB --ranks 16 --gpu h100-sxm
--gemm 8192,8192,8192 --corun all_reduce:1MiB --overlap dma
--gemm 512,512,512 --corun all_gather:1MiB --mode explicit --ranks 128
--model=
""",
    "advise corun --gemm 8192,8192,8192 --corun all_gather:1MiB --gpu mi300x": r"""
--ranks 1
--ranks 100000
--jobs 0
--jobs -1
--jobs 1.5
--request-bytes 7
--dtype fp99
--json o/tables.json --out o
""",
    "advise fuse": r"""
(nothing)
--gemm 8192,8192,8192
--gemm 8192,8192,8192 --gpu mi300x
--gemm 8192,8192,8192 --collective all_gather
--gemm 8192,8192,8192 --collective broadcast --gpu mi300x
--gemm 8192,8192,8192 --collective all_gather --form gemm_ag --gpu mi300x
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --system mi300x-x8
--gemm 8192,8192,8192 --collective all_gather --gpu nope
--gemm 8192,8192 --collective all_gather --gpu mi300x
--gemm 8192,8196,8192 --collective all_gather --gpu mi300x
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --tp 1
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --dtype fp99
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --compare nope
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --compare sequential
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --compare in-network
--gemm 8192,8192,8192 --collective all_reduce --gpu mi300x --compare dma
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --compare streams --fidelity estimate
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --m-range 8192
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --m-range 8192,512
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --gemm-time 57
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --gemm-time 0us
--gemm 8192,8192,8192 --collective all_gather --gpu mi300x --gemm-time 57us --m-range 512,8192
""",
    "advise": r"""
--gemm 8192,8192,8192 --corun all_gather:1MiB --gpu mi300x
""",
    "advise corun": r"""
(nothing)
--gemm 8192,8192,8192 --corun all_gather:1MiB
--gemm 8192,8192 --corun all_gather:1MiB --gpu mi300x
--gemm 8192,8192,8192 --corun all_gather --gpu mi300x
--gemm 8192,8192,8192 --corun all_gather:1PiB --gpu mi300x --no-cache
--gemm 2147483647,2147483647,2147483647 --corun all_gather:1MiB --gpu mi300x --no-cache
--gemm 8192,8192,8192 --corun all_gather:1MiB --gpu nope
--gemm 8192,8192,8192 --corun nope:1MiB --gpu mi300x
--gemm 8192,8192,8192 --corun broadcast:1MiB --gpu mi300x
""",
    "tune": r"""
(nothing)
nope.csv --gpu mi100
empty.csv --gpu mi100
head.csv --gpu mi100
/dev/zero --gpu mi100
fifo.csv --gpu mi100
huge.csv --gpu mi100
folder.toml --gpu mi100
tunebig.csv --gpu mi100
tune31.csv --gpu mi100
tune0.csv --gpu mi100
tunenan.csv --gpu mi100
tunelong.csv --gpu mi100
tune1.csv --gpu mi100 --trace t.json
tune.csv
tune.csv --gpu nope
tune.csv --gpu mi100 --out a --json a
tune.csv --gpu mi100 --json tune.csv
tune.csv --gpu mi100 --page nofile
bin.csv --gpu mi100
tune.csv --gpu mi100 --set x=3
""",
    "predict gemm": r"""
(nothing)
1,2
0,1,2
1e400,1,2
nan,1,1
2147483648,1,1
1,2,3 --shapes head.csv
1,2,3 --batch 0
1,2,3 --batch 2147483648
2147483647,2147483647,2147483647 --batch 2147483647
1,2,3 --dtype fp99
1,2,3 --dtype fp64 --gpu nope
1,2,3 --gpu ,
1,2,3 --gpu h100-sxm,nope
1,2,3 --clock boost
1,2,3 --set memory.latency=3
--shapes nope.csv
--shapes empty.csv
--shapes head.csv
--shapes nul.csv
--shapes long.csv
--shapes quote.csv
--shapes neg.csv
--shapes nan.csv
--shapes big.csv
--shapes latin.csv
--shapes sup.csv
--shapes dt.csv
--shapes dup.csv
--shapes short.csv
--shapes extra.csv
--shapes bin.csv
--shapes fifo.csv
--shapes huge.csv
--shapes /dev/zero
--shapes folder.toml
--shapes /dev/null
1,2,3 --json a --csv a
2147483647,2147483647,2147483647
8192,8192,8192 --set memory.bandwidth=x
""",
    "predict collective all_reduce:1MiB --ranks 8 --system dgx-h100": r"""
--algorithm nope
--algorithm ''
--algorithm ring-nope
--dma
--library nope
--library nope.toml
--library empty.toml
--library deep.toml
""",
    "predict collective": r"""
(nothing)
all_reduce --ranks 8 --system dgx-h100
all_reduce: --ranks 8 --system dgx-h100
:1MiB --ranks 8 --system dgx-h100
nope:1MiB --ranks 8 --system dgx-h100
all_reduce:1MiB --ranks 8
all_reduce:1MiB --ranks 0 --system dgx-h100
all_reduce:1MiB --ranks 1 --system dgx-h100
all_reduce:1MiB --ranks 7 --nodes 2 --system dgx-h100
all_reduce:1MiB --ranks 8 --nodes 0 --system dgx-h100
all_reduce:1MiB --ranks 2147483647 --system dgx-h100
all_reduce:1MiB --ranks 8 --nodes 3 --system dgx-h100
all_reduce:1MiB --ranks 8 --system nope
all_reduce:1MiB --ranks 8 --system ,
all_reduce:0B --ranks 8 --system dgx-h100
all_reduce:-1B --ranks 8 --system dgx-h100
all_reduce:1.5B --ranks 8 --system dgx-h100
all_reduce:2PiB --ranks 8 --system dgx-h100
all_reduce:1e400B --ranks 8 --system dgx-h100
all_reduce:nanB --ranks 8 --system dgx-h100
all_reduce:1GiB..1MiB --ranks 8 --system dgx-h100
all_reduce:1MiB...1GiB --ranks 8 --system dgx-h100
all_reduce:1B..2PiB --ranks 8 --system dgx-h100
all_gather:1MiB --ranks 8 --system dgx-h100 --dma --algorithm ring
all_gather:1MiB --ranks 8 --system dgx-h100 --dma --library nope
all_to_all:1MiB --ranks 16 --system dgx-h100 --dma
""",
    "predict op softmax": r"""
(nothing)
--shape rows=4
--shape rows=4,columns=0
--shape rows=4,columns=-1
--shape rows=4,columns=1e3
--shape rows=4,columns=nan
--shape rows=4,columns=
--shape rows=4,columns=4,heads=2
--shape rows=4,rows=4,columns=4
--shape rows=999999999999999,columns=999999999999999
--shape rows=9999999999999999,columns=1
--shape ,
--shape rows=4,columns=4 --dtype nope
--shape rows=4,columns=4 --gpu nope
""",
    "predict op": r"""
(nothing)
nope
attention_fused --shape batch=8,heads=32,query=2048,keys=2048,head=128,kv_heads=5
attention_fused --shape batch=8,heads=32,query=2048,keys=2048,head=128,causal=2
elementwise --shape elements=4,inputs=0,outputs=0
""",
    "predict layer --model gpt-3 --system dgx-h100": r"""
--tp 0
--tp 2147483647
--tp 97
--batch 0
--batch 2147483647 --sequence 2147483647
--sequence 2147483648
--phase nope
--attention nope
--timed nope
--dtype nope
--gpu nope
--gpu h100-sxm --set network.bandwidth='1 GB/s'
""",
    "predict layer": r"""
(nothing)
--model nope --system dgx-h100
--model gpt-3 --system nope
--model mheads.toml --system dgx-h100 --tp 2
--model mheads.toml --system dgx-h100
""",
    "validate --data measured.csv": r"""
--kinds nope
--kinds ,
--gpu nope
--library nope
--kinds gemm --library nope
""",
    "validate": r"""
--data nope
--data empty.csv
--data nofile
--data head.csv
--data bin.csv
--data folder.toml
""",
    "calibrate --data measured.csv": r"""
--gpu h100-sxm --system dgx-h100
--gpu nope
--gpu h100-sxm --holdout 0
--gpu h100-sxm --holdout 1
--gpu h100-sxm --holdout nan
--gpu h100-sxm --seed -1
--gpu h100-sxm --out x --json x
""",
    "calibrate": r"""
(nothing)
--data nope --gpu h100-sxm
""",
    "prefill llama-3-8b --system 8xh100": r"""
--tp 2147483647
--tp 3
""",
    "step": r"""
listed.json --system 8xh100
surrogate.json --system 8xh100
trace.json --system 8xh100
bin.csv --system 8xh100
nofile --system 8xh100
empty.csv --system 8xh100
folder.toml --system 8xh100
fifo.csv --system 8xh100
""",
    "hardware show": r"""
(nothing)
nope
nope.toml
''
fifo.toml
deep.toml
""",
    "models show": r"""
listed.json
surrogate.json
trace.json
nope
''
deep.toml
""",
    "cache clear": r"""
--older-than nope
--older-than -1d
--older-than 1e400d
--older-than ''
--older-than 9999999999d
""",
    "study t3": r"""
--models nope
--models ,
--tp 7
--tp nan
--tp 0
--jobs 0
--gpu nope
--request-bytes 7
--json o/t3.json --out o
""",
    "study c3": r"""
--scenarios nope.toml
--scenarios suite.toml
--scenarios suite2.toml
--scenarios suite3.toml
--scenarios suite4.toml
--scenarios empty.toml
--scenarios deep.toml
--scenarios fifo.toml
--ranks 1
--ranks 1000000 --no-cache
--scenarios suite5.toml
""",
    "study goldyloc": r"""
--suite suite4.toml
--suite suite5.toml
--suite suite6.toml
--suite suite7.toml
--suite suite8.toml
--suite suite9.toml
--suite empty.toml
--clock boost
""",
    "study cu-split": r"""
--split 1-1
--split ''
--split nope
--in-flight 0B
--in-flight -1B
--in-flight nan
--in-flight 1PiB
--in-flight 1e400B
--models nope
""",
    "study bert": r"""
--data nope.csv
--data empty.toml
--data ''
""",
    "study sensitivity": r"""
--values nope
--values ,
--json .
""",
    "": r"""
predict
predict nope
hardware list extra
overlaps nope
cache nope
study
study nope
nope
--nope
''
""",
}
"""Command lines that must be refused, with exit status 2."""

SENTENCES = {
    "simulate sublayer --ranks 4": "no such option '--ranks'",
    "simulate sublayer --loops 4": "no such option '--loops'",
    "simulate corun --gemm 64,64,64 --corun all_gather:1MiB --tp 8": "no such option '--tp'",
    "simulate --model t-nlg --tp 8": "run: weft simulate sublayer --model t-nlg --tp 8",
    "predict collective all_gather:1MiB --ranks 8 --system dgx-h100 --dma --algorithm ring": "algorithm has no effect",
    "validate --data measured.csv --kinds gemm --library nccl-h100": "--library has no effect",
    "predict gemm 64,64,64 --json a --csv ./a": "--json and --csv both write to 'a'",
    "predict gemm 64,64,64 --json - --csv -": "--json and --csv both write to standard output",
    "study t3 --json o/t3.json --out o": "--json and --out both write to 'o/t3.json'",
    "predict gemm --shapes tune.csv --csv tune.csv": "the file 'tune.csv' is read, but --csv would write over it",
    "simulate sublayer --trace -": "--trace writes a file for each GPU",
    "predict gemm --shapes tune.csv --dtype fp8": "--dtype has no effect with a file of which every row states it",
    "simulate sublayer --model fifo.toml": "nothing came out of the pipe 'fifo.toml' for 0.2 s",
    "tune huge.csv --gpu mi100": "the file 'huge.csv' is larger than 64 MiB, the most that is read",
    "hardware show huge.toml": "the file 'huge.toml' is larger than 1 MiB, the most that is read",
    "hardware show /dev/zero": "'/dev/zero' is a device, not a file",
    "hardware show deep.toml": "nests more than 100 levels",
    "validate --data /dev/zero": "'/dev/zero' is a device, not a file",
    "validate --data fifo.csv": "nothing came out of the pipe 'fifo.csv'",
    "validate --data huge.csv": "this file is larger than",
    "tune tune31.csv --gpu mi100": "m is 2147483648; it must be at most 2147483647",
    "predict gemm --shapes big.csv": "m is 2147483648; it must be at most 2147483647",
    "simulate sublayer --gemm 512,512,2147483646 --tp 2": "but the memory of t3-paper holds 32 GiB",
    "predict gemm 2147483647,2147483647,64": "but the memory of h100-sxm holds 85.52 GB",
    "predict layer --model mheads.toml --system dgx-h100": "heads (7) cannot share hidden (1024) evenly",
    "simulate sublayer --set memory.bandwidth=1TB/s --set memory.bandwidth=2TB/s": "--set gives memory.bandwidth twice",
    "simulate sublayer --model ''": "an argument behind --model is empty",
    "simulate sublayer --set cache.capacity='1 TiB'": "this computer has",
}
"""What the sentence must say, of some of them."""

SHAPE = weft.Gemm(512, 512, 512)
MOVED = weft.all_gather("1 MiB")
LAYER = weft.sublayer("t-nlg", "fc2", tp=8)
H100 = weft.gpu("h100-sxm")
CLOSED = weft.estimate(SHAPE, H100)
WRONG = (
    None, -1, 0, 1.5, math.nan, math.inf, 1e400, "", "nope", b"x", [], {}, (), object(), True, 2**31, 2**70, 10**5000,
    lambda: 0, [None], "nan", np.array([]), np.array(["a"]),
)  # fmt: skip
"""What is seldom meant where a graph, a name or a number is."""

CALLS = {
    "simulate graph": lambda x: weft.simulate(x, "t3-paper"),
    "simulate system": lambda x: weft.simulate(LAYER, x),
    "simulate overlap": lambda x: weft.simulate(LAYER, "t3-paper", x),
    "simulate options": lambda x: weft.simulate(LAYER, "t3-paper", "t3", x),
    "compare graph": lambda x: weft.compare(x, "t3-paper", ["t3"]),
    "compare system": lambda x: weft.compare(LAYER, x, ["t3"]),
    "compare overlaps": lambda x: weft.compare(LAYER, "t3-paper", x),
    "compare overlaps1": lambda x: weft.compare(LAYER, "t3-paper", [x]),
    "compare options": lambda x: weft.compare(LAYER, "t3-paper", ["t3"], x),
    "simulate name": lambda x: weft.simulate(x, "t3-paper", tp=8),
    "simulate tp": lambda x: weft.simulate("t-nlg/fc2", "t3-paper", tp=x),
    "simulate dtype": lambda x: weft.simulate("t-nlg/fc2", "t3-paper", tp=8, dtype=x),
    "simulate tp twice": lambda x: weft.simulate(LAYER, "t3-paper", tp=4 if x is None else x),
    "simulate unsplit": lambda x: weft.simulate("t-nlg/fc2", "t3-paper", x),
    "compare name": lambda x: weft.compare(x, "t3-paper", "t3", tp=8),
    "compare tp": lambda x: weft.compare("t-nlg/fc2", "t3-paper", "t3", tp=x),
    "estimate name": lambda x: weft.estimate(x, "h100-sxm", tp=8),
    "estimate tp": lambda x: weft.estimate("t-nlg/fc2", "h100-sxm", tp=x),
    "sweep work": lambda x: weft.sweep(x, "t3-paper"),
    "sweep works": lambda x: weft.sweep(["t-nlg/fc2", x], "t3-paper", tp=8),
    "sweep system": lambda x: weft.sweep("t-nlg/fc2", x, tp=8),
    "sweep overlap": lambda x: weft.sweep(LAYER, "t3-paper", ["sequential", x]),
    "sweep tp": lambda x: weft.sweep("t-nlg/fc2", "t3-paper", tp=[8, x]),
    "sweep dtype": lambda x: weft.sweep("t-nlg/fc2", "t3-paper", tp=8, dtype=[x]),
    "sweep value": lambda x: weft.sweep(LAYER, "t3-paper", **{"link.bandwidth": x}),
    "sweep values": lambda x: weft.sweep(LAYER, "t3-paper", **{"link.bandwidth": ["150 GB/s", x]}),
    "sweep path": lambda x: weft.sweep(LAYER, "t3-paper", **{"link.width": x}),
    "sweep by": lambda x: weft.sweep(LAYER, "t3-paper", by=x),
    "sweep jobs": lambda x: weft.sweep(LAYER, "t3-paper", jobs=x),
    "sweep options": lambda x: weft.sweep(LAYER, "t3-paper", options=x),
    "sweep closed": lambda x: weft.sweep(x, "h100-sxm", by="estimate"),
    "sweep closed overlap": lambda x: weft.sweep(SHAPE, "h100-sxm", "t3" if x is None else x, by="estimate"),
    "answer save": CLOSED.save,
    "Timeline load": weft.Timeline.load,
    "estimate work": lambda x: weft.estimate(x, "h100-sxm"),
    "estimate works": lambda x: weft.estimate([x], "h100-sxm"),
    "estimate system": lambda x: weft.estimate(SHAPE, x),
    "estimate systems": lambda x: weft.estimate(SHAPE, [x]),
    "estimate options": lambda x: weft.estimate(SHAPE, "h100-sxm", x),
    "estimate harness": lambda x: weft.estimate(SHAPE, "h100-sxm", None, x),
    "system": weft.system,
    "system gpus": lambda x: weft.system("h100-sxm", x),
    "system nodes": lambda x: weft.system("h100-sxm", 8, x),
    "gpu": weft.gpu,
    "gpu replace": H100.replace,
    "gpu replace value": lambda x: H100.replace({"memory.bandwidth": x}),
    "gpu value": H100.value,
    "gpu text": H100.text,
    "system replace": lambda x: weft.system("dgx-h100").replace(x),
    "system value": lambda x: weft.system("dgx-h100").value(x),
    "System gpu": lambda x: weft.System(gpu=x, gpus=8),
    "System gpus": lambda x: weft.System(gpu=H100, gpus=x),
    "System variants": lambda x: weft.System(gpu=H100, gpus=8, variants=x),
    "System start": lambda x: weft.System(gpu=H100, gpus=8, start=x),
    "System start1": lambda x: weft.System(gpu=H100, gpus=8, start={1: x}),
    "System fabric": lambda x: weft.System(gpu=H100, gpus=8, fabric=x),
    "sublayer both": weft.sublayer,
    "sublayer both tp": lambda x: weft.sublayer("t-nlg/fc2", tp=x),
    "sublayer model": lambda x: weft.sublayer(x, "fc2", tp=8),
    "sublayer name": lambda x: weft.sublayer("t-nlg", x, tp=8),
    "sublayer tp": lambda x: weft.sublayer("t-nlg", "fc2", tp=x),
    "sublayer dtype": lambda x: weft.sublayer("t-nlg", "fc2", tp=8, dtype=x),
    "gemm m": lambda x: weft.gemm(x, 1, 1),
    "gemm dtype": lambda x: weft.gemm(1, 1, 1, x),
    "gemm batch": lambda x: weft.gemm(1, 1, 1, "bf16", x),
    "Gemm m": lambda x: weft.Gemm(x, 1, 1),
    "Gemm dtype": lambda x: weft.Gemm(1, 1, 1, x),
    "all_reduce": weft.all_reduce,
    "all_gather ranks": lambda x: weft.all_gather("1 MiB", x),
    "all_to_all dtype": lambda x: weft.all_to_all("1 MiB", 8, x),
    "Collective name": lambda x: weft.Collective(x, 1024, 8),
    "Collective bytes": lambda x: weft.Collective("all_gather", x, 8),
    "operator name": lambda x: weft.operator(x, rows=4, columns=4),
    "operator rows": lambda x: weft.operator("softmax", rows=x, columns=4),
    "Streaming": lambda x: weft.Streaming(x, 4),
    "Streaming rows": lambda x: weft.Streaming("gelu", x),
    "Attention heads": lambda x: weft.Attention(1, x, 128, 128, 64),
    "Attention kv": lambda x: weft.Attention(1, 8, 128, 128, 64, x),
    "Attention fused": lambda x: weft.Attention(1, 8, 128, 128, 64, fused=x),
    "Opaque": weft.Opaque,
    "Opaque bytes": lambda x: weft.Opaque("x", bytes=x),
    "concurrent gemm": lambda x: weft.concurrent(x, MOVED),
    "concurrent coll": lambda x: weft.concurrent(SHAPE, x),
    "concurrent n": lambda x: weft.concurrent(SHAPE, MOVED, x),
    "concurrent m": lambda x: weft.concurrent(SHAPE, MOVED, 1, x),
    "balanced gemm": lambda x: weft.balance_loops(x, MOVED, "mi300x"),
    "balanced coll": lambda x: weft.balance_loops(SHAPE, x, "mi300x"),
    "balanced sys": lambda x: weft.balance_loops(SHAPE, MOVED, x),
    "balanced n": lambda x: weft.balance_loops(SHAPE, MOVED, "mi300x", gemms=x),
    "gemm_queue": weft.gemm_queue,
    "gemm_queue1": lambda x: weft.gemm_queue([x]),
    "gemm_queue q": lambda x: weft.gemm_queue([SHAPE, SHAPE], x),
    "gemm_queue til": lambda x: weft.gemm_queue([SHAPE, SHAPE], 1, x),
    "dependent form": lambda x: weft.dependent(x, SHAPE, 8),
    "dependent gemm": lambda x: weft.dependent("gemm_rs", x, 8),
    "dependent ranks": lambda x: weft.dependent("gemm_rs", SHAPE, x),
    "load_model": weft.load_model,
    "layer tp": lambda x: weft.layer("gpt-3", tp=x),
    "layer batch": lambda x: weft.layer("gpt-3", batch=x),
    "layer seq": lambda x: weft.layer("gpt-3", sequence=x),
    "layer phase": lambda x: weft.layer("gpt-3", phase=x),
    "RunOptions clock": lambda x: weft.RunOptions(clock=x),
    "RunOptions rb": lambda x: weft.RunOptions(request_bytes=x),
    "RunOptions mode": lambda x: weft.RunOptions(mode=x),
    "RunOptions budget": lambda x: weft.RunOptions(event_budget=x),
    "RunOptions arbiter": lambda x: weft.RunOptions(arbiter=x),
    "RunOptions progress": lambda x: weft.RunOptions(progress=x),
    "RunOptions interference": lambda x: weft.RunOptions(interference=x),
    "BenchmarkProtocol timed": lambda x: weft.BenchmarkProtocol(timed=x),
    "BenchmarkProtocol rotation": lambda x: weft.BenchmarkProtocol(rotation=x),
    "BenchmarkProtocol lib": lambda x: weft.BenchmarkProtocol(library=x),
    "BenchmarkProtocol profile": lambda x: weft.BenchmarkProtocol(profile=x),
    "BenchmarkProtocol algorithm": lambda x: weft.estimate(
        MOVED, "dgx-h100", harness=weft.BenchmarkProtocol(algorithm=x)
    ),
    "BenchmarkProtocol network": lambda x: weft.BenchmarkProtocol(network=x),
    "Graph": weft.Graph,
    "Graph node": lambda x: weft.Graph((x,)),
    "Graph ranks": lambda x: weft.Graph((weft.Node(SHAPE, "a"),), x),
    "Graph getitem": lambda x: LAYER[x],
    "Graph only": LAYER.only,
    "Node op": lambda x: weft.Graph((weft.Node(x, "a"),)),
    "Node name": lambda x: weft.Graph((weft.Node(SHAPE, x),)),
    "Node after": lambda x: weft.Graph((weft.Node(SHAPE, "a"), weft.Node(SHAPE, "b", after=x))),
    "Node rank": lambda x: weft.Graph((weft.Node(SHAPE, "a", rank=x),)),
    "arbiter": weft.arbiter,
}
"""Public functions by what the wrong value is given for."""


def _is(*values):
    """Whether a wrong value is one of these after all, and of the same type."""
    return lambda x: any(type(x) is type(value) and x == value for value in values)


_large = _is(2**31)
TAKEN = {
    **dict.fromkeys(("simulate overlap", "simulate options", "compare overlaps", "compare options"), _is(None)),
    **dict.fromkeys(("estimate options", "estimate harness", "system gpus", "system nodes"), _is(None)),
    **dict.fromkeys(("System fabric", "gemm_queue q", "BenchmarkProtocol lib", "BenchmarkProtocol profile"), _is(None)),
    **dict.fromkeys(("gpu replace", "system replace", "System variants", "System start"), _is({})),
    **dict.fromkeys(("gemm m", "gemm batch", "Gemm m", "all_reduce", "all_gather ranks", "Collective bytes"), _large),
    **dict.fromkeys(("operator rows", "Streaming rows", "Attention heads", "dependent ranks", "Graph ranks"), _large),
    **dict.fromkeys(("System start1", "Attention kv"), _is(0)),
    **dict.fromkeys(("simulate dtype", "sublayer dtype", "sweep dtype", "sweep options"), _is(None)),
    "Opaque bytes": _is(0, 2**31),
    "sweep jobs": _large,
    "sweep tp": _large,  # no split, but a point that says why
    **dict.fromkeys(("Opaque", "Node name"), lambda x: isinstance(x, str)),
    "Attention fused": _is(True),
    "Node after": _is(()),
    "Node rank": _is(None, 0),
    "RunOptions arbiter": lambda x: x is None or isinstance(x, str),
    "RunOptions rb": _is(None, 2**31),
    "RunOptions budget": _is(None, 0, 2**31),
    "RunOptions progress": lambda x: x is None or callable(x),
    "RunOptions interference": lambda x: isinstance(x, bool),
    "arbiter": callable,
    "gemm_queue til": lambda x: hasattr(x, "__len__") and len(x) == 0,
    "BenchmarkProtocol rotation": lambda x: isinstance(x, int | float) and not isinstance(x, bool) and x >= 1,
    "BenchmarkProtocol network": lambda x: x is None or (isinstance(x, int | float) and 0 < x < math.inf),
}
"""What a call does take of `WRONG`."""
