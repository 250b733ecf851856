"""Problems of a body, each named by a JSON pointer, back to the field of the lab's form that it came from."""

from collections.abc import Iterable, Iterator

from kernels.spec import FieldProblem
from kernels.spec.families import PLAIN
from lab.form import given, options
from lab.form.offers import ARRAYS
from lab.form.reading import ReadingForm


class PlacingForm(ReadingForm):
    """Says what is wrong where it can be put right."""

    def place(self, problems: Iterable[FieldProblem]) -> None:
        """Put each problem beside the field that it came from; what has no field goes on top."""
        unread = {pointer for pointer, name in self.input_pointers().items() if self.has_error(name)}
        for problem in problems:
            if problem.pointer in unread:
                continue  # the text could not be read, so the array is missing: one complaint is enough
            name = self.field_for(problem.pointer)
            where = problem.pointer if name is None else inner_path(problem.pointer)
            self.add_error(name, f"{where}: {problem.detail}" if where else problem.detail)

    def field_for(self, pointer: str) -> str | None:
        """The field of the longest known prefix of a pointer."""
        known = {
            "/return": "returns", "/inputs": "source", "/attention/window": "window_left",
            "/attention/rope": "rope", "/attention/pattern": "pattern",
            "/attention/rope/scaling": "rope_scaling",
        }  # fmt: skip
        known |= {setting.pointer: setting.name for setting in self.settings}
        known |= {f"/options/{name}": options.control(name) for name in self.engine_chosen.options}
        known |= self.input_pointers()
        if self.source_chosen == "seed" and self.text("layout") == "packed":
            known |= {
                f"/attention/{pointer}": field
                for pointer, field in (("num_heads", "heads"), ("num_kv_heads", "kv_heads"))
                if not self.text(pointer)
            }
        while pointer and known.get(pointer) not in self.fields:
            pointer = pointer.rpartition("/")[0]
        return known.get(pointer)

    def input_pointers(self) -> dict[str, str]:
        """Where what is wrong with an input is said."""
        pointers = dict(self.pointers_of_arrays())
        named = {"upload": "{}_name", "grid": "grid_{}", "matrices": "{}"}.get(self.source_chosen)
        if named:
            return pointers | {f"/inputs/{name}": named.format(name) for name in ARRAYS}
        if self.source_chosen != "seed":
            return pointers
        pointers |= {"/inputs/q": "q_len", "/inputs/k": "kv_heads", "/inputs/v": "v_head_dim"}
        for name in ARRAYS:
            pointers |= {f"/inputs/{name}/seed": "seed", f"/inputs/{name}/distribution": "distribution"}
            all_fields = self.shape_fields(name)
            layout = self.text("layout")
            shown = (
                (all_fields[0], all_fields[2], all_fields[3])
                if layout == "packed"
                else all_fields[4 - given.RANKS.get(layout, 4) :]
            )
            pointers |= {f"/inputs/{name}/shape/{axis}": field for axis, field in enumerate(shown)}
        return pointers

    def pointers_of_arrays(self) -> Iterator[tuple[str, str]]:
        for name in self.arrays:
            way, pointer = self.text(given.how(name)), f"/inputs/{name}"
            yield pointer, given.how(name) if way in ("", "seed") else given.box(name)
            if way == "seed" and self.family is not PLAIN:
                yield f"{pointer}/seed", "seed"
                yield f"{pointer}/distribution", "distribution"
                axes = self.surroundings({}, {}).axes(name) or []
                for place, axis in enumerate(axes):
                    yield f"{pointer}/shape/{place}", self.field_of_axis(axis)


def inner_path(pointer: str) -> str:
    """For a mistake inside an array, its indices: /inputs/q/2/0 -> q[2][0]."""
    _empty, top, *path = [*pointer.split("/"), ""]
    indices = [part for part in path[1:] if part]
    if top != "inputs" or not indices or not all(part.isdigit() for part in indices):
        return ""
    return path[0] + "".join(f"[{index}]" for index in indices)
