// The search from everywhere: "/" or its link opens a dialog, arrows go through what is found, Enter opens it, Escape
// closes. On the page of the search, which the link leads to without this file, the same keys work.
(function () {
  "use strict";
  const dialog = document.querySelector("[data-search-dialog]");
  const input = document.querySelector("[data-search-input]");
  const results = document.querySelector("[data-search-results]");
  if (!input || !results) return;

  function open() {
    if (dialog && !dialog.open) dialog.showModal();
    input.focus();
    input.select();
  }

  const isWriting = (element) => element.closest("input, textarea, select, [contenteditable]");
  const links = () => [...results.querySelectorAll("a[href]")];

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-search-open]") && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      open();
    } else if (dialog && (event.target === dialog || event.target.closest("[data-search-close]"))) {
      dialog.close();
    } else if (dialog && dialog.open && event.target.closest("[data-search-results] a")) {
      dialog.close(); // it may lead to another place of this page
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "/" && !isWriting(event.target)) {
      event.preventDefault();
      open();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (event.target === input || results.contains(event.target))) {
      step(event);
    }
  });

  // Up from the first of them is back to what was typed.
  function step(event) {
    const all = links();
    const next = all.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1);
    if (event.target === input && event.key === "ArrowUp") return;
    event.preventDefault();
    if (next < 0) input.focus();
    else if (next < all.length) all[next].focus();
  }
})();
