// The form's conveniences: arrow keys and pasting in the grid, and files that are dropped. Without this file boxes
// are boxes, and files are chosen and go with the form.
(function () {
  "use strict";
  const STEP = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  function boxesOf(table) {
    return [...table.rows].map((row) => [...row.querySelectorAll("input")]);
  }

  function placeOf(boxes, input) {
    const row = boxes.findIndex((line) => line.includes(input));
    return [row, boxes[row].indexOf(input)];
  }

  // Sideways, a caret first walks through its own text.
  function staysInside(input, [down, across]) {
    if (down) return false;
    const [start, end] = [input.selectionStart, input.selectionEnd];
    if (start === 0 && end === input.value.length) return false;
    return across < 0 ? end > 0 : start < input.value.length;
  }

  document.addEventListener("keydown", (event) => {
    const step = STEP[event.key];
    const table = step && event.target.closest("[data-grid]");
    if (!table || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || staysInside(event.target, step)) return;
    const boxes = boxesOf(table), [row, column] = placeOf(boxes, event.target);
    const next = boxes[row + step[0]]?.[column + step[1]];
    event.preventDefault();
    if (next) { next.focus(); next.select(); }
  });

  document.addEventListener("paste", (event) => {
    const table = event.target.closest?.("[data-grid]");
    if (!table) return;
    const text = event.clipboardData.getData("text").trim();
    const rows = text.split(/\r?\n|;|\]\s*,?\s*\[/).map((line) => line.replace(/[[\]()]/g, " ").trim().split(/[\s,]+/).filter(Boolean));
    if (rows.flat().length < 2) return;
    event.preventDefault();
    const boxes = boxesOf(table), [row, column] = placeOf(boxes, event.target);
    rows.filter((line) => line.length).forEach((line, i) => line.forEach((value, j) => {
      const box = boxes[row + i]?.[column + j];
      if (box) box.value = value;
    }));
    event.target.dispatchEvent(new Event("input", { bubbles: true }));
  });

  const dropped = (event) => event.dataTransfer?.types.includes("Files") && event.target.closest?.(".lab-sources");

  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      const panel = dropped(event);
      if (!panel) return;
      event.preventDefault();
      panel.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => {
    const panel = dropped(event);
    if (panel && !panel.contains(event.relatedTarget)) panel.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    const panel = dropped(event), input = panel?.querySelector('input[type="file"]');
    if (!input) return;
    event.preventDefault();
    panel.classList.remove("over");
    input.files = event.dataTransfer.files;
    const upload = panel.querySelector('[name="source"][value="upload"]');
    if (upload) upload.checked = true;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });

  // The button that removed a file is gone with it: the box for files is next.
  document.addEventListener("htmx:afterSettle", ({ detail }) => {
    if (detail.requestConfig?.elt.matches?.('[name="drop"]')) document.getElementById("lab-files")?.focus();
  });
})();
