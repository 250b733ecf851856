// One cell, shared by every matrix of a figure: hover or focus shows it, a click keeps it (and puts it into the
// address). Without this file each cell is a link that does the same by loading the page again.
(function () {
  "use strict";
  const STEP = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  // A cell that was chosen while an answer was on its way, which does not know of it.
  let late = null;

  const kept = (figure) => figure.querySelector("[data-cell-input]").value.split(",").map(Number);

  function show(figure, i, j) {
    for (const element of figure.querySelectorAll("[data-i], [data-j]")) {
      const on = (!element.dataset.i || +element.dataset.i === i) && (!element.dataset.j || +element.dataset.j === j);
      element.classList.toggle("lit", on);
    }
    for (const line of figure.querySelectorAll("[data-for]")) {
      line.hidden = line.dataset.for !== i + "," + j && line.dataset.for !== i + ",*";
    }
  }

  function written(params) {
    const query = params.toString().replaceAll("%2C", ",").replaceAll("%5B", "[").replaceAll("%5D", "]");
    return query ? location.pathname + "?" + query : location.pathname;
  }

  // In the address; what else it says may be newer than the page's links.
  function remember(name, value) {
    const params = new URLSearchParams(location.search);
    if (value === null) params.delete(name); else params.set(name, value);
    history.replaceState(history.state, "", written(params));
  }

  function keep(figure, i, j, href) {
    const input = figure.querySelector("[data-cell-input]");
    input.value = i + "," + j;
    for (const link of figure.querySelectorAll("td a[href]")) {
      const cell = link.parentElement.dataset;
      const on = +cell.i === i && +cell.j === j;
      link.tabIndex = on ? 0 : -1;
      if (on) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
    show(figure, i, j);
    if (!href) return;
    remember(input.name, new URL(href).searchParams.get(input.name));
    if (document.querySelector(".htmx-request")) late = { figure, i, j };
  }

  function cellOf(figure, target) {
    const element = target.closest("[data-i], [data-j]");
    if (!element || !figure.contains(element)) return null;
    const [i, j] = kept(figure);
    return [+(element.dataset.i || i), +(element.dataset.j || j)];
  }

  function limits(figure) {
    let rows = 1, columns = 1;
    for (const { dataset } of figure.querySelectorAll("td[data-i][data-j]")) {
      rows = Math.max(rows, +dataset.i);
      columns = Math.max(columns, +dataset.j);
    }
    return [rows, columns];
  }

  function start(figure) {
    const preview = (event) => {
      const cell = cellOf(figure, event.target);
      if (cell) show(figure, ...cell); else show(figure, ...kept(figure));
    };
    figure.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") preview(event); });
    figure.addEventListener("pointerleave", () => show(figure, ...kept(figure)));
    figure.addEventListener("focusin", preview);
    figure.addEventListener("focusout", () => show(figure, ...kept(figure)));
    figure.addEventListener("click", (event) => {
      const link = event.target.closest("td[data-i][data-j] a[href]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      keep(figure, ...cellOf(figure, link), link.href);
    });
    figure.addEventListener("keydown", (event) => {
      const link = event.target.closest("td[data-i][data-j] a[href]");
      const step = STEP[event.key];
      if (!link || !step) return;
      event.preventDefault();
      const [i, j] = cellOf(figure, link), [rows, columns] = limits(figure);
      const to = [Math.min(Math.max(i + step[0], 1), rows), Math.min(Math.max(j + step[1], 1), columns)];
      const next = link.closest("table").querySelector(`td[data-i="${to[0]}"][data-j="${to[1]}"] a`);
      keep(figure, ...to, next.href);
      next.focus();
    });
    keep(figure, ...kept(figure));
  }

  document.querySelectorAll("[data-cells]").forEach(start);

  // A grid of links that is one stop of the tab key: arrows go from cell to cell.
  function rove(grid, link) {
    for (const other of grid.querySelectorAll("td a")) other.tabIndex = other === link ? 0 : -1;
  }
  const grids = () => document.querySelectorAll("[data-roving]");
  const startRoving = () => grids().forEach((grid) => {
    const links = [...grid.querySelectorAll("td a")];
    rove(grid, links.find((link) => link === document.activeElement) || links[0]);
  });
  document.addEventListener("keydown", (event) => {
    const link = event.target.closest("[data-roving] td a"), step = STEP[event.key];
    if (!link || !step) return;
    event.preventDefault();
    const row = link.closest("tr"), rows = [...row.parentElement.rows], cell = link.parentElement.cellIndex;
    const next = rows[rows.indexOf(row) + step[0]]?.cells[cell + step[1]]?.querySelector("a");
    if (!next) return;
    rove(link.closest("[data-roving]"), next);
    next.focus();
  });
  startRoving();

  // A slider moves the number box beside it, which is what a form sends; and follows it.
  const slide = (slider, box) => ("log" in slider.dataset ? Math.log(box.value) : box.value);
  document.addEventListener("input", ({ target }) => {
    if (target.dataset.moves) {
      const box = document.getElementById(target.dataset.moves), grain = +(target.dataset.log || target.step);
      const value = "log" in target.dataset ? Math.exp(target.value) : +target.value;
      const digits = Math.max(0, Math.ceil(-Math.log10(grain)));
      box.value = +(Math.round(value / grain) * grain).toFixed(digits);
      box.dispatchEvent(new Event("input", { bubbles: true }));
    } else if (target.type === "number") {
      const slider = document.querySelector(`[data-moves="${CSS.escape(target.id)}"]`);
      if (slider && target.value !== "" && slider !== document.activeElement) slider.value = slide(slider, target);
    }
  });

  // The form of a figure carries what the others on the page say, as of when the page was loaded: here as of now.
  const FORMS = "form:is(.explorable, .ask)";
  const own = (form) => [...form.elements].filter((one) => one.name && !("carried" in one.dataset));
  function isChanged(one) {
    if ("loaded" in one.dataset) return one.value !== one.dataset.loaded;
    if (one.options) return [...one.options].some((option) => option.selected !== option.defaultSelected);
    return one.value !== one.defaultValue || one.checked !== one.defaultChecked;
  }
  function carry(form, params) {
    for (const other of document.querySelectorAll(FORMS)) {
      if (other === form || !own(other).some(isChanged)) continue;
      const said = new FormData(other);
      for (const { name } of own(other)) if (said.has(name)) params.set(name, said.getAll(name).at(-1));
    }
  }
  document.addEventListener("htmx:configRequest", ({ target, detail }) => {
    const form = target.closest(FORMS);
    if (form) carry(form, detail.formData);
  });

  // A link to another state of one figure, as of when it was drawn, leaves the others on the page as they are now.
  document.addEventListener("click", ({ target }) => {
    const link = target.closest("a[href*='?']");
    if (!link || link.origin + link.pathname !== location.origin + location.pathname) return;
    const form = document.getElementById(link.hash.slice(1));
    if (!form?.matches(FORMS)) return;
    const names = new Set(own(form).map((one) => one.name));
    const isItsOwn = (name) => names.has(name) || names.has(name + "11");  // a matrix as a whole, or by its cells
    const params = new URLSearchParams(location.search), to = new URLSearchParams(link.search);
    for (const name of [...params.keys()]) if (isItsOwn(name)) params.delete(name);
    for (const [name, value] of to) if (isItsOwn(name)) params.append(name, value);
    carry(form, params);
    link.href = written(params) + link.hash;
  }, { capture: true });

  // A term says what it means while it is pointed at or has the focus. Escape puts that away until one comes back;
  // where nothing can be pointed at, the first tap shows it, and the second follows the link.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const term of document.querySelectorAll(".term:is(:hover, :focus-within)")) term.classList.add("is-off");
  });
  for (const left of ["pointerout", "focusout"]) {
    document.addEventListener(left, (event) => {
      const term = event.target.closest?.(".term");
      if (term && !term.contains(event.relatedTarget)) term.classList.remove("is-off");
    });
  }
  let tapped = null;
  document.addEventListener("click", (event) => {
    const link = event.target.closest(".term > a");
    if (link && link !== tapped && matchMedia("(hover: none)").matches) {
      event.preventDefault();
      link.focus();
    }
    tapped = link;
  });

  document.addEventListener("htmx:afterSettle", (event) => {
    startRoving();
    const figure = event.target.closest("[data-cells]");
    if (!figure) return;
    const bad = new Set([...figure.querySelectorAll("[data-error-for]")].map((error) => error.dataset.errorFor));
    for (const input of figure.querySelectorAll("input[type=number]")) {
      if (bad.has(input.id)) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    }
    const chosen = late?.figure === figure && figure.querySelector(`td[data-i="${late.i}"][data-j="${late.j}"] a`);
    if (chosen) keep(figure, late.i, late.j, chosen.href); else keep(figure, ...kept(figure));
    late = null;
    const focused = cellOf(figure, document.activeElement);
    if (focused) show(figure, ...focused);
  });
})();
