"""Print a CloudFormation template with the state machine of a run, so that cfn-lint checks its structure too."""

import json
from pathlib import Path

ASL = Path(__file__).parents[2] / "framework" / "streamfold" / "lifecycle" / "backfill.asl.json"
ROLE = "arn:aws:iam::123456789012:role/backfill"
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:worker"


def template():
    substitutions = {"WorkerFunctionArn": FUNCTION, "AWS::Partition": "aws"}
    text = ASL.read_text("utf-8")
    for name, value in substitutions.items():
        text = text.replace(f"${{{name}}}", value)
    machine = {"RoleArn": ROLE, "StateMachineType": "STANDARD", "Definition": json.loads(text)}
    return {"Resources": {"Backfill": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine}}}


if __name__ == "__main__":
    print(json.dumps(template(), indent=2))
