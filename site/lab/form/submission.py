"""What happens to a submitted form: check it, price it, queue it; whatever is wrong goes back into it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from api.callers import Caller
from api.errors import Problem
from api.runs.submission import submit_body
from api.uploads import store
from kernels.estimate import Estimate
from kernels.sparse.share import Share, share
from kernels.spec import FieldProblem, RunSpec, SpecError, parse_run
from lab.form.forms import LabForm
from workers import limits, quotas, runs
from workers.models import Run

MAX_FILES = 16  # that a form names at once
DROP = "drop"  # a file that the form names no longer, by a button beside it


@dataclass
class Answer:
    """What became of a form: a run, or a status that says why not; spec and cost as far as known."""

    body: dict[str, Any] = field(default_factory=dict)
    run: Run | None = None
    spec: RunSpec | None = None
    cost: Estimate | None = None
    share: Share | None = None
    status: int = 200
    retry_after: int | None = None


def check(form: LabForm, caller: Caller) -> Answer:
    """What the form would submit, and what that would cost; problems end up in the form."""
    answer = Answer(body=form.body())
    if form.source_chosen == "upload" and not form.uploads:  # nothing to judge yet
        answer.status = 422 if form.errors else 200
        return answer
    problems, parsed = attempt(lambda: parse_run(answer.body, load_upload=store.loader(caller)))
    if parsed:
        answer.spec, answer.share = parsed.spec, share(parsed.spec, parsed.arrays)
        problems, answer.cost = attempt(lambda: limits.admit(parsed.spec, caller.budget_seconds))
    form.place(problems)
    answer.status = 422 if form.errors else 200
    return answer


def attempt(step: Callable[[], Any]) -> tuple[Iterable[FieldProblem], Any]:
    """The problems of a step, or its outcome."""
    try:
        return (), step()
    except (SpecError, limits.Refused) as error:
        return error.problems, None


def submit(form: LabForm, files: list[Any], caller: Caller) -> Answer:
    """Store the files, then queue the run. Without a run in the answer the form says what to change."""
    keep(form, files, caller)
    if not form.uploads and form.source_chosen == "upload" and not form.errors:
        form.add_error("upload", _("Choose a file: .npy, .npz or .safetensors."))
    answer = check(form, caller)
    if form.errors:
        return answer
    try:
        answer.run = submit_body(answer.body, caller=caller).run
    except (SpecError, limits.Refused) as error:  # an upload that expired just now
        form.place(error.problems)
        answer.status = 422
    except quotas.QuotaExceeded as error:
        answer.status, answer.retry_after = 429, error.retry_after
        form.add_error(None, error.detail)
    except runs.QueueFull as error:
        answer.status, answer.retry_after = 503, error.retry_after
        sentence = _("Too many runs are waiting. Nothing is lost: send this form again in {seconds} s.")
        form.add_error(None, sentence.format(seconds=error.retry_after))
    return answer


def keep(form: LabForm, files: list[Any], caller: Caller) -> None:
    """Store new files the way `POST /api/v1/uploads` does; from then on the form names them by id. They come
    before those that were sent earlier, and in the place of one of the same name. What is to be dropped is no
    longer named; it stays where it is, for whoever else names it."""
    stored = []
    for file in files:
        try:
            stored.append(store.save(file, caller).id)
        except Problem as problem:
            form.add_error("upload", f"{file.name}: {problem.detail.removeprefix('file: ')}")
    kept = [name for name in form.uploads if name not in form.state.getlist(DROP)]
    known = [upload for name in (*stored, *kept[:MAX_FILES]) if (upload := store.find(name, caller))]
    by_name = {upload.file_name: upload for upload in reversed(known)}
    form.know_uploads([upload for upload in known if by_name[upload.file_name] is upload][:MAX_FILES])
