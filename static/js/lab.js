// Conveniences of the lab: folds that stay open when what they hold is replaced, and on a run's page a clock that
// ticks between answers, and heat maps that read out a cell.
(function () {
  "use strict";

  let open = [];
  document.addEventListener("htmx:beforeSwap", ({ target }) => {
    if (target.matches("[data-keep-folds]")) open = [...target.querySelectorAll("details[open]")].map(({ id }) => id);
  });
  document.addEventListener("htmx:afterSwap", ({ target }) => {
    if (target.matches("[data-keep-folds]")) for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  });

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
