"""What is wrong with a job: rules judge what its targets have recorded, each answer is a finding.

`rules/` has one file a rule: the statement that it puts to every target, a plain function over the rows, its
thresholds, and the rules that it explains. `evidence` asks each target all statements at once; `judge` runs the rules
and puts the findings in order. Runs in the CLI.
"""

from __future__ import annotations

from .evidence import Evidence, question_of
from .finding import Finding
from .job import Job
from .judge import Diagnosis, diagnose
from .rule import Rule
from .rules import page, rules

__all__ = ["Diagnosis", "Evidence", "Finding", "Job", "Rule", "diagnose", "page", "question_of", "rules"]
