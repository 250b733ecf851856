// The page of a run: a clock that ticks between answers, and one cell of a head that all matrices show. Pointing
// shows it, a click or the arrow keys keep it, and its arithmetic follows a moment later. Without this file cells
// are links, and number boxes choose among many.
(function () {
  "use strict";

  setInterval(() => {
    for (const element of document.querySelectorAll("[data-elapsed]")) {
      element.dataset.elapsed = Number(element.dataset.elapsed) + 1;
      element.textContent = element.dataset.elapsed;
    }
  }, 1000);

  const STEP = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const CELL = "[data-closeup] td[data-i]";
  const clamp = (value, size) => Math.min(Math.max(value, 0), size - 1);
  const root = (element) => element.closest("[data-closeup]");
  const kept = (closeup) => [+closeup.dataset.row, +closeup.dataset.column];
  let timer = 0, focused = null;

  // A frame around the cell, and a line through its row; where columns are dimensions, around the whole row.
  function outline(box, row, column) {
    const [rows, columns] = [+box.dataset.rows, +box.dataset.columns];
    [row, column] = [row - (box.dataset.top || 0), column - (box.dataset.left || 0)];
    if (row < 0 || row >= rows) return "";
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

  // Which part of the matrices is on the page, by the cell with which it came; and of any cell.
  const partOf = (closeup) => (closeup.dataset.part ||= partWith(closeup, ...kept(closeup)));

  function partWith(closeup, row, column) {
    const side = +closeup.dataset.side || Infinity;
    return [Math.floor(row / side), Math.floor(column / side)].join();
  }

  function withCell(address, closeup) {
    const url = new URL(address, location.href);
    url.searchParams.set("row", closeup.dataset.row);
    url.searchParams.set("col", closeup.dataset.column);
    return url;
  }

  function keep(closeup, row, column) {
    [closeup.dataset.row, closeup.dataset.column] = [row, column];
    show(closeup, row, column);
    history.replaceState(history.state, "", withCell(location.href, closeup));
    clearTimeout(timer);
    timer = setTimeout(() => {
      // Another part of the matrices may have come meanwhile, which does not know of the cell yet.
      const now = document.querySelector("[data-closeup][data-row]");
      const isHere = partOf(now) === partWith(now, row, column);
      [now.dataset.row, now.dataset.column] = [row, column];
      show(now, row, column);
      if (isHere) {
        htmx.ajax("GET", `${now.dataset.cellAddress}&row=${row}&col=${column}`, { target: "#cell", swap: "innerHTML" });
      } else {
        focused = document.activeElement.closest("[data-map]")?.dataset.map;
        htmx.ajax("GET", now.dataset.lookAddress + withCell(location.href, now).search, { target: "#look", swap: "outerHTML" });
      }
    }, 90);
  }

  function at(event) {
    const box = event.target.closest("[data-box]");
    if (box) {
      const area = box.getBoundingClientRect(), data = box.dataset;
      const row = clamp(Math.floor((event.clientY - area.top) / area.height * data.rows), +data.rows);
      const column = clamp(Math.floor((event.clientX - area.left) / area.width * data.columns), +data.columns);
      return [row + +(data.top || 0), "byDimension" in data ? kept(root(box))[1] : column + +(data.left || 0)];
    }
    const cell = event.target.closest(CELL);
    return cell && [cell.dataset.i - 1, cell.dataset.j ? cell.dataset.j - 1 : kept(root(cell))[1]];
  }

  // One nearer or farther, of the links that say how much is shown.
  function zoom(step) {
    const links = [...document.querySelectorAll('[data-picker="zoom"] a')];
    const now = links.findIndex((link) => link.hasAttribute("aria-current"));
    links[now + step]?.click();
  }

  document.addEventListener("pointermove", (event) => {
    const cell = event.pointerType !== "touch" && root(event.target) && at(event);
    if (cell) show(root(event.target), ...cell);
  });
  document.addEventListener("pointerout", (event) => {
    const closeup = event.target.closest("[data-box], td[data-i]") && root(event.target);
    if (closeup) show(closeup, ...kept(closeup));
  });
  document.addEventListener("click", (event) => {
    const cell = root(event.target) && at(event);
    if (!cell || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    keep(root(event.target), ...cell);
  });
  document.addEventListener("dblclick", (event) => {
    if (event.target.closest("[data-box]")) zoom(1);
  });
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-cell-row], [data-cell-column]")) return;
    const closeup = root(event.target);
    const value = (name, size) => clamp(parseInt(closeup.querySelector(name).value, 10) || 0, size);
    keep(closeup, value("[data-cell-row]", +closeup.dataset.rows), value("[data-cell-column]", +closeup.dataset.columns));
  });
  document.addEventListener("keydown", (event) => {
    const step = STEP[event.key], box = event.target.closest(`[data-box], ${CELL}`);
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    if ("+=-".includes(event.key)) {
      focused = box.closest("[data-map]").dataset.map;
      zoom(event.key === "-" ? -1 : 1);
    }
    if (!step) return;
    event.preventDefault();
    const closeup = root(box), [row, column] = kept(closeup);
    keep(closeup, clamp(row + step[0], +closeup.dataset.rows), clamp(column + step[1], +closeup.dataset.columns));
    if (box.matches("td")) box.closest("table").querySelector("td.lit a")?.focus();
  });

  // Whatever is chosen next, the cell that is kept by now stays the one.
  document.addEventListener("htmx:configRequest", ({ detail, target }) => {
    const closeup = document.querySelector("[data-closeup][data-row]");
    if (!closeup || !target.closest("#look [data-picker]")) return;
    const url = withCell(detail.path, closeup);
    detail.path = url.pathname + url.search;
  });

  // A large picture begins small, and becomes sharp once somebody looks at it.
  const sharpen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      sharpen.unobserve(target);
      const full = new Image();
      full.onload = () => { target.src = full.src; };
      full.src = target.dataset.full;
      delete target.dataset.full;
    }
  });

  function ready() {
    for (const picture of document.querySelectorAll("img[data-full]")) sharpen.observe(picture);
    for (const closeup of document.querySelectorAll("[data-closeup][data-row]")) {
      const [row, column] = kept(closeup);
      partOf(closeup);
      for (const box of closeup.querySelectorAll("[data-box]:not([tabindex])")) box.tabIndex = 0;
      show(closeup, row, column);
      if (focused) closeup.querySelector(`[data-map="${focused}"] :is([data-box], td.lit a)`)?.focus();
      focused = null;
    }
  }
  document.addEventListener("htmx:afterSettle", (event) => { if (event.target.id !== "cell") ready(); });
  ready();
})();
