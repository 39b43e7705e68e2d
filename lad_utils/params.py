"""One YAML a study: read it, check it, and hand a notebook its checked parameters."""

import ast
import difflib
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lad_utils.online import SAMPLERS

REPOSITORY = Path(__file__).resolve().parents[1]
PARAMS = REPOSITORY / "params"
INJECTED = "# Parameters\n"  # papermill opens the cell that it injects with this line
DEFAULTS = "# Default parameters"  # and every notebook's own parameters cell opens with this one

# Arms of the oracle that differ from GRPO in the trainer (grpo.trainer_options, trainers.py), trained on cohorts of `main`.
TRAINERS = ("dr_grpo", "dynamic_sampling", "zero_variance_aware", "sgd", "sgd_unscaled", "random_reward")

LISTS = ("cohorts", "selections", "seeds", "causal_seeds", "mixture_seeds", "size_distinct", "size_steps")
LISTS += ("trainers", "trainer_cohorts", "trainer_seeds", "samplers", "sampler_seeds")

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class ParamsError(ValueError):
    """A study's parameters are wrong; the message is one line that names the key, what was found and what is valid."""

    def _render_traceback_(self):  # IPython prints this instead of a traceback
        return [f"ParamsError: {self}"]


class Study(BaseModel):
    """Everything that a study depends on. No field has a default: a study file writes all of them out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    study: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    # the world and its base model
    world_seed: Annotated[int, Field(ge=0)]  # the one seed: tasks, cohorts, rollouts and training all derive from it
    base_model: str  # the shipped checkpoint: a folder, relative to the repository
    larger_model: str  # a larger model of the same world, whose pass rate is a predictor; empty for none
    smaller_model: str  # a smaller model of the same world, whose lift is a metric; empty for none
    retrain_base: bool
    pretraining: Literal["elicit", "gaps"]  # text with wrong solutions, or with rare and misused verbs
    pretrain_steps: Positive
    pretrain_batch_size: Positive
    pretrain_learning_rate: Rate
    # the frozen score
    gamma: Annotated[int, Field(ge=0, le=8)]
    beta: Annotated[float, Field(ge=0, le=4)]
    vendi_order: Annotated[float, Field(gt=0)]
    embedder: str  # minilm, char_ngrams, or a sentence-transformers folder or hub id
    # cohorts
    pool_size: Positive
    k_screen: Annotated[int, Field(ge=4)]
    cohort_size: Annotated[int, Field(ge=8)]
    cohorts: Annotated[list[str], Field(min_length=3)]
    causal_cohorts: list[str]  # selections from the whole pool that share the rollouts of the designed cohorts
    selection_cohorts: list[str]  # further selections, with rollouts of their own
    mixtures: Annotated[int, Field(ge=0, le=99)]  # Dirichlet mixtures, scored beside the designed cohorts
    # the sampler contract
    prompt_template: Annotated[str, Field(pattern=r"\{prompt\}")]
    stop: list[str]
    max_new_tokens: Positive
    temperature: Annotated[float, Field(gt=0, le=2)]
    # rollouts and evaluation
    engine: Literal["transformers", "replay"]
    replay_folder: str  # where `engine: replay` finds stored rollouts, relative to the repository; else empty
    k_score: Annotated[int, Field(ge=5)]
    replays: Positive  # of stored rollouts, for the curve of agreement against rollouts spent
    n_target: Annotated[int, Field(ge=2)]  # questions of the split `target`, the benchmark side of transfer-aware scores
    n_fresh: Annotated[
        int, Field(ge=0)
    ]  # further questions, drawn after these, on which problem-level findings are tried again
    n_shift: Annotated[int, Field(ge=0)]  # questions of the shifted domain, asked of what was trained on a selection
    k_draws: Positive  # rollouts of each question in each of three independent base draws
    cool_temperatures: list[Annotated[float, Field(gt=0, le=2)]]  # at which the base takes the evaluation, untrained
    other_study: str  # a published study on another base model and the same questions; empty for none
    history: str  # folder of a real run's accuracy by visit, relative to the repository; left out where it is absent
    k_zeros: Positive  # further rollouts of each task that k_score rollouts never solved
    tight_max_new_tokens: Positive  # the length budget under which zeros are told apart by kind
    n_eval: Annotated[int, Field(ge=2)]
    k_eval: Positive
    # GRPO
    seeds: Annotated[list[int], Field(min_length=1)]
    causal_seeds: list[int]  # of the selections that are compared; the others take the first two
    mixture_seeds: list[int]  # of the mixtures; empty where these are scored, but not trained
    size_draws: Annotated[int, Field(ge=0)]  # how often the arm that varies distinct tasks and steps is drawn; 0 for none
    size_distinct: list[Positive]
    size_steps: list[Positive]
    grpo_steps: Positive
    short_steps: Annotated[int, Field(ge=0)]  # of the short run on every cohort, a metric to compare with; 0 for none
    grpo_prompts_per_step: Positive
    grpo_generations: Annotated[int, Field(ge=2)]
    grpo_learning_rate: Rate
    grpo_warmup_steps: Annotated[int, Field(ge=0)]
    grpo_kl_beta: Annotated[float, Field(ge=0)]
    # other trainers, and which task is visited next
    trainers: list[Literal[TRAINERS]]  # each on `trainer_cohorts`, designed cohorts
    trainer_cohorts: list[str]
    trainer_seeds: list[int]
    sgd_learning_rate: Rate  # of the trainer `sgd`
    sgd_unscaled_learning_rate: Rate  # of `sgd_unscaled`, whose gradients are smaller
    samplers: list[Literal[SAMPLERS]]  # each on the tasks of `sampler_cohort`, a designed cohort; empty for none
    sampler_cohort: str
    sampler_seeds: list[int]
    sampler_steps: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _consistent(self):
        visits = self.grpo_steps * self.grpo_prompts_per_step
        if visits % self.cohort_size:
            raise ValueError(
                f"grpo_steps x grpo_prompts_per_step = {visits} is no multiple of cohort_size = {self.cohort_size}: "
                "tasks would be visited unequally"
            )
        if self.cohort_size % self.grpo_prompts_per_step:
            raise ValueError(
                f"cohort_size = {self.cohort_size} is no multiple of grpo_prompts_per_step = {self.grpo_prompts_per_step}: "
                "the last tasks of a cohort would be dropped"
            )
        if self.k_score < self.gamma + 3:
            raise ValueError(f"k_score = {self.k_score}, but the score's interval needs at least gamma + 3 = {self.gamma + 3}")
        if self.stop:
            raise ValueError(
                f"stop = {self.stop}: TRL's own generation has no stop strings, so the sampler can't be one and the same"
            )
        if self.size_draws and not (self.size_distinct and self.size_steps):
            raise ValueError("size_draws is not 0, but size_distinct or size_steps is empty")
        for steps in self.size_steps:
            if steps * self.grpo_prompts_per_step % self.cohort_size:
                raise ValueError(
                    f"size_steps: {steps} steps x grpo_prompts_per_step = {steps * self.grpo_prompts_per_step} is no multiple "
                    f"of cohort_size = {self.cohort_size}: tasks would be visited unequally"
                )
        for distinct in self.size_distinct:
            if self.cohort_size % distinct:
                raise ValueError(f"size_distinct: {distinct} tasks do not fill cohort_size = {self.cohort_size} evenly")
        if self.tight_max_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"tight_max_new_tokens = {self.tight_max_new_tokens} is no tighter than max_new_tokens = {self.max_new_tokens}"
            )
        from lad_utils.cohorts import FAMILY

        unknown = [n for n in [*self.cohorts, *self.selections] if n not in FAMILY]
        if unknown:
            raise ValueError(f"cohorts: {unknown[0]!r} is unknown; cohorts: {', '.join(FAMILY)}")
        for name in [*self.trainer_cohorts, *([self.sampler_cohort] if self.samplers else [])]:
            if name not in self.cohorts:
                raise ValueError(f"{name!r} of trainer_cohorts and sampler_cohort is none of the study's designed cohorts")
        if (self.trainers and not (self.trainer_cohorts and self.trainer_seeds)) or (self.samplers and not self.sampler_seeds):
            raise ValueError("trainers or samplers are listed, but no cohorts or seeds for them")
        if self.samplers and not self.sampler_steps:
            raise ValueError("samplers are listed, but sampler_steps is 0")
        for name in LISTS:
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} lists the same entry twice: {values}")
        return self

    @property
    def selections(self) -> list[str]:
        """Cohorts of the arms `causal` and `selection`."""
        return [*self.causal_cohorts, *self.selection_cohorts]


def check(values: dict, *, where: str) -> Study:
    """`values` as a Study, or a ParamsError of one line naming the first bad key."""
    unknown = [k for k in values if k not in Study.model_fields]
    if unknown:
        close = difflib.get_close_matches(str(unknown[0]), Study.model_fields, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ParamsError(f"{where}: unknown key {unknown[0]!r}{hint} Valid keys: {', '.join(Study.model_fields)}")
    try:
        return Study(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "study"
        found = "" if first["type"] == "missing" or not first["loc"] else f", found {first['input']!r}"
        if isinstance(first["input"], str) and first["type"] == "float_type":
            found += " (text; in YAML write 1.0e-6, not 1e-6)"
        raise ParamsError(f"{where}: key {key!r}: {first['msg']}{found}. Valid keys: {', '.join(Study.model_fields)}") from None


def load_study(name: str | Path) -> Study:
    """The study called `name` in `params/`, or the one in the YAML file `name`."""
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else PARAMS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PARAMS.glob("*.yaml")))
        raise ParamsError(f"study {str(name)!r}: {path.name} not found in params/; studies there: {known}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ParamsError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path.name}: expected key: value lines, found {type(values).__name__}")
    return check(values, where=path.name)


def _assigned(source: str) -> list[str]:
    """Names that a cell assigns at its top level."""
    names = []
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names += [t.id for t in targets if isinstance(t, ast.Name)]
    return names


def resolve(namespace: dict) -> Study:
    """A notebook's checked Study from its `globals()`, after the parameters cell.

    The parameters cell names the study (and what else the notebook alone takes, such as `cohort`); whatever papermill
    injects overrides the study's file. Papermill only warns of names that nobody knows and injects at the top when the
    `parameters` tag is missing, where the notebook's own defaults then win: both are errors here.
    """
    cells = namespace.get("In", [])
    if not any(cells):  # nbval keeps no history, and injects nothing
        return load_study(namespace["study"])
    defaults = max((i for i, c in enumerate(cells) if c.startswith(DEFAULTS)), default=None)
    if defaults is None:
        raise ParamsError(f"no cell starts with {DEFAULTS!r}: run the parameters cell first")
    own = _assigned(cells[defaults])
    injected = max((i for i, c in enumerate(cells) if c.startswith(INJECTED)), default=None)
    if injected is not None and injected < defaults:
        raise ParamsError("parameters were injected above the notebook's parameters cell: that cell lacks the tag 'parameters'")
    names = [*own, *(_assigned(cells[injected]) if injected is not None else [])]
    unknown = [n for n in names if n not in Study.model_fields and n not in own]
    if unknown:
        close = difflib.get_close_matches(unknown[0], [*Study.model_fields, *own], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        extra = ", ".join(n for n in own if n != "study")
        valid = ", ".join(Study.model_fields) + (f"; of this notebook: {extra}" if extra else "")
        raise ParamsError(f"notebook parameters: unknown key {unknown[0]!r}{hint} Valid keys: {valid}")
    file_values = load_study(namespace["study"]).model_dump()
    overrides = {n: namespace[n] for n in names if n in Study.model_fields and n != "study"}
    return check(file_values | overrides, where="notebook parameters")
