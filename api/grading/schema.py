"""Grading, as the OpenAPI document describes it."""

from typing import Any

from api.grading import bodies
from api.openapi import Component, JsonSchema, closed, component, described, ref
from api.runs import schema as runs
from api.runs.schema import NULL, URL, WHEN, Array, Attention, ResultArray, choice
from kernels.arrays import DISTRIBUTIONS
from kernels.grading.case import ANSWERS, MASKS, MAX_NUMBERS, MAX_PAIRS, MAX_POINTS, SEED_SCOPES, VISIBILITIES
from kernels.grading.problem import KINDS, MAX_CASES, POLICIES, PROPERTIES
from kernels.limits import MAX_SEED
from kernels.spec.run import DTYPES
from workers.grading import webhooks
from workers.grading.assignments import FEEDBACK_LEVELS, FEEDBACK_SITUATIONS
from workers.grading.models import (
    USER_REF_LENGTH,
    DeliveryStatus,
    RegradePolicy,
    RegradeScope,
    ScorePolicy,
    State,
    Verdict,
    WorkStatus,
)
from workers.grading.scoring import LATE_POLICIES

TEXT: JsonSchema = {"type": "string"}
NUMBER: JsonSchema = {"type": "number"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
POSITIVE: JsonSchema = {"type": "integer", "minimum": 1}
ANYTHING: JsonSchema = {"type": "object", "additionalProperties": True}
FIGURE: JsonSchema = {"anyOf": [{"type": "number"}, choice("inf", "-inf", "nan"), {"enum": [None]}]}
USER_REF = described(
    "string",
    "Whose it is, in your words: we know students by nothing else. Printable characters.",
    minLength=1,
    maxLength=USER_REF_LENGTH,
)
EXTERNAL_ID = described(
    "string",
    "Your own name of the submission, unique in its assignment: sent again with the same answers it is the "
    "same submission, with others it is refused (409).",
    minLength=1,
    maxLength=USER_REF_LENGTH,
)


def nullable(schema: JsonSchema) -> JsonSchema:
    """Null as well; of an enumeration that is one more alternative."""
    return {"anyOf": [NULL, schema]} if "enum" in schema else runs.nullable(schema)


def words(values: Any, text: str, **more: Any) -> JsonSchema:
    return choice(*(str(value) for value in values), description=text, **more)


def opened(properties: dict[str, JsonSchema], *required: str, **more: Any) -> JsonSchema:
    """An object of ours that may grow."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": True, **more}


def listed(items: JsonSchema, text: str = "", **more: Any) -> JsonSchema:
    return {"type": "array", "items": items, **({"description": text} if text else {}), **more}


def page(name: str, of: type[Component]) -> type[Component]:
    fields = {"next": nullable(URL), "previous": nullable(URL), "results": listed(ref(of))}
    return component(name, closed(fields, required=tuple(fields)), of)


# --- Problems --------------------------------------------------------------------------------

ProblemCase = component(
    "ProblemCase",
    closed(
        {
            "name": described("string", "Unique in the problem.", maxLength=64),
            "points": described("number", "Shared by its answers.", minimum=0, maximum=MAX_POINTS),
            "visibility": words(
                VISIBILITIES, "Until when a student reads no numbers of it.", default="visible"
            ),
            "seed_scope": words(
                SEED_SCOPES, "Whether inputs are drawn for everybody, each student or each submission."
            ),
            "seed": nullable(
                described(
                    "integer", "Of a fixed case: the number it is drawn from.", minimum=0, maximum=MAX_SEED
                )
            ),
            "distribution": choice(*DISTRIBUTIONS, default="peaked"),
            "shape": opened(
                {
                    "batch": POSITIVE,
                    "num_heads": POSITIVE,
                    "num_kv_heads": POSITIVE,
                    "q_len": COUNT,
                    "kv_len": COUNT,
                    "head_dim": POSITIVE,
                    "v_head_dim": POSITIVE,
                },
                description=f"At most {MAX_PAIRS:,} pairs: batch · heads · q_len · kv_len.",
            ),
            "inputs": described("object", "Instead of a shape: the arrays.", additionalProperties=ref(Array)),
            "attention": ref(Attention),
            "mask": nullable(words(MASKS, "A mask is drawn too, of this kind.")),
            "operations": described(
                "array", "Of kind paging: what is asked of the allocator.", items=ANYTHING
            ),
        },
        required=("name",),
    ),
    Array,
    Attention,
)
PROBLEM_FIELDS: dict[str, JsonSchema] = {
    "slug": described("string", "Its name in addresses, yours alone.", pattern="^[a-z0-9-]+$", maxLength=64),
    "title": {"type": "string", "maxLength": 200},
    "statement": described("string", "What is asked, in Markdown."),
    "hints": listed(TEXT, "Read one after the other."),
    "solution": described("string", "Worked out; others than you read it of the course's problems only."),
    "kind": choice(*KINDS, default="attention"),
    "spec": opened(
        {"dtype": choice(*DTYPES, default="float32"), "attention": ref(Attention)},
        description="The computation, as runs have it.",
    ),
    "answer": listed(
        closed({"name": words(ANSWERS, "A result."), "points": NUMBER}, required=("name",)),
        "What is asked for.",
    ),
    "cases": listed(ref(ProblemCase), maxItems=MAX_CASES),
    "tolerance": opened(
        {
            "policy": words(
                POLICIES, "As far as rounding takes a right computation, or atol + rtol·|expected|."
            ),
            "per_dtype": described(
                "object",
                "By the dtype of the answer.",
                additionalProperties=closed({"atol": NUMBER, "rtol": NUMBER}),
            ),
            "max_mismatch_ratio": described("number", "How many numbers may be off.", minimum=0, maximum=0.5),
            "nan_policy": choice("reject"),
            "least_dtype": nullable(described("string", "What is less precise is low_precision.")),
        }
    ),
    "properties": listed(words(PROPERTIES, "Checked by further cases that we make.")),
}
ProblemRequest = component(
    "ProblemRequest",
    {
        "type": "object",
        "properties": PROBLEM_FIELDS,
        "required": ["slug", "cases"],
        "additionalProperties": False,
    },
    ProblemCase,
    Attention,
)
MutantTable = component(
    "MutantTable",
    opened(
        {
            "killed": described("integer", "Relevant wrong computations that some case refuses."),
            "total": described("integer", "Wrong computations that differ from the right one here."),
            "publishable": {"type": "boolean"},
            "problems": listed(TEXT, "Why it may not be published."),
            "rows": listed(ANYTHING, "For each code: relevant, coincides, killed_by, survives."),
            "precision": described("object", "Whether the right computation in a dtype passes, and should."),
            "least_dtype": nullable(
                described(
                    "string",
                    "Answers less precise than this are held to it: in less precise ones a mistake could "
                    "pass as rounding. null: nothing is held to more than tolerance says.",
                )
            ),
            "suggestions": listed(ANYTHING, "What would refuse a survivor, found by trying."),
        },
        description="Every wrong computation that students make, run against the problem: which cases refuse "
        "it, which would let it pass, and what inputs would refuse it.",
    ),
)
Problem = component(
    "GradingProblem",
    opened(
        {
            "id": TEXT,
            **PROBLEM_FIELDS,
            "version": described("integer", "A version never changes; another content is another version."),
            "versions": listed({"type": "integer"}, "Those that you may see, the latest first."),
            "is_mine": {"type": "boolean"},
            "created_at": WHEN,
            "published_at": nullable(WHEN),
            "mutants": nullable(ref(MutantTable)),
        },
        "id",
        "slug",
        "version",
        "cases",
        "mutants",
    ),
    ProblemCase,
    Attention,
    MutantTable,
)
ProblemPage = page("GradingProblemPage", Problem)
CaseInputs = described(
    "object",
    "The arrays by name (q, k, v …), and `attention`: the computation of this case.",
    additionalProperties={"anyOf": [ref(ResultArray), ANYTHING, {"enum": [None]}]},
)
Inputs = component(
    "ProblemInputs",
    opened(
        {
            "problem": TEXT,
            "version": POSITIVE,
            "seed": {"type": "integer"},
            "cases": {"type": "object", "additionalProperties": CaseInputs},
        },
        "problem",
        "cases",
    ),
    ResultArray,
)

PROBLEM_EXAMPLE: JsonSchema = {
    "slug": "causal-attention",
    "title": "Causal attention",
    "statement": "Compute softmax(QKᵀ/√d)V, each query seeing the keys up to its own position.",
    "spec": {"dtype": "float32", "attention": {"is_causal": True}},
    "answer": [{"name": "out", "points": 1}],
    "cases": [
        {
            "name": "small",
            "points": 2,
            "visibility": "visible",
            "seed_scope": "student",
            "distribution": "peaked",
            "shape": {"num_heads": 2, "q_len": 5, "kv_len": 7, "head_dim": 4},
        },
        {
            "name": "hidden",
            "points": 3,
            "visibility": "after_due_date",
            "seed_scope": "student",
            "distribution": "peaked",
            "shape": {"num_heads": 4, "num_kv_heads": 2, "q_len": 33, "kv_len": 33, "head_dim": 16},
        },
    ],
}

# --- Assignments -----------------------------------------------------------------------------

ASSIGNMENT_FIELDS: dict[str, JsonSchema] = {
    "problem": described("string", "The slug of a published problem."),
    "problem_version": nullable(described("integer", "Default: the latest published.", minimum=1)),
    "title": {"type": "string", "maxLength": bodies.MAX_TITLE},
    "release_date": nullable({**WHEN, "description": "Before it nobody sees inputs or hands in."}),
    "due_date": nullable(WHEN),
    "late_due_date": nullable({**WHEN, "description": "Until when a late submission is taken."}),
    "late_policy": closed(
        {
            "type": words(LATE_POLICIES, "Lateness costs nothing, a fraction, or one for each day begun."),
            "fraction": {"type": "number", "minimum": 0, "maximum": 1},
        },
        nullable=True,
    ),
    "total_points": nullable(
        described("number", "Default: the points of the cases.", minimum=0, maximum=bodies.MAX_POINTS)
    ),
    "submission_limit": closed(
        {
            "count": {"type": "integer", "minimum": 1, "maximum": bodies.MAX_COUNT},
            "window_s": nullable(described("integer", "null: ever.", minimum=1, maximum=bodies.MAX_WINDOW)),
        },
        required=("count",),
        nullable=True,
        description="How many submissions a student has. What failed on our side counts for none.",
    ),
    "score_policy": words(ScorePolicy.values, "Which submission counts.", default="best"),
    "feedback": closed(
        {name: choice(*FEEDBACK_LEVELS, default="full") for name in FEEDBACK_SITUATIONS},
        description="How much of a verdict a student reads: while handing in is possible, after the "
        "last try, after the last due date; and how much staff does.",
        nullable=True,
    ),
}
AssignmentRequest = component(
    "AssignmentRequest",
    {
        "type": "object",
        "properties": ASSIGNMENT_FIELDS,
        "required": ["problem"],
        "additionalProperties": False,
    },
)
CHANGEABLE = ("title", "release_date", "due_date", "late_due_date", "feedback")
AssignmentChange = component(
    "AssignmentChange",
    closed(
        {
            **{name: ASSIGNMENT_FIELDS[name] for name in CHANGEABLE},
            "grades_published": described("boolean", "From then on `after_published` cases are visible."),
        }
    ),
)
Assignment = component(
    "Assignment",
    opened(
        {
            "id": TEXT,
            **ASSIGNMENT_FIELDS,
            "phase": words(("not released", "open", "closed"), "Now."),
            "created_at": WHEN,
            "grades_published_at": nullable(WHEN),
            "seed_commitment_sha256": described("string", "SHA-256 of the seed's bytes, from the beginning."),
            "seed": nullable(
                described("string", "In hex, after the last due date: who has it can make all inputs again.")
            ),
        },
        "id",
        "problem",
        "problem_version",
        "seed_commitment_sha256",
        "seed",
        "total_points",
    ),
)
AssignmentPage = page("AssignmentPage", Assignment)
Variant = component(
    "Variant",
    opened(
        {
            "user_ref": USER_REF,
            "problem": TEXT,
            "problem_version": POSITIVE,
            "attempt": described("integer", "Of the student: cases drawn for each submission depend on it."),
            "cases": {"type": "object", "additionalProperties": CaseInputs},
        },
        "user_ref",
        "cases",
    ),
    ResultArray,
)
TokenRequest = component(
    "SubmitTokenRequest",
    closed(
        {
            "name": {"type": "string", "maxLength": 100},
            "expires_days": nullable({"type": "integer", "minimum": 1, "maximum": 36_500}),
        },
        required=("name",),
    ),
)
Token = component(
    "SubmitToken",
    closed(
        {
            "name": TEXT,
            "token": described("string", "Shown this once."),
            "scopes": listed(TEXT),
            "expires_at": nullable(WHEN),
        },
        required=("name", "token", "scopes", "expires_at"),
    ),
)
KeysRequest = component(
    "KeysRequest",
    closed({"user_refs": listed(USER_REF, maxItems=bodies.MAX_KEYS)}, required=("user_refs",)),
)
StudentKey = component(
    "StudentKey",
    closed(
        {"user_ref": USER_REF, "created_at": WHEN, "last_used_at": nullable(WHEN)},
        required=("user_ref", "created_at", "last_used_at"),
    ),
)
StudentKeyPage = page("StudentKeyPage", StudentKey)
Keys = component(
    "StudentKeys",
    closed(
        {
            "keys": listed(
                closed(
                    {"user_ref": USER_REF, "key": TEXT, "variant": URL, "submissions": URL},
                    required=("user_ref", "key", "variant", "submissions"),
                ),
                "With `?key=` each acts for its student.",
            )
        },
        required=("keys",),
    ),
)

# --- Submissions -----------------------------------------------------------------------------

AnswersOf = described(
    "object",
    f'By case and name: `{{"case": {{"out": ARRAY}}}}`. At most {MAX_NUMBERS:,} numbers. What is odd about '
    "an array (its shape, NaN, a missing case) is graded, not refused.",
    additionalProperties={"type": "object", "nullable": True, "additionalProperties": nullable(ref(Array))},
)
SUBMISSION_FIELDS: dict[str, JsonSchema] = {
    "user_ref": USER_REF,
    "external_id": nullable(EXTERNAL_ID),
    "answers": AnswersOf,
    "attempt": nullable(described("integer", "That of the variant which is answered; 409 when stale.")),
    "submitted_at": nullable({**WHEN, "description": "Of staff, who hand in for others: when it was."}),
}
SubmissionRequest = component(
    "SubmissionRequest", closed(SUBMISSION_FIELDS, required=("user_ref", "answers")), Array
)
BatchRequest = component(
    "BatchRequest",
    closed(
        {"submissions": listed(ref(SubmissionRequest), maxItems=bodies.MAX_BATCH)}, required=("submissions",)
    ),
    SubmissionRequest,
)
GradedTest = component(
    "GradedTest",
    opened(
        {
            "name": TEXT,
            "number": TEXT,
            "score": nullable(NUMBER),
            "max_score": NUMBER,
            "status": nullable(choice("passed", "failed")),
            "output": TEXT,
            "output_format": TEXT,
            "tags": listed(TEXT),
            "visibility": choice(*VISIBILITIES),
            "extra_data": ANYTHING,
        },
        "name",
        "max_score",
        "visibility",
        description="As Gradescope has it. Of one that is still hidden there are no numbers.",
    ),
)
Hypothesis = component(
    "Hypothesis",
    opened(
        {
            "code": described("string", "The mistake that this answer fits."),
            "residual": {**FIGURE, "description": "How far the answer is from that mistake."},
        },
        "code",
        "residual",
    ),
)
GradedNumerics = component(
    "GradedNumerics",
    opened(
        {
            **dict.fromkeys(
                ("max_abs_err", "max_rel_err", "max_ulp", "rmse", "atol", "rtol", "reference_err"), FIGURE
            ),
            "mismatched": nullable(COUNT),
            "total": nullable(COUNT),
            "worst": listed(ANYTHING, "The cells that are furthest off."),
        },
        description="Against the float64 reference.",
    ),
)
VERDICT: dict[str, JsonSchema] = {
    "verdict": nullable(words((*Verdict.values, "internal_error"), "null: not graded yet.")),
    "reason": nullable(described("string", "numeric_mismatch, non_finite, shape_mismatch …")),
    "score": nullable(NUMBER),
    "max_score": nullable(NUMBER),
    "tests": listed(ref(GradedTest)),
    "numerics": nullable(ref(GradedNumerics)),
    "hypotheses": listed(ref(Hypothesis)),
    "notes": listed(TEXT),
}
Judgement = component(
    "Judgement",
    opened({**VERDICT, "problem": nullable(TEXT), "seed": nullable({"type": "integer"})}, *VERDICT),
    GradedTest,
    GradedNumerics,
    Hypothesis,
)
SubmissionFields: dict[str, JsonSchema] = {
    "id": TEXT,
    "assignment": TEXT,
    "external_id": nullable(TEXT),
    "user_ref": USER_REF,
    "attempt": described("integer", "Which of the student's it is."),
    "problem_version": POSITIVE,
    "submitted_at": WHEN,
    "is_late": {"type": "boolean"},
    "deduction": described("number", "The fraction of the score that lateness cost."),
    "status": choice(*(str(state) for state in State.values)),
    "counts_towards_limit": {"type": "boolean"},
    "finished_at": nullable(WHEN),
    **VERDICT,
    "feedback": words(FEEDBACK_LEVELS, "How much of it is shown."),
    "fault": nullable(choice("platform", description="An error is ours; it costs nobody a try.")),
    "error": nullable(ANYTHING),
    "earlier": listed(ANYTHING, "For staff: the scores that regrades replaced."),
}
Submission = component(
    "Submission",
    opened(
        SubmissionFields, "id", "status", "verdict", "score", "max_score", "tests", "counts_towards_limit"
    ),
    GradedTest,
    GradedNumerics,
    Hypothesis,
)
SubmissionPage = page("SubmissionPage", Submission)
BatchAnswer = component(
    "BatchAnswer",
    closed(
        {
            "results": listed(
                closed(
                    {
                        "external_id": nullable(TEXT),
                        "id": nullable(TEXT),
                        "status": words(
                            (*State.values, "refused"), "refused: nothing was recorded, see error."
                        ),
                        "error": described("object", "A problem object.", additionalProperties=True),
                    },
                    required=("external_id", "id", "status"),
                ),
                "In the order of the batch.",
            )
        },
        required=("results",),
    ),
)
Gradescope = component(
    "GradescopeResults",
    opened({"score": NUMBER, "tests": listed(ref(GradedTest)), "output": TEXT}, "score", "tests"),
    GradedTest,
)
PrairieLearn = component(
    "PrairieLearnResults",
    opened(
        {
            "gradable": {"type": "boolean"},
            "score": described("number", "0 … 1", minimum=0, maximum=1),
            "message": TEXT,
            "tests": listed(ANYTHING),
        },
        "gradable",
    ),
)

Results = component(
    "SubmissionResults", {"anyOf": [ref(Gradescope), ref(PrairieLearn)]}, Gradescope, PrairieLearn
)

# --- Grades, regrades, incidents -------------------------------------------------------------

GradeRow = component(
    "GradeRow",
    opened(
        {
            "user_ref": USER_REF,
            "score": nullable(NUMBER),
            "max_score": NUMBER,
            "status": choice(*(str(state) for state in State.values)),
            "verdict": nullable(TEXT),
            "submitted_at": WHEN,
            "is_late": {"type": "boolean"},
            "submissions": described("integer", "How many the student handed in."),
            "submission": described("string", "The id of the one that counts."),
            "external_id": nullable(TEXT),
        },
        "user_ref",
        "score",
        "max_score",
        "status",
        "submitted_at",
    ),
)
Grades = component(
    "Grades",
    closed(
        {"assignment": TEXT, "score_policy": TEXT, "results": listed(ref(GradeRow))},
        required=("assignment", "score_policy", "results"),
    ),
    GradeRow,
)
RegradeRequest = component(
    "RegradeRequest",
    closed(
        {
            "scope": words(RegradeScope.values, "Of each student.", default="all"),
            "policy": words(RegradePolicy.values, "max: nobody loses points.", default="replace"),
            "dry_run": described("boolean", "Only say what would change.", default=False),
            "problem_version": nullable(described("integer", "Default: the assignment's.", minimum=1)),
        }
    ),
)
Regrade = component(
    "Regrade",
    opened(
        {
            "id": TEXT,
            "assignment": TEXT,
            "status": choice(*(str(status) for status in WorkStatus.values)),
            "scope": TEXT,
            "policy": TEXT,
            "dry_run": {"type": "boolean"},
            "problem_version": POSITIVE,
            "created_at": WHEN,
            "finished_at": nullable(WHEN),
            "judged": nullable(COUNT),
            "changed": nullable(COUNT),
            "differences": listed(ANYTHING, "For each student whose scores change: before, after."),
            "error": nullable(ANYTHING),
        },
        "id",
        "status",
        "dry_run",
        "differences",
    ),
)
RegradePage = page("RegradePage", Regrade)
Incident = component(
    "Incident",
    closed(
        {
            "id": TEXT,
            "kind": TEXT,
            "detail": TEXT,
            "created_at": WHEN,
            "submissions": listed(
                closed(
                    {"id": TEXT, "user_ref": USER_REF, "status": TEXT}, required=("id", "user_ref", "status")
                )
            ),
        },
        required=("id", "kind", "detail", "created_at", "submissions"),
    ),
)
IncidentPage = page("IncidentPage", Incident)

# --- Grading in one call ---------------------------------------------------------------------

GradeRequest = component(
    "GradeRequest",
    closed(
        {
            "problem": described("string", "The slug of a problem; or else spec and inputs."),
            "version": nullable(POSITIVE),
            "seed": described("integer", "Of its inputs.", minimum=0, maximum=MAX_SEED, default=0),
            "spec": opened({"dtype": choice(*DTYPES), "attention": ref(Attention)}),
            "inputs": {"type": "object", "additionalProperties": ref(Array)},
            "answer": listed(ANYTHING),
            "tolerance": ANYTHING,
            "answers": described(
                "object",
                "By case and name, or, of a single case, by name.",
                additionalProperties={"anyOf": [ref(Array), ANYTHING, {"enum": [None]}]},
            ),
        },
        required=("answers",),
    ),
    Array,
    Attention,
)

QUESTION_EXAMPLE: JsonSchema = {
    "spec": {"dtype": "float32", "attention": {}},
    "inputs": {"q": [[1, 0], [0, 1]], "k": [[1, 0], [0, 1]], "v": [[1, 0], [0, 2]]},
    "answers": {"out": [[0.7310585786, 0.5378828427], [0.2689414214, 1.4621171573]]},
}

# --- Webhooks --------------------------------------------------------------------------------

WEBHOOK_EVENTS = listed(choice(*webhooks.EVENTS), "Default: all.")
WebhookRequest = component(
    "WebhookRequest",
    closed(
        {
            "url": described("string", "A public http(s) address.", format="uri", maxLength=2000),
            "events": {**WEBHOOK_EVENTS, "nullable": True},
            "assignment": nullable(described("string", "Only of this one; default: all of yours.")),
        },
        required=("url",),
    ),
)
WEBHOOK: dict[str, JsonSchema] = {
    "id": TEXT,
    "url": URL,
    "events": WEBHOOK_EVENTS,
    "assignment": nullable(TEXT),
    "created_at": WHEN,
    "disabled_at": nullable({**WHEN, "description": "It answered 410: it wants no more."}),
}
Webhook = component("Webhook", closed(WEBHOOK, required=tuple(WEBHOOK)))
NewWebhook = component(
    "NewWebhook",
    closed(
        {
            **WEBHOOK,
            "secret": described("string", "For the signatures (Standard Webhooks). Shown once."),
        },
        required=(*WEBHOOK, "secret"),
    ),
)
WebhookPage = page("WebhookPage", Webhook)
Delivery = component(
    "Delivery",
    opened(
        {
            "id": described("string", "The `webhook-id` of every try."),
            "event": TEXT,
            "status": choice(*(str(status) for status in DeliveryStatus.values)),
            "created_at": WHEN,
            "next_try_at": nullable(WHEN),
            "payload": ANYTHING,
            "tries": listed(ANYTHING, "When, what was answered or why not, and how long it took."),
        },
        "id",
        "event",
        "status",
        "tries",
    ),
)
DeliveryPage = page("DeliveryPage", Delivery)
