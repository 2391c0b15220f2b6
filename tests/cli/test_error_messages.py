from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.choices import listed
from tests.support.command_line import run_apart, run_here
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch import launcher
from trainer.launch.resolved_run import Command
from trainer.sweep import run_sweep

MODELS = listed("model")
NO_STRATEGY = (
    "no such choice; choose one of auto, central_storage, mirrored, multi_worker, one_device, "
    "parameter_server, tpu"
)
NOT_OVERRIDE = "is not an override; write key=value or group=choice, and quote special characters"
NO_RUN = "no run there: it has no config.yaml; give the path of a run directory, or auto, or never"
NOT_INSTALLED = "install it, or start the command in the directory it lies in"

# Command line -> what is on standard error, without `error: `; a list stands for several lines.
WRONG: dict[str, str | list[str]] = {
    # Keys that do not exist.
    "epochs=3": "unknown key 'epochs'; did you mean 'train.epochs'?",
    "learning_rate=0.1": "unknown key 'learning_rate'; did you mean 'optimizer.learning_rate'?",
    "sead=1": "unknown key 'sead'; did you mean 'seed'?",
    "modle=cnn": "unknown key 'modle'; did you mean 'model'?",
    "zzz=1": "unknown key 'zzz'; see --help for all keys",
    "optimizer.learning_rte=0.1": (
        "unknown key 'optimizer.learning_rte'; did you mean 'learning_rate'?"
    ),
    "train.stepz=1": "unknown key 'train.stepz'; did you mean 'steps'?",
    "checkpoint.best.metrc=accuracy": "unknown key 'checkpoint.best.metrc'; did you mean 'metric'?",
    "model.widht=3": "unknown key 'model.widht'; did you mean 'width'?",
    "model.alpha=1.0": (
        "unknown key 'model.alpha'; known keys of model: width, dropout, batch_norm, "
        "synchronized, l2"
    ),
    "restart.zzz=1": "unknown key 'restart.zzz'; known keys of restart: max_restarts, backoff_secs",
    # What other libraries call it.
    "fit=true": (
        "unknown key 'fit'; there is no fit; write the step as a task, or give "
        "loop._target_=<your function>"
    ),
    "run_eagerly=true": "unknown key 'run_eagerly'; write eager=true",
    "optimizer.global_clipnorm=1": (
        "unknown key 'optimizer.global_clipnorm'; write train.clip_norm=<norm>"
    ),
    "+auto_shard_policy=DATA": (
        "unknown key 'auto_shard_policy'; there is one order of samples, whatever the strategy; "
        "leave it out"
    ),
    # `+` gets past Hydra's own check.
    "+foo=1": "unknown key 'foo'; see --help for all keys",
    "++train.stepz=1": "unknown key 'train.stepz'; did you mean 'steps'?",
    "+restart.foo.bar=1": (
        "unknown key 'restart.foo'; known keys of restart: max_restarts, backoff_secs"
    ),
    "+model.widht=3": "unknown key 'model.widht'; did you mean 'width'?",
    "+optimizer.learning_rte=0.1": (
        "unknown key 'optimizer.learning_rte'; did you mean 'learning_rate'?"
    ),
    "+schedule.refrence_batch=1": (
        "unknown key 'schedule.refrence_batch'; did you mean 'reference_batch'?"
    ),
    "+strategy=mirrored": "strategy is chosen twice; write strategy=<choice> once, without +",
    "experiment=mnist_tutorial +experiment=mnist_tutorial": (
        "experiment is chosen twice; write experiment=<choice> once, without +"
    ),
    "+seed=1": "'seed' exists; write seed=<value>, without +",
    "+choices=1": "choices is filled in by the program; remove it",
    # Choices that do not exist.
    "model=mobilnet": (
        f"model=mobilnet: no such choice; choose one of {MODELS}; did you mean 'mobilenet'?"
    ),
    "model=zzz": f"model=zzz: no such choice; choose one of {MODELS}",
    "model=": f"model=: no such choice; choose one of {MODELS}",
    "model=CNN": f"model=CNN: no such choice; choose one of {MODELS}; did you mean 'cnn'?",
    "MODEL=cnn": "unknown key 'MODEL'; did you mean 'model'?",
    "++model=cnn": "'++model=cnn' adds a group that is there; write model=cnn",
    "model@here=cnn": "model is chosen at a place of its own; write model=<choice>, without @",
    "task=gan model@task.generator=cnn": (
        "model@task.generator: model is not chosen there; write "
        "model/generator@task.generator=<choice>"
    ),
    "task=gan model/generator@task.generator=smal": (
        "model/generator=smal: no such choice; choose one of small, sngan; did you mean 'small'?"
    ),
    "~modle": "unknown key 'modle'; did you mean 'model'?",
    "~zzz": "unknown key 'zzz'; see --help for all keys",
    "fault=null": "fault (null) must be the name of a choice; see --help for the choices",
    "optimizer=[]": (
        "optimizer ([]) must be one choice; write optimizer=<choice>, or -m "
        "optimizer=<choice>,<choice> to try each"
    ),
    "model=null": "model (null) must be the name of a choice; see --help for the choices",
    "model=5": "model (5) must be the name of a choice; see --help for the choices",
    "~model": "model has no value; add model=<choice>",
    "dataset=minst": (
        f"dataset=minst: no such choice; choose one of {listed('dataset')}; did you mean 'mnist'?"
    ),
    "strategy=MultiWorkerMirroredStrategy": (
        f"strategy=MultiWorkerMirroredStrategy: {NO_STRATEGY}; that is strategy=multi_worker here"
    ),
    "strategy=CentralStorageStratygy": (
        f"strategy=CentralStorageStratygy: {NO_STRATEGY}; that is strategy=central_storage here"
    ),
    "strategy=default": f"strategy=default: {NO_STRATEGY}; that is strategy=one_device here",
    "strategy=estimator": (
        f"strategy=estimator: {NO_STRATEGY}; TensorFlow has had no Estimators since 2.16; "
        "strategy=parameter_server and mode=evaluate do what they did"
    ),
    "strategy=miror": f"strategy=miror: {NO_STRATEGY}; did you mean 'mirrored'?",
    "task=ranking": f"task=ranking: no such choice; choose one of {listed('task')}",
    "optimizer=adm": (
        f"optimizer=adm: no such choice; choose one of {listed('optimizer')}; did you mean 'adam'?"
    ),
    "schedule=cosin": (
        f"schedule=cosin: no such choice; choose one of {listed('schedule')}; "
        "did you mean 'cosine'?"
    ),
    "checkpoint=defualt": (
        "checkpoint=defualt: no such choice; choose one of best, default, every_50_steps, "
        "latest; did you mean 'default'?"
    ),
    "checkpoint=bestt": (
        "checkpoint=bestt: no such choice; choose one of best, default, every_50_steps, "
        "latest; did you mean 'best'?"
    ),
    "checkpoint=best": (
        "checkpoint.use (best) is for mode=evaluate, export and predict; a training goes on "
        "from the newest, or starts with a checkpoint's weights: "
        "init_from=<run>/checkpoints/ckpt-<step>"
    ),
    "callbacks=early": (
        "callbacks=early: no such choice; choose one of early_stopping, none, reduce_on_plateau"
    ),
    "callbacks=[early_stoping]": (
        "callbacks=early_stoping: no such choice; choose one of early_stopping, none, "
        "reduce_on_plateau; did you mean 'early_stopping'?"
    ),
    "launch=proces": (
        "launch=proces: no such choice; choose one of inline, process, ray; did you mean 'process'?"
    ),
    "experiment=mnist": (f"experiment=mnist: no such choice; choose one of {listed('experiment')}"),
    # Values of a wrong type.
    "seed=many": "seed ('many') must be an int",
    "seed=1.5": "seed (1.5) must be an int",
    "seed=true": "seed (true) must be an int",
    "seed=null": "seed (null) must have a value",
    "jit=maybe": "jit ('maybe') must be true or false",
    "name=[a]": "name (['a']) must be a str",
    "train=5": "train (5) must be a mapping; set a key in it, train.<key>=<value>",
    "train.epochs={a:1}": "train.epochs ({'a': 1}) must be an int",
    "train.clip_norm=small": "train.clip_norm ('small') must be a float",
    "train.steps_per_loop=1.5": "train.steps_per_loop (1.5) must be an int or a word",
    "optimizer.learning_rate=fast": "optimizer.learning_rate ('fast') must be a float",
    "optimizer.learning_rate=null": "optimizer.learning_rate (null) must be a float",
    "optimizer.learning_rate={a:1}": "optimizer.learning_rate ({'a': 1}) must be a float",
    "model.width=wide": "model.width ('wide') must be an int",
    "schedule=step schedule.boundaries=[1,a]": (
        "schedule.boundaries ([1, 'a']) must be a list of int"
    ),
    "schedule.reference_batch=1.5": "schedule.reference_batch (1.5) must be an int or null",
    "~train.epochs": "train.epochs cannot be removed; write train.epochs=null",
    # Values that break a rule.
    "optimizer.weight_decay=0.1": (
        "unknown key 'optimizer.weight_decay'; choose optimizer=adamw, which is adam with weight "
        "decay"
    ),
    "seed=-1": "seed (-1) must be >= 0 and <= 9007199254740991",
    "mode=trian": (
        "mode (trian) must be one of train, plan, verify, benchmark, evaluate, export, predict; "
        "did you mean 'train'?"
    ),
    "precision=float16": (
        "precision (float16) must be one of float32, mixed_bfloat16, mixed_float16; did "
        "you mean 'float32'?"
    ),
    "name=a/b": (
        "name (a/b) must be usable in a directory's name; use letters, digits, '.', '_' "
        "and '-', at most 100"
    ),
    "train.epochs=0": "train.epochs (0) must be >= 1",
    "train.steps=-5": "train.steps (-5) must be >= 1",
    "train.steps_per_loop=0": "train.steps_per_loop (0) must be auto or >= 1",
    "train.steps_per_loop=fast": "train.steps_per_loop (fast) must be auto or >= 1",
    "train.clip_norm=inf": "train.clip_norm (inf) must be finite",
    "train.ema_decay=1": "train.ema_decay (1.0) must be > 0 and < 1",
    "batch.global_size=0": "batch.global_size (0) must be >= 1",
    "batch.per_replica=-4": "batch.per_replica (-4) must be >= 1",
    "batch.accumulate=0": "batch.accumulate (0) must be >= 1",
    "evaluate.every_steps=0": "evaluate.every_steps (0) must be >= 1",
    "checkpoint.keep=0": "checkpoint.keep (0) must be >= 1",
    "checkpoint.every_secs=-1": "checkpoint.every_secs (-1.0) must be > 0",
    "checkpoint.best.mode=mx": (
        "checkpoint.best.mode (mx) must be one of auto, max, min; did you mean 'max'?"
    ),
    "divergence.action=skipp": (
        "divergence.action (skipp) must be one of stop, skip, rollback; did you mean 'skip'?"
    ),
    "divergence.max_skips=2000": "divergence.max_skips (2000) must be >= 1 and <= 1024",
    "divergence.rollback_steps=2": (
        "divergence.rollback_steps (2) needs divergence.action=rollback, it is stop; "
        "add divergence.action=rollback"
    ),
    "divergence.action=rollback divergence.rollback_steps=20": (
        "divergence.rollback_steps (20) must be <= divergence.max_skips (16); add "
        "divergence.max_skips=20"
    ),
    "divergence.action=rollback divergence.rollback_steps=2 evaluate.sidecar=true": (
        "divergence.rollback_steps (2) removes checkpoints that evaluate.sidecar "
        "(true) may have evaluated; "
        "add divergence.rollback_steps=1 or evaluate.sidecar=false"
    ),
    "checkpoint.best.metric=calibration_error": (
        "checkpoint.best.metric (calibration_error) declares no direction, unlike loss, accuracy; "
        "add checkpoint.best.mode=max (or min), or direction = "
        '{"calibration_error": "max"} to the class that returns it'
    ),
    "writers=[jsnl]": "writers=jsnl: no such choice; "
    "choose one of csv, jsonl, mlflow, tensorboard, wandb; did you mean 'jsonl'?",
    "writers.jsonl.colour=red": "unknown key 'writers.jsonl.colour'; "
    "known keys of writers.jsonl: none",
    "writers.jsonl=jsonl": "writers.jsonl ('jsonl') must be a mapping with a _target_, "
    "the dotted path of a function or class",
    "writers=csv +writers.csv.tracker=7": "writers.csv.tracker (7) must be a bool or null",
    "restart.max_restarts=-1": "restart.max_restarts (-1) must be >= 0",
    "optimizer.learning_rate=0": "optimizer.learning_rate (0) must be > 0",
    "optimizer=sgd optimizer.momentum=1": "optimizer.momentum (1) must be >= 0 and < 1",
    "schedule.reference_batch=0": "schedule.reference_batch (0) must be >= 1",
    "task.label_smoothing=1.5": "task.label_smoothing (1.5) must be >= 0 and < 1",
    "strategy=mirrored strategy.virtual_devices=0": "strategy.virtual_devices (0) must be >= 1",
    "callbacks=early_stopping callbacks.early_stopping.patience=0": (
        "callbacks.early_stopping.patience (0) must be >= 1"
    ),
    "callbacks=early_stopping callbacks.early_stopping.mode=mx": (
        "callbacks.early_stopping.mode ('mx') must be one of auto, max, min; did you mean 'max'?"
    ),
    # Pairs of which exactly one must be set.
    "train.steps=5 train.epochs=6": (
        "train.steps (5) and train.epochs (6) are both set, exactly one must be; add "
        "train.epochs=null"
    ),
    "train.epochs=null": (
        "neither train.steps nor train.epochs is set, exactly one must be; add train.steps=<number>"
    ),
    "batch.global_size=8 batch.per_replica=4": (
        "batch.global_size (8) and batch.per_replica (4) are both set, exactly one "
        "must be; add batch.per_replica=null"
    ),
    "batch.global_size=null": (
        "neither batch.global_size nor batch.per_replica is set, exactly one must be; add "
        "batch.global_size=<number>"
    ),
    # Paths.
    "dataset=mnist dataset.path=/no/mnist.npz": "dataset.path (/no/mnist.npz): no such file",
    "dataset=image_folder dataset.path=/no/images": "dataset.path (/no/images): no such directory",
    "init_from=/no/run": "init_from (/no/run): no such run, checkpoint or file",
    "resume=runs/none": f"resume (runs/none): {NO_RUN}",
    "resume=.": f"resume (.): {NO_RUN}",
    "mode=predict resume=never": "mode (predict) needs a run; add resume=<run directory>",
    "mode=predict predict.format=xlsx": "predict.format (xlsx) must be one of csv, parquet",
    "mode=predict predict.split=val": "predict.split (val) must be one of train, test",
    "mode=predict predict.images=/no/images": "predict.images (/no/images): no such directory",
    "mode=export resume=never": "mode (export) needs a run; add resume=<run directory>",
    "resume_allow=[seed]": "resume_allow (['seed']) needs a run; add resume=<run directory>",
    # Targets.
    "model._target_=trainer.models.cn.cnn": (
        "model._target_ (trainer.models.cn.cnn): no module 'cn' in trainer.models; did you "
        "mean 'cnn'?"
    ),
    "model._target_=trainer.models.cnn.cn": (
        "model._target_ (trainer.models.cnn.cn): no 'cn' in trainer.models.cnn; did you mean 'cnn'?"
    ),
    "model._target_=no_such_pkg.f": (
        f"model._target_ (no_such_pkg.f): no module named 'no_such_pkg'; {NOT_INSTALLED}"
    ),
    "model._target_=cnn": "model._target_ (cnn) must be a dotted path; write package.module.name",
    "model._target_=trainer.models.cnn": (
        "model._target_ (trainer.models.cnn) is a module; add the name of a function or class in it"
    ),
    "model=softmax ~model.l2 model._target_=tests.programs.softmax.without_parameters": (
        "model._target_ (tests.programs.softmax.without_parameters) is called with (input_shape, "
        "num_classes), and takes 0 by position; add parameters of these names at its start"
    ),
    "+model.num_classes=3": "model.num_classes (3) is passed by the engine; remove it",
    "~schedule.boundaries schedule=step": (
        "schedule.boundaries has no value; add +schedule.boundaries=<list of int>"
    ),
    "model.width=???": "model.width has no value; add model.width=<value>",
    "seed=${no_such_key}": "seed: Interpolation key 'no_such_key' not found",
    # The command line itself.
    "train": f"'train' {NOT_OVERRIDE}",
    "seed=1=2": f"'seed=1=2' {NOT_OVERRIDE}",
    "model.width=[": f"'model.width=[' {NOT_OVERRIDE}",
    "=3": "'=3' is not an override; write key=value or group=choice",
    "model=cnn,softmax": "'model=cnn,softmax' has several values; add -m to try each",
    "callbacks=none,early_stopping": (
        "'callbacks=none,early_stopping' has several values; add -m to try each, or "
        "write callbacks=[none,early_stopping] for a list"
    ),
    "model=[cnn,softmax]": (
        "model ([cnn,softmax]) must be one choice; write model=<choice>, or -m "
        "model=<choice>,<choice> to try each"
    ),
    "model=cnn,": (
        "'model=cnn,' is not an override; write key=value or group=choice, and quote "
        "special characters"
    ),
    "sëed=1": f"'sëed=1' {NOT_OVERRIDE}",
    "name=ü": f"'name=ü' {NOT_OVERRIDE}",
    "=": "'=' is not an override; write key=value or group=choice",
    "seed==1": f"'seed==1' {NOT_OVERRIDE}",
    "seed:1": f"'seed:1' {NOT_OVERRIDE}",
    "seed = 1": "'=' is not an override; write key=value or group=choice",
    "optimizer..epsilon=1": f"'optimizer..epsilon=1' {NOT_OVERRIDE}",
    "seed='1": f"'seed='1' {NOT_OVERRIDE}",
    "--seed=1": "--seed=1 is a key, no flag; write seed=1",
    "--seed 1": "--seed is a key, no flag; write seed=<value>",
    "--train.steps=5": "--train.steps=5 is a key, no flag; write train.steps=5",
    "--help -m model=cnn": "--help shows one run; leave out -m, and give each key one value",
    "--help modle": "unknown key 'modle'; did you mean 'model'?",
    # Hydra's own keys, and those who look as if.
    "hydra.mode=MULTIRUN": "hydra.mode does nothing here; add -m for a sweep",
    "hydra.run.dir=elsewhere": (
        "hydra.run.dir does nothing here; write runs_dir=<directory> and name=<name>"
    ),
    "-m hydra.sweep.dir=elsewhere seed=1,2": (
        "hydra.sweep.dir does nothing here; write runs_dir=<directory> and name=<name>"
    ),
    "+hydra.callbacks.mine._target_=a.B": (
        "hydra.callbacks.mine._target_ does nothing here; write callbacks=<choice>"
    ),
    "hydra.searchpath=[theirs]": (
        "hydra.searchpath does nothing here; write --config-dir=<directory>"
    ),
    "optimizer/epsilon=1": "unknown key 'optimizer/epsilon'; did you mean 'optimizer'?",
    # Commands.
    "runs nowhere": (
        "runs (nowhere): no such directory; write runs <folder>, with the folder where run "
        "directories are"
    ),
    "runs a b": "unrecognized arguments: b; usage: runs [-h] [--sort METRIC] [--json] [folder]",
    "checkpoints": "the following arguments are required: run; usage: checkpoints [-h] run",
    "checkpoints a": (
        "checkpoints (a): no run there: it has no config.yaml; give the path of a run directory"
    ),
    "diff a": "the following arguments are required: run; usage: diff [-h] run run",
    "diff a b": "diff (a): no run there: it has no config.yaml; give the path of a run directory",
    "completion": "the following arguments are required: shell; usage: completion [-h] shell",
    "completion bsh": "completion (bsh) must be one of bash, zsh, fish; did you mean 'bash'?",
    "rnus": f"'rnus' {NOT_OVERRIDE}; did you mean 'runs'?",
    "chekpoints runs/a": f"'chekpoints' {NOT_OVERRIDE}; did you mean 'checkpoints'?",
    "seed=1 runs": "'runs' is a command; it comes first, and takes no overrides and no -m",
    "-m runs": "'runs' is a command; it comes first, and takes no overrides and no -m",
    "seed=range(1,3)": "'seed=range(1,3)' has several values; add -m to try each",
    "--foo": "unknown flag --foo; see --help",
    "--hepl": "unknown flag --hepl; did you mean '--help'?",
    "--multi-run seed=1,2": "unknown flag --multi-run; did you mean '--multirun'?",
    "seed=1 --config_dir=theirs": "unknown flag --config_dir=theirs; did you mean '--config-dir'?",
    "--config-path=theirs": "unknown flag --config-path=theirs; did you mean '--config-dir'?",
    "--experimental-rerun=a.pickle": "unknown flag --experimental-rerun=a.pickle; see --help",
    "-x": "unknown flag -x; see --help",
    "--config-dir": "--config-dir needs a value; see --help",
    "--config-dir=": "--config-dir needs a value; see --help",
    "--cfg": "--cfg needs a value; see --help",
    "--help=model": "--help takes no value; see --help",
    "--resolve": "--resolve goes with --cfg job; add it",
    "--cfg everything": "--cfg (everything) must be one of job, hydra, all",
    "--cfg job -m seed=1,2": "--cfg shows one run; leave out -m, and give each key one value",
    "--cfg job seed=x": "seed ('x') must be an int",
    "--help seed=x": "seed ('x') must be an int",
    # Sweeps: every point is checked before the first one runs.
    "-m model=cnn train.steps=1,0": "train.steps (0) must be >= 1",
    "-m model=cnn,cn": f"model=cn: no such choice; choose one of {MODELS}; did you mean 'cnn'?",
    "-m seed=1,2 +foo=1": "unknown key 'foo'; see --help for all keys",
    "-m train.steps=1 mode=verify": "mode (verify) is for one run; leave -m out",
    "-m seed=1,2 launch=ray": (
        "launch.ray.address (null) would start a Ray cluster for each point of the sweep; give "
        "the address of one, or set RAY_ADDRESS"
    ),
    "-m seed=1,2 launch=inline": (
        "launch.inline (true) is for one run: a point has a process of its own; leave -m "
        "or launch=inline out"
    ),
    "-m seed=1,2 sweep.name=../x": (
        "sweep.name (../x) must be usable in a directory's name; use letters, digits, "
        "'.', '_' and '-', at most 100"
    ),
    "-m seed=1,2 sweep.on_error=ask": "sweep.on_error (ask) must be one of continue, stop, retry",
    "-m seed=1 sweep.jobs=1,2": (
        "sweep.jobs (1, 2) must be the same in all points; give it one value"
    ),
    "-m seed=1,2 runs_dir=a,b": (
        "runs_dir ('a', 'b') must be the same in all points; give it one value"
    ),
    "-m optimizer.learning_rate=interval(0.1,1)": (
        "optimizer.learning_rate=interval(0.1,1) has infinitely many values; add search=random or "
        "search=optuna, or list values"
    ),
    "-m model=glob(x*)": "model=glob(x*) matches nothing; list values",
    "-m seed=1,": (
        "'seed=1,' is not an override; write key=value or group=choice, and quote special "
        "characters"
    ),
    "search=random": "search (random) is for a sweep; add -m",
    "-m seed=1,x,-1": [
        "seed ('x') must be an int",
        "seed (-1) must be >= 0 and <= 9007199254740991",
    ],
    "-m seed=": "seed ('') must be an int",
    "-m model=cnn,mobilnet,resnt50 seed=1,x": [
        "seed ('x') must be an int",
        f"model=mobilnet: no such choice; choose one of {MODELS}; did you mean 'mobilenet'?",
        f"model=resnt50: no such choice; choose one of {MODELS}; did you mean 'resnet50'?",
    ],
    "-m model=cnn,softmax model.width=3,4": "unknown key 'model.width'; known keys of model: l2",
    "-m model.widht=1,2": "unknown key 'model.widht'; did you mean 'width'?",
    "-m strategy=multi_worker strategy.workers=0,2": "strategy.workers (0) must be >= 1",
    "-m callbacks=[nope],none": (
        "callbacks=nope: no such choice; choose one of early_stopping, none, "
        "reduce_on_plateau; did you mean 'none'?"
    ),
    "-m name=a,b/c": (
        "name (b/c) must be usable in a directory's name; use letters, digits, '.', '_' "
        "and '-', at most 100"
    ),
    "-m train.steps=5,6 train.epochs=7": [
        (
            "train.steps (5) and train.epochs (7) are both set, exactly one must be; add "
            "train.epochs=null"
        ),
        (
            "train.steps (6) and train.epochs (7) are both set, exactly one must be; add "
            "train.epochs=null"
        ),
    ],
    "-m hydra/launcher=nope seed=1,2": (
        "hydra/launcher (nope): no such launcher; use sweep.jobs, or choose one of: "
        "submitit_local, submitit_slurm"
    ),
    "-m sweep.jobs=0": "sweep.jobs (0) must be >= 1",
    "-m sweep.jobs=many seed=1,2": "sweep.jobs ('many') must be an int",
    "sweep.jbos=2": "unknown key 'sweep.jbos'; did you mean 'jobs'?",
    "-m sweep.on_error=stp": (
        "sweep.on_error (stp) must be one of continue, stop, retry; did you mean 'stop'?"
    ),
    "-m sweep.retries=0": "sweep.retries (0) must be >= 1",
    "-m sweep.mode=mx": "sweep.mode (mx) must be one of auto, max, min; did you mean 'max'?",
    "-m sweep.name=a/b": (
        "sweep.name (a/b) must be usable in a directory's name; use letters, digits, '.', "
        "'_' and '-', at most 100"
    ),
    "sweep=3": "sweep (3) must be a mapping; set a key in it, sweep.<key>=<value>",
    # Searches.
    "search=optna": (
        "search=optna: no such choice; choose one of grid, optuna, random; did you mean 'optuna'?"
    ),
    "search.method=bayes": "unknown key 'search.method'; known keys of search: none",
    "-m search=random": (
        "search needs something to vary; write e.g. "
        "optimizer.learning_rate='tag(log,interval(1e-4,1e-1))'"
    ),
    "-m search=random search.trials=0 seed=1,2": "search.trials (0) must be >= 1",
    "-m search=random search.seed=-1 seed=1,2": "search.seed (-1) must be >= 0 and <= 4294967295",
    "-m search=optuna search.prune=maybe seed=1,2": "search.prune ('maybe') must be a bool",
    "-m search=random,grid seed=1,2": (
        "search (choice(random,grid)) changes nothing that is trained, and all its "
        "points would be one run; give it one value"
    ),
    "-m search=random optimizer.learning_rate=interval(1e-1,1e-4)": (
        "optimizer.learning_rate (interval(1e-1,1e-4)) must have finite bounds, the "
        "smaller first; write interval(low,high)"
    ),
    "-m search=random optimizer.learning_rate=tag(log,interval(0,1))": (
        "optimizer.learning_rate (tag(log,interval(0,1))) must be > 0 to be sampled on a log "
        "scale; raise its lower bound"
    ),
    "-m search=random model.width=interval(0,3)": [
        "model.width (0.0) must be an int",
        "model.width (3.0) must be an int",
    ],
    "-m resume=a,b": "resume (a,b) must be one run; resume runs one at a time",
    # Several at once.
    "seed=-1 model.width=0 +foo=1": [
        "unknown key 'foo'; see --help for all keys",
        "seed (-1) must be >= 0 and <= 9007199254740991",
        "model.width (0) must be >= 1",
    ],
}

