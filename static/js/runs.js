// The page of a run: a clock that ticks between answers, and heat maps that read out a cell.
(function () {
  "use strict";

  setInterval(() => {
    for (const element of document.querySelectorAll("[data-elapsed]")) {
      element.dataset.elapsed = Number(element.dataset.elapsed) + 1;
      element.textContent = element.dataset.elapsed;
    }
  }, 1000);

  let lit = null;

  function show(cell) {
    const figure = cell.closest("[data-heatmap]");
    if (lit) lit.classList.remove("lit");
    lit = cell;
    cell.classList.add("lit");
    figure.querySelector("[data-readout]").textContent = cell.querySelector("title").textContent;
  }

  document.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("[data-heatmap] rect");
    if (cell) show(cell);
  });

  // One stop for the Tab key per map; the arrows move inside it.
  function ready() {
    for (const svg of document.querySelectorAll("[data-heatmap] svg:not([tabindex])")) svg.tabIndex = 0;
  }

  document.addEventListener("focusin", (event) => {
    const svg = event.target.closest("[data-heatmap] svg");
    if (svg && !(lit && svg.contains(lit))) show(svg.querySelector("rect"));
  });

  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const svg = step && event.target.closest("[data-heatmap] svg");
    if (!svg || !lit || !svg.contains(lit)) return;
    const rows = [...svg.querySelectorAll("g")];
    const row = rows.indexOf(lit.parentNode);
    const cells = [...lit.parentNode.querySelectorAll("rect")];
    const column = cells.indexOf(lit);
    const target = rows[row + step[0]]?.querySelectorAll("rect")[column + step[1]];
    if (target) show(target);
    event.preventDefault();
  });

  document.addEventListener("htmx:afterSettle", ready);
  ready();
})();

// One cell of a head, shown by all its matrices: pointing shows it, a click or the arrow keys keep it, and its
// arithmetic follows a moment later. Without this file cells are links, and number boxes choose among many.
(function () {
  "use strict";
  const STEP = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const clamp = (value, size) => Math.min(Math.max(value, 0), size - 1);
  const root = (element) => element.closest("[data-closeup]");
  const kept = (closeup) => [+closeup.dataset.row, +closeup.dataset.column];
  let timer = 0;

  // A frame around the cell, and a line through its row; where columns are dimensions, around the whole row.
  function outline(box, row, column) {
    const [rows, columns] = [+box.dataset.rows, +box.dataset.columns];
    const [height, width] = [Math.max(1, rows / 48), Math.max(1, columns / 48)];
    const y = Math.max(0, Math.min(row - (height - 1) / 2, rows - height));
    if ("byDimension" in box.dataset) return `M0 ${y}h${columns}v${height}h${-columns}z`;
    const x = Math.max(0, Math.min(column - (width - 1) / 2, columns - width));
    return `M${x} ${y}h${width}v${height}h${-width}zM0 ${row + 0.5}H${x}M${x + width} ${row + 0.5}H${columns}M${column + 0.5} 0V${y}M${column + 0.5} ${y + height}V${rows}`;
  }

  function show(closeup, row, column) {
    for (const box of closeup.querySelectorAll("[data-box]")) {
      box.querySelector("[data-cross]").setAttribute("d", outline(box, row, column));
    }
    for (const cell of closeup.querySelectorAll("td[data-i]")) {
      cell.classList.toggle("lit", +cell.dataset.i === row + 1 && (!cell.dataset.j || +cell.dataset.j === column + 1));
    }
    for (const [name, value] of [["[data-cell-row]", row], ["[data-cell-column]", column]]) {
      const input = closeup.querySelector(name);
      if (input && input !== document.activeElement) input.value = value;
    }
  }

  function keep(closeup, row, column) {
    [closeup.dataset.row, closeup.dataset.column] = [row, column];
    show(closeup, row, column);
    const address = new URL(location.href);
    address.searchParams.set("row", row);
    address.searchParams.set("col", column);
    history.replaceState(history.state, "", address);
    clearTimeout(timer);
    timer = setTimeout(() => {
      htmx.ajax("GET", `${closeup.dataset.cellAddress}&row=${row}&col=${column}`, { target: "#cell", swap: "innerHTML" });
    }, 90);
  }

  function at(event) {
    const box = event.target.closest("[data-box]");
    if (box) {
      const area = box.getBoundingClientRect();
      const row = clamp(Math.floor((event.clientY - area.top) / area.height * box.dataset.rows), +box.dataset.rows);
      const column = clamp(Math.floor((event.clientX - area.left) / area.width * box.dataset.columns), +box.dataset.columns);
      return [row, "byDimension" in box.dataset ? kept(root(box))[1] : column];
    }
    const cell = event.target.closest("[data-closeup] td[data-i]");
    return cell && [cell.dataset.i - 1, cell.dataset.j ? cell.dataset.j - 1 : kept(root(cell))[1]];
  }

  document.addEventListener("pointermove", (event) => {
    const cell = event.pointerType !== "touch" && event.target.closest("[data-closeup]") && at(event);
    if (cell) show(root(event.target), ...cell);
  });
  document.addEventListener("pointerout", (event) => {
    const closeup = event.target.closest("[data-box], td[data-i]") && root(event.target);
    if (closeup) show(closeup, ...kept(closeup));
  });
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-closeup]") && at(event);
    if (!cell || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    keep(root(event.target), ...cell);
  });
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-cell-row], [data-cell-column]")) return;
    const closeup = root(event.target);
    const value = (name, size) => clamp(parseInt(closeup.querySelector(name).value, 10) || 0, size);
    keep(closeup, value("[data-cell-row]", +closeup.dataset.rows), value("[data-cell-column]", +closeup.dataset.columns));
  });
  document.addEventListener("keydown", (event) => {
    const step = STEP[event.key], box = event.target.closest("[data-box], [data-closeup] td[data-i]");
    if (!step || !box) return;
    event.preventDefault();
    const closeup = root(box), [row, column] = kept(closeup);
    keep(closeup, clamp(row + step[0], +closeup.dataset.rows), clamp(column + step[1], +closeup.dataset.columns));
    if (box.matches("td")) box.closest("table").querySelector(`td.lit a`)?.focus();
  });

  function ready() {
    for (const closeup of document.querySelectorAll("[data-closeup][data-row]")) {
      for (const box of closeup.querySelectorAll("[data-box]:not([tabindex])")) box.tabIndex = 0;
      show(closeup, ...kept(closeup));
    }
  }
  document.addEventListener("htmx:afterSettle", (event) => { if (event.target.id !== "cell") ready(); });
  ready();
})();
