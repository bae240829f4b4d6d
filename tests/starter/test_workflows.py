"""The workflows, the Makefile and the stages that a new application gets fit together."""

import re
import subprocess
import tomllib

import pytest
import yaml

from streamfold.starter.project import new_project
from streamfold.starter.templates import STAGES

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
OF_CONTEXT = re.compile(r"\b(inputs|steps|vars|needs)\.([\w-]+)(?:\.outputs\.(\w+))?")
STEP_KEYS = {"id", "if", "name", "run", "uses", "with"}
JOB_KEYS = {"env", "environment", "needs", "runs-on", "steps", "timeout-minutes", "uses", "with"}
VARIABLES = {"ROLE_ARN", "AWS_REGION", "TABLE"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "my.shop-1"
    new_project(made, "blank", "my_shop")
    return made


@pytest.fixture(scope="module")
def workflows(folder):
    files = sorted((folder / ".github/workflows").iterdir())
    return {file.name: yaml.load(file.read_text("utf-8"), yaml.BaseLoader) for file in files}


def jobs(workflows):
    return [(name, job_name, job) for name, content in workflows.items() for job_name, job in content["jobs"].items()]


def steps(workflows):
    return [(name, step) for name, _, job in jobs(workflows) for step in job.get("steps", [])]


def test_there_are_three_workflows(workflows):
    assert [*workflows] == ["deploy.yml", "rollout.yml", "test.yml"]
    assert workflows["deploy.yml"]["on"] == "workflow_dispatch", "nothing is deployed unless somebody asks"


def test_every_job_and_step_is_of_a_known_form(workflows):
    for name, job_name, job in jobs(workflows):
        assert job.keys() <= JOB_KEYS, (name, job_name)
        assert ("uses" in job) != ("steps" in job), (name, job_name)
        assert "uses" in job or job["timeout-minutes"].isdecimal(), (name, job_name)
    for name, step in steps(workflows):
        assert step.keys() <= STEP_KEYS, (name, step)
        assert ("uses" in step) != ("run" in step), (name, step)
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]), (name, step)


def test_a_job_follows_jobs_and_calls_workflows_that_exist_with_their_inputs(workflows):
    for name, _, job in jobs(workflows):
        assert job.get("needs") in (None, *workflows[name]["jobs"])
        if "uses" in job:
            called = workflows[job["uses"].removeprefix("./.github/workflows/")]
            assert job["with"].keys() == called["on"]["workflow_call"]["inputs"].keys()
            assert called["permissions"].items() <= workflows[name]["permissions"].items(), "a caller's rights bound it"


def test_expressions_name_inputs_steps_and_variables_that_exist(workflows, folder):
    for name, content in workflows.items():
        text = (folder / ".github/workflows" / name).read_text("utf-8")
        assert text.count("${{") == len(EXPRESSION.findall(text))
        given = [step["if"] for _, step in steps({name: content}) if "if" in step]
        ids = {step["id"] for _, step in steps({name: content}) if "id" in step}
        inputs = (content["on"].get("workflow_call") or {}).get("inputs", {}) if isinstance(content["on"], dict) else {}
        for context, named, output in OF_CONTEXT.findall("\n".join([*EXPRESSION.findall(text), *given])):
            known = {"inputs": inputs, "steps": ids, "vars": VARIABLES}[context]
            assert named in known, (name, context, named)
            assert not output or f'"{output}=' in text, (name, output)


def test_scripts_are_of_the_shell_and_call_targets_of_the_makefile(workflows, folder):
    makefile = (folder / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == targets
    called = set()
    for name, step in steps(workflows):
        if "run" in step:
            script = EXPRESSION.sub("x", step["run"])
            checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            assert checked.stderr == "", (name, script)
            called |= set(re.findall(r"\bmake (?:-C \S+ )?(\w+)", script))
    assert called <= targets
    assert called >= {"check", "rehearse", "diff", "deploy", "watch", "replay", "tools"}


def test_a_rollout_looks_rehearses_deploys_watches_and_rolls_back_in_this_order(workflows):
    ran = [step.get("run", "") for _, step in steps({"rollout.yml": workflows["rollout.yml"]})]
    order = ["make check", "make rehearse", "make diff", "-C ../deployed", "make deploy OLDER_CODE=$", "make watch"]
    order += ["-C ../deployed", "make deploy OLDER_CODE=off", "git tag"]
    at = -1
    for text in order:
        at = next(number for number, run in enumerate(ran) if number > at and text in run)


def test_recipes_of_the_makefile_are_of_the_shell(folder):
    targets = ["test", "check", "tools", "rehearse", "diff", "deploy", "watch", "build-Projector"]
    command = ["make", "--dry-run", "--no-print-directory", *targets, "TABLE=t", "STAGE=prod"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    checked = subprocess.run(["bash", "-n"], input=ran.stdout, capture_output=True, text=True, check=False)
    assert checked.stderr == ""
    assert "sam deploy --config-env prod" in ran.stdout
    assert "streamfold doctor --stack my-shop-prod" in ran.stdout


def test_each_stage_has_a_stack_of_its_own(folder):
    content = tomllib.loads((folder / "samconfig.toml").read_text("utf-8"))
    found = {stage: content[stage]["deploy"]["parameters"] for stage in STAGES}
    assert {each["stack_name"] for each in found.values()} == {"my-shop-dev", "my-shop-stage", "my-shop-prod"}
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,127}", each["stack_name"]) for each in found.values())
    assert not any("parameter_overrides" in each for each in found.values()), "a command's would replace them all"
