// Copying a passage copies the TeX source of its formulas, as $...$ in a line and $$...$$ alone.
document.addEventListener("copy", (event) => {
  const selection = getSelection();
  if (selection.isCollapsed || !event.clipboardData) return;
  const range = selection.getRangeAt(0).cloneRange();
  const around = (node) => (node.nodeType === 1 ? node : node.parentElement)?.closest("[data-tex]");
  const first = around(range.startContainer), last = around(range.endContainer);
  if (first) range.setStartBefore(first);
  if (last) range.setEndAfter(last);
  const part = range.cloneContents();
  const formulas = part.querySelectorAll("[data-tex]");
  if (!formulas.length) return;
  for (const formula of formulas) {
    const marks = formula.localName === "div" ? "$$" : "$";
    formula.textContent = marks + formula.dataset.tex + marks;
  }
  const box = document.createElement("div");
  box.append(part);
  event.clipboardData.setData("text/html", box.innerHTML);
  // what stands in a page shows its lines; a box outside it has none
  box.style.cssText = "position: fixed; left: -99999px; white-space: normal";
  document.body.append(box);
  event.clipboardData.setData("text/plain", box.innerText);
  box.remove();
  event.preventDefault();
});
