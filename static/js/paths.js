// Which pages a reader has read: kept in this browser, sent to nobody, shown on the table of contents and on paths.
(function () {
  "use strict";
  const NAME = "pages-read", WORD = document.currentScript.dataset.readWord;

  function kept() {
    try {
      const found = JSON.parse(localStorage.getItem(NAME));
      return new Set(Array.isArray(found) ? found : []);
    } catch (error) { return new Set(); }
  }

  function keep(pages) {
    try {
      if (pages.size) localStorage.setItem(NAME, JSON.stringify([...pages]));
      else localStorage.removeItem(NAME);
    } catch (error) { /* not remembered */ }
    show(pages);
  }

  function tick() {
    const mark = document.createElement("span");
    mark.className = "tick";
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", WORD);
    mark.textContent = "✓";
    return mark;
  }

  function show(pages) {
    for (const link of document.querySelectorAll("[data-page]")) {
      link.querySelector(".tick")?.remove();
      if (pages.has(link.dataset.page)) link.append(tick());
    }
    for (const place of document.querySelectorAll("[data-progress]")) {
      const all = place.dataset.progress.split(" "), read = all.filter((page) => pages.has(page)).length;
      place.textContent = read ? place.dataset.words.replace("{read}", read).replace("{pages}", all.length) : "";
    }
    for (const button of document.querySelectorAll("[data-read]")) {
      button.setAttribute("aria-pressed", String(pages.has(button.dataset.read)));
    }
    for (const line of document.querySelectorAll("[data-progress-kept]")) line.hidden = !pages.size;
  }

  document.addEventListener("click", ({ target }) => {
    const pages = kept(), button = target.closest("[data-read]"), forget = target.closest("[data-forget]");
    const onward = target.closest("[data-ends]");  // who goes on from the end of a page has read it
    if (button) {
      if (!pages.delete(button.dataset.read)) pages.add(button.dataset.read);
      keep(pages);
    } else if (onward) {
      keep(pages.add(onward.dataset.ends));
    } else if (forget) {
      keep(new Set());
      const status = document.querySelector("[data-forget-status]");
      status.textContent = forget.dataset.forgotten;
      status.tabIndex = -1;
      status.focus();
    }
  });
  addEventListener("storage", ({ key }) => { if (key === NAME || key === null) show(kept()); });
  addEventListener("pageshow", () => show(kept()));
})();
