// Tables whose heads are buttons that sort, fields that filter long tables and lists, a tip beside
// what is pointed at, layers that open where a link leads to them, buttons that copy a text. Without
// this script the page shows the same, in the order in which it was made.
const UNITS = { ns: 1e-3, "µs": 1, us: 1, ms: 1e3, s: 1e6, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

function value(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = text.replace(/,/g, "").match(/^(-?[\d.]+(?:e[-+]?\d+)?)(?![\d.-])\s*([a-zµ]+)?/i);
  if (!found) return text === "–" ? null : text.toLowerCase();
  const unit = found[2] || "";
  return parseFloat(found[1]) * (UNITS[unit] || UNITS[unit[0]] || 1);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

function sort(table, head, column) {
  const down = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("n");
  const next = down || head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", next);
  const sign = next === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
  rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : sign * compare(a, b)));
  rows.forEach(([, row]) => table.tBodies[0].append(row));
}

function filtered(before, rows, name) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = name;
  field.setAttribute("aria-label", name);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows()) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  before.before(field);
}

function opened() {
  let found = location.hash && document.getElementById(location.hash.slice(1));
  if (!found || found.tagName !== "DETAILS") return;
  found.hidden = false;
  for (; found; found = found.parentElement.closest("details")) found.open = true;
  document.getElementById(location.hash.slice(1)).scrollIntoView();
}

function pointed(tip) {
  document.addEventListener("pointermove", (event) => {
    const found = event.target.closest && event.target.closest("svg *");
    const title = found && (found.querySelector(":scope > title") || {}).textContent;
    tip.hidden = !title;
    if (!title) return;
    tip.textContent = title;
    const left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8);
    const above = event.clientY + 16 + tip.offsetHeight > window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${event.clientY + (above ? -tip.offsetHeight - 8 : 16)}px`;
  });
}

function copied(text) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
  text.before(button);
}

document.querySelectorAll(".scroll > table").forEach((table) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", () => sort(table, head, column));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(table, head, column);
      }
    });
  });
  const rows = () => table.tBodies[0].rows;
  if (rows().length > 8) filtered(table.closest(".scroll"), rows, "filter rows");
});
document.querySelectorAll(".layers").forEach((list) => {
  filtered(list, () => list.children, "search layers, nodes, schedules and kernels");
});
document.querySelectorAll("pre").forEach(copied);
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
pointed(tip);
window.addEventListener("hashchange", opened);
opened();