# A file of the user's --config-dir -> its text and what is told.
WRONG_FILES: dict[str, tuple[str, str]] = {
    "model/broken.yaml": (
        "_target_: a\nb: c: d\n",
        "../theirs/model/broken.yaml:2: mapping values are not allowed here; mend the YAML",
    ),
    "model/open.yaml": (
        "a: [1,\n",
        (
            "../theirs/model/open.yaml:2: expected the node content, but found '<stream "
            "end>'; mend the YAML"
        ),
    ),
    "model/twice.yaml": (
        "a: 1\na: 2\n",
        "../theirs/model/twice.yaml:2: found duplicate key a; mend the YAML",
    ),
    "model/tab.yaml": (
        "a:\t1\n",
        (
            "../theirs/model/tab.yaml:1: found character '\\t' that cannot start any "
            "token; mend the YAML"
        ),
    ),
    "model/two.yaml": (
        "a: 1\n---\na: 2\n",
        "../theirs/model/two.yaml:2: but found another document; mend the YAML",
    ),
    "model/five.yaml": (
        "5\n",
        "a choice's YAML file must hold keys, not one int; write key: value",
    ),
    "model/circle.yaml": (
        "defaults: [circle]\n",
        (
            "a choice builds on itself: the defaults in its YAML file lead back to it; "
            "remove one of them"
        ),
    ),
    "model/base.yaml": (
        "defaults: [cn]\n",
        f"model=cn: no such choice; choose one of base, {MODELS}; did you mean 'cnn'?",
    ),
    "model/environment.yaml": (
        "_target_: trainer.models.cnn.cnn\nwidth: ${oc.env:NOT_SET}\n",
        "model.width: \"Environment variable 'NOT_SET' not found\"",
    ),
    "optimizer/bare.yaml": (
        "_target_: trainer.optimizers.adam.adam\n",
        "optimizer.learning_rate has no value; add it",
    ),
    "callbacks/five.yaml": (
        "a: 5\n",
        "callbacks.a (5) must be a mapping with a _target_, the dotted path of a function or class",
    ),
    "search/more.yaml": (
        "_target_: trainer.sweep.search.random_search.RandomSearch\nzzz: 1\n",
        "unknown key 'search.zzz'; known keys of search: trials, seed",
    ),
    "fault/loud.yaml": (
        "loud: {action: explode}\n",
        (
            "fault.loud.action (explode) must be one of kill, terminate, freeze, crash, "
            "slow, full_disk, corrupt, nan, lose, return"
        ),
    ),
    "experiment/sweep.yaml": (
        "# @package _global_\nsweep:\n  jobs: many\n",
        "experiment/sweep.yaml: sweep.jobs ('many') must be an int",
    ),
    "experiment/choice.yaml": (
        "# @package _global_\ndefaults:\n  - override /model: cn\n",
        f"model=cn: no such choice; choose one of {MODELS}; did you mean 'cnn'?",
    ),
    "model/empty.yaml": (
        "",
        "model ({}) must be a mapping with a _target_, the dotted path of a function or class",
    ),
    "model/list.yaml": (
        "- a\n",
        "model (['a']) must be a mapping with a _target_, the dotted path of a function or class",
    ),
    "model/needs.yaml": (
        "_target_: trainer.models.cnn.cnn\nwidth: ???\n",
        "model.width has no value; add model.width=<value>",
    ),
    "model/typo.yaml": (
        "_target_: trainer.models.cnn.cnn\nwidht: 3\n",
        "unknown key 'model.widht'; did you mean 'width'?",
    ),
    "experiment/key.yaml": (
        "# @package _global_\ntrain:\n  stepz: 3\n",
        "experiment/key.yaml: unknown key 'train.stepz'; did you mean 'steps'?",
    ),
    "experiment/type.yaml": (
        "# @package _global_\ntrain:\n  epochs: many\n",
        "experiment/type.yaml: train.epochs ('many') must be an int",
    ),
    "experiment/group.yaml": (
        "# @package _global_\ndefaults:\n  - override /modle: cnn\n",
        "experiment/group.yaml overrides 'modle', which is no group; did you mean 'model'?",
    ),
    "experiment/pair.yaml": (
        "# @package _global_\ntrain:\n  steps: 3\n",
        (
            "train.steps (3) and train.epochs (30) are both set, exactly one must be; add "
            "train.epochs=null"
        ),
    ),
    "experiment/place.yaml": (
        "train:\n  steps: 3\n",
        (
            "experiment/place.yaml must have the first line '# @package _global_', to set "
            "keys of other groups"
        ),
    ),
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, and replace the launcher."""

    def refuse(*arguments: Any) -> int:
        raise AssertionError("a wrong configuration was launched")

    monkeypatch.setattr(launcher, "run", refuse)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def lines(problems: str | list[str]) -> str:
    return "".join(
        f"error: {line}\n" for line in ([problems] if isinstance(problems, str) else problems)
    )


@pytest.mark.parametrize("command", WRONG)
def test_wrong_command_line_is_reported_in_one_line(command: str, work: Path) -> None:
    outcome = run_here(*command.split())
    assert outcome.err == lines(WRONG[command])
    assert (outcome.code, outcome.out) == (2, "")
    assert not list(work.iterdir())


@pytest.mark.parametrize("file", WRONG_FILES)
def test_wrong_user_file_is_reported_in_one_line(file: str, work: Path, tmp_path: Path) -> None:
    text, problem = WRONG_FILES[file]
    path = tmp_path / "theirs" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    outcome = run_here("--config-dir=../theirs", f"{path.parent.name}={path.stem}")
    assert outcome.err == lines(problem.replace("../theirs", str(tmp_path / "theirs")))
    assert (outcome.code, outcome.out) == (2, "")
    assert not list(work.iterdir())


def test_hydra_makes_no_directory(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = launches(monkeypatch)
    (tmp_path / "theirs" / "experiment").mkdir(parents=True)
    text = (
        "# @package _global_\nhydra: {mode: MULTIRUN, run: {dir: made}, sweep: {dir: "
        "made}, output_subdir: made, job: {chdir: true}}\n"
    )
    (tmp_path / "theirs" / "experiment" / "hydra.yaml").write_text(text)
    assert run_here("--config-dir=../theirs", "experiment=hydra").code == 0
    assert len(stand_in.runs) == 1
    assert not list(work.iterdir())


def test_missing_config_dir_is_reported(work: Path) -> None:
    assert run_here("--config-dir=no/where").err == lines(
        f"--config-dir ({work}/no/where): no such directory"
    )


def test_runs_dir_below_a_file_is_refused(work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = run_here(f"runs_dir={tmp_path}/file/runs")
    fix = "choose another with runs_dir=<directory>"
    assert outcome.err == lines(
        f"runs_dir ({tmp_path}/file/runs) must be a directory, but {tmp_path}/file is a file; {fix}"
    )
    assert outcome.code == 2


def test_resume_allow_refuses_unknown_keys(work: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    outcome = run_here(
        f"resume={tmp_path}/run", "resume_allow=[optimizer.learning_rte,schedul,seed,model]"
    )
    assert outcome.err == lines(
        [
            "resume_allow: unknown key 'optimizer.learning_rte'; did you mean 'learning_rate'?",
            "resume_allow: unknown key 'schedul'; did you mean 'schedule'?",
        ]
    )
    assert outcome.code == 2


def test_unreadable_record_is_reported(work: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    (tmp_path / "run" / "run.json").write_text("{")
    outcome = run_here(f"resume={tmp_path}/run")
    assert outcome.err.startswith(f"error: {tmp_path}/run/run.json cannot be read: it is not JSON")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "command",
    [
        "seed=many",
        "model=mobilnet",
        "-m model=cnn train.steps=1,0",
        "-m search=random",
        "--foo",
        "runs nowhere",
        "diff a b",
    ],
)
def test_separate_process_reports_the_same_without_tensorflow(command: str, work: Path) -> None:
    outcome = run_apart(*command.split(), cwd=work)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", lines(WRONG[command]))
    assert not list(work.iterdir())


@pytest.mark.parametrize("command", ["seed=x", "seed=-1"])
def test_hydra_full_error_shows_traceback(command: str, work: Path) -> None:
    outcome = run_apart(command, cwd=work, env={"HYDRA_FULL_ERROR": "1"})
    assert outcome.code == 1
    assert "Traceback" in outcome.err


class Launches:
    """A stand-in for the launcher: records the runs, and returns exit codes or raises errors."""

    def __init__(self, *answers: int | BaseException) -> None:
        self.answers = list(answers)
        self.runs: list[tuple[Experiment, list[str], str | None]] = []
        self.argv: list[str] = []

    def __call__(self, command: Command, server: object = None) -> int:
        self.runs.append((command.experiment, command.overrides, command.config_dir))
        self.argv = sys.argv
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, BaseException):
            raise answer
        return answer


def launches(monkeypatch: pytest.MonkeyPatch, *answers: int | BaseException) -> Launches:
    stand_in = Launches(*answers)
    monkeypatch.setattr(launcher, "run", stand_in)
    return stand_in


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_exit_code_is_that_of_the_run(
    code: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = launches(monkeypatch, code)
    outcome = run_here("train.steps=5", "seed=1")
    assert (outcome.code, outcome.err, outcome.out) == (code, "", "")
    assert stand_in.runs[0][1:] == (["train.steps=5", "seed=1", "train.epochs=null"], None)
    assert stand_in.argv == ["train.py", "train.steps=5", "seed=1"]
    assert not list(work.iterdir())


def test_config_dir_is_passed_to_launcher(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = launches(monkeypatch)
    (tmp_path / "theirs").mkdir()
    assert run_here("--config-dir", "../theirs").code == 0
    assert stand_in.runs[0][2] == str(tmp_path / "theirs")


def test_resumed_run_is_composed_of_its_overrides(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs" / "model").mkdir(parents=True)
    (tmp_path / "theirs" / "model" / "mine.yaml").write_text(
        "_target_: trainer.models.cnn.cnn\nwidth: 3\n"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    record = {
        "overrides": ["model=mine", "train.steps=5", "train.epochs=null"],
        "config_dir": str(tmp_path / "theirs"),
    }
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    stand_in = launches(monkeypatch)
    assert run_here(f"resume={tmp_path}/run", "train.epochs=9").code == 0
    experiment, _, config_dir = stand_in.runs[0]
    assert (experiment.model["width"], experiment.train.steps, experiment.train.epochs) == (
        3,
        None,
        9,
    )
    assert config_dir == str(tmp_path / "theirs")


def test_resumed_run_is_composed_of_last_command(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    record = {
        "overrides": ["seed=1"],
        "lineage": [
            {"overrides": ["seed=2"]},
            {"overrides": ["seed=3", "resume_allow=[seed]", "jit=true"]},
        ],
    }
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    stand_in = launches(monkeypatch)
    assert run_here(f"resume={tmp_path}/run", "jit=false").code == 0
    experiment, _, _ = stand_in.runs[0]
    assert (experiment.seed, experiment.jit, experiment.resume_allow) == (3, False, [])


def test_resumed_run_needs_its_masked_overrides_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    record = {"overrides": ["seed=1", "init_from=https://<masked>@host/a.npz"]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    done = run_here(f"resume={tmp_path}/run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "init_from was masked in its run.json, because it holds a secret; give" in done.err


def test_multirun_calls_sweep(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(run_sweep, "run_sweep", lambda *arguments: calls.extend(arguments) or 143)
    assert run_here("-m", "model=cnn,softmax", "train.steps=1,2").code == 143
    assert calls == [["model=cnn,softmax", "train.steps=1,2", "train.epochs=null"], None]


def test_internal_error_has_traceback(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches(monkeypatch, RuntimeError("ours"))
    outcome = run_here()
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback")
    assert "hydra" not in outcome.err
    assert outcome.err.endswith("RuntimeError: ours\n")


def test_launcher_config_error_is_reported_in_lines(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches(monkeypatch, ConfigError("first", "second"))
    assert run_here().err == "error: first\nerror: second\n"
